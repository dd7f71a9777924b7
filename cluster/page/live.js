// Keeps the stream of updates open while the page is seen, and says when it is not.

import { ServerError, call } from "./api.js";
import { eventData } from "./event_stream.js";

const FIRST_RETRY_MS = 500;
const LAST_RETRY_MS = 8000;
// The server sends something at least every 10 s.
const SILENCE_MS = 15000;
// A page in the background stops watching after this long, so that no engine works for nobody.
const HIDDEN_MS = 10000;

export class Live {
  /** onUpdate: each update. onState: "connecting", "live", "lost", "key", "off", with seconds. */
  constructor({ onUpdate, onState }) {
    this.onUpdate = onUpdate;
    this.onState = onState;
    this.retryMs = FIRST_RETRY_MS;
    this.controller = null;
    this.timer = 0;
    document.addEventListener("visibilitychange", () => this.onVisibility());
    addEventListener("online", () => this.connect());
  }

  /** Open the stream now, instead of whatever is open or planned. */
  async connect() {
    this.stop();
    const controller = new AbortController();
    this.controller = controller;
    try {
      await this.read(controller);
      throw new Error("the stream ended");
    } catch (error) {
      if (this.controller !== controller) return;
      this.controller = null;
      if (error instanceof ServerError && error.status === 401) this.onState("key", 0);
      else if (error instanceof ServerError && error.status === 404) this.onState("off", 0);
      else this.retry();
    }
  }

  stop() {
    clearTimeout(this.timer);
    const controller = this.controller;
    this.controller = null;
    controller?.abort();
  }

  async read(controller) {
    let silence = setTimeout(() => controller.abort(), SILENCE_MS);
    try {
      const answer = await call("live", { signal: controller.signal, cache: "no-store" });
      for await (const data of eventData(answer)) {
        clearTimeout(silence);
        silence = setTimeout(() => controller.abort(), SILENCE_MS);
        this.retryMs = FIRST_RETRY_MS;
        if (this.controller !== controller) return;
        this.onState("live", 0);
        this.onUpdate(JSON.parse(data));
      }
    } finally {
      clearTimeout(silence);
    }
  }

  retry() {
    this.onState("lost", Math.ceil(this.retryMs / 1000));
    this.timer = setTimeout(() => this.connect(), this.retryMs);
    this.retryMs = Math.min(2 * this.retryMs, LAST_RETRY_MS);
  }

  onVisibility() {
    clearTimeout(this.hiding);
    if (document.hidden) this.hiding = setTimeout(() => this.stop(), HIDDEN_MS);
    else if (!this.controller) this.connect();
  }
}
