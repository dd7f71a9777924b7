// Reads server-sent events from a fetch answer, since EventSource cannot send a key.

/** Yields the data of each event of `answer`'s body; ends when the body does. */
export async function* eventData(answer) {
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      const frames = (rest + value).split(/\r?\n\r?\n/);
      rest = frames.pop();
      for (const frame of frames) {
        const lines = frame.split(/\r?\n/).filter((line) => line.startsWith("data:"));
        if (lines.length) yield lines.map((line) => line.slice(5).trimStart()).join("\n");
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}
