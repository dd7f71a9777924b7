// Starts the page: who we talk to, whether a key is wanted, and the two halves.

import { ServerError, apiKey, call, keepApiKey } from "./api.js";
import { Chat } from "./chat.js";
import { ClusterView } from "./cluster_view.js";
import { Live } from "./live.js";

const RETRY_MS = 2000;
const LABEL_CHARACTERS = 6;
const EMPTY = {
  live: "No replica yet.",
  key: "Give the key beside the chat to see the cluster.",
  off: "This server has no cluster to show.",
};
const byId = (id) => document.getElementById(id);

const own = new Set();
const view = new ClusterView({ isOwn: (label) => own.has(label) });
const chat = new Chat({
  onRequest: (id) => own.add(id.slice(-LABEL_CHARACTERS)),
  onUnauthorised: askForKey,
});
const live = new Live({ onUpdate: (update) => view.update(update), onState: showLink });
let linkState = "connecting";

function showLink(state, seconds) {
  if (state === "live" && linkState !== "live") view.restart();
  if (state === linkState && state !== "lost") return;
  linkState = state;
  const texts = {
    connecting: "Connecting",
    live: "Live",
    lost: "Connection lost",
    key: "Key needed",
    off: "No cluster here",
  };
  byId("link").dataset.state = state;
  byId("link-text").textContent = texts[state];
  const lost = byId("lost");
  lost.hidden = state !== "lost";
  lost.textContent = `The connection to the server is lost. Trying again in ${seconds} s; `
    + "what you see below is from before.";
  byId("cluster").classList.toggle("stale", state !== "live");
  if (state === "key") askForKey();
  byId("no-replicas").textContent = EMPTY[state] || EMPTY.live;
}

function askForKey() {
  const row = byId("key-row");
  const isWrong = apiKey() !== "";
  row.hidden = false;
  row.classList.toggle("wrong", isWrong);
  byId("key-note").textContent = isWrong
    ? "The server does not know this key."
    : "Kept in this tab only, until it is closed.";
}

async function useKey() {
  keepApiKey(byId("api-key").value.trim());
  byId("key-row").classList.remove("wrong");
  if (!(await meetModel())) return;
  byId("key-row").hidden = true;
  live.connect();
  byId("prompt").focus();
}

/** Asks what is served here; false when a key is wanted. Tries on while the server is away. */
async function meetModel() {
  try {
    const models = await (await call("v1/models")).json();
    chat.setModel(models.data[0]);
    byId("model").textContent = models.data[0].id;
    byId("model").title = `${models.data[0].max_model_len} tokens of context`;
    return true;
  } catch (error) {
    if (error instanceof ServerError && error.status === 401) {
      askForKey();
      return false;
    }
    setTimeout(meetModel, RETRY_MS);
    return true;
  }
}

function showTab(name) {
  document.body.dataset.tab = name;
  for (const tab of document.querySelectorAll("[role=tab]")) {
    const isShown = tab.id === `tab-${name}`;
    tab.setAttribute("aria-selected", String(isShown));
    tab.tabIndex = isShown ? 0 : -1;
  }
}

for (const name of ["chat", "cluster"]) {
  const other = name === "chat" ? "cluster" : "chat";
  const tab = byId(`tab-${name}`);
  tab.addEventListener("click", () => showTab(name));
  tab.addEventListener("keydown", (event) => {
    if (event.key !== "ArrowLeft" && event.key !== "ArrowRight") return;
    showTab(other);
    byId(`tab-${other}`).focus();
  });
}
byId("use-key").addEventListener("click", useKey);
byId("api-key").addEventListener("keydown", (event) => {
  if (event.key !== "Enter") return;
  event.preventDefault();
  useKey();
});

meetModel().then((isOpen) => {
  if (isOpen) live.connect();
  else showLink("key", 0);
});
