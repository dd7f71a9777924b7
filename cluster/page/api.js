// Calls to this server, with the key of this tab when there is one.

const KEY = "pagoda-api-key";

export class ServerError extends Error {
  constructor(message, status) {
    super(message);
    this.status = status;
  }
}

export const apiKey = () => sessionStorage.getItem(KEY) || "";

export function keepApiKey(key) {
  if (key) sessionStorage.setItem(KEY, key);
  else sessionStorage.removeItem(KEY);
}

/** fetch, relative to this page; throws ServerError with the server's own words unless it is ok. */
export async function call(path, { headers = {}, ...options } = {}) {
  const key = apiKey();
  const authorised = key ? { ...headers, Authorization: `Bearer ${key}` } : headers;
  const answer = await fetch(path, { ...options, headers: authorised });
  if (answer.ok) return answer;
  let message = `The server answered ${answer.status}.`;
  try {
    message = (await answer.json()).error?.message || message;
  } catch {
    // A proxy in between may answer with something else than JSON.
  }
  throw new ServerError(message, answer.status);
}
