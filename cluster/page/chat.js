// The conversation: what was said, what is being said, and how to stop it.

import { ServerError, call } from "./api.js";
import { eventData } from "./event_stream.js";
import { duration, plain, rate, whole } from "./format.js";
import { markdown } from "./markdown.js";

const SUGGESTIONS = [
  "Name three primary colors.",
  "Explain in three sentences why the sky is blue.",
  "Write a short poem about rain on a tiled roof.",
];

const byId = (id) => document.getElementById(id);
const randomId = () => [...crypto.getRandomValues(new Uint8Array(12))]
  .map((byte) => byte.toString(16).padStart(2, "0")).join("");

export class Chat {
  /** onRequest: told the id of each request; onUnauthorised: the server wants a (better) key. */
  constructor({ onRequest, onUnauthorised }) {
    this.model = null;
    this.turns = [];
    this.running = null;
    this.onRequest = onRequest;
    this.onUnauthorised = onUnauthorised;
    this.list = byId("messages");
    this.prompt = byId("prompt");
    this.button = byId("send");
    this.listen();
    this.suggest();
    this.summarise();
    this.refresh();
  }

  listen() {
    byId("composer").addEventListener("submit", (event) => {
      event.preventDefault();
      if (this.running) this.running.abort();
      else this.send(this.prompt.value);
    });
    this.prompt.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
      event.preventDefault();
      if (!this.running) this.send(this.prompt.value);
    });
    this.prompt.addEventListener("input", () => this.refresh());
    document.addEventListener("keydown", (event) => {
      if (event.key === "Escape") this.running?.abort();
    });
    byId("clear").addEventListener("click", () => this.clear());
    for (const id of ["temperature", "max-tokens", "system"]) {
      byId(id).addEventListener("input", () => this.summarise());
    }
  }

  suggest() {
    for (const text of SUGGESTIONS) {
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = text;
      button.addEventListener("click", () => this.send(text));
      const item = document.createElement("li");
      item.append(button);
      byId("suggestions").append(item);
    }
  }

  /** The model's card from /v1/models. */
  setModel(card) {
    this.model = card.id;
    const field = byId("max-tokens");
    field.max = card.max_model_len;
    // Half of what the model can hold, so that there is room for what was said.
    field.value = Math.min(field.value, Math.floor(card.max_model_len / 2)) || "";
    this.summarise();
    this.refresh();
  }

  refresh() {
    const action = this.running ? "stop" : "send";
    this.button.dataset.action = action;
    this.button.textContent = this.running ? "Stop" : "Send";
    this.button.disabled = !this.running && (!this.model || !this.prompt.value.trim());
    for (const button of byId("suggestions")?.querySelectorAll("button") || []) {
      button.disabled = !this.model;
    }
    this.prompt.style.height = "auto";
    this.prompt.style.height = `${this.prompt.scrollHeight}px`;
  }

  summarise() {
    const system = byId("system").value.trim() ? " \u00b7 system prompt" : "";
    const most = byId("max-tokens").value;
    const limit = most ? `up to ${most} tokens` : "as long as it fits";
    byId("settings-now").textContent =
      `temperature ${byId("temperature").value} \u00b7 ${limit}${system}`;
  }

  clear() {
    this.running?.abort();
    this.turns = [];
    this.list.replaceChildren(byId("welcome") || this.welcome);
    this.prompt.focus();
  }

  async send(text) {
    const said = text.trim();
    if (!said || !this.model || this.running) return;
    this.welcome ||= byId("welcome");
    this.welcome.remove();
    this.turns.push({ role: "user", content: said });
    this.addMessage("user").textContent = said;
    this.prompt.value = "";
    const message = this.addMessage("assistant");
    const answer = new Answer(message, this.list);
    this.running = new AbortController();
    this.list.setAttribute("aria-busy", "true");
    this.refresh();
    try {
      await this.stream(answer, this.running.signal);
      answer.end();
    } catch (error) {
      this.fail(answer, error);
    }
    if (answer.text) this.turns.push({ role: "assistant", content: answer.text });
    else this.turns.pop();
    this.running = null;
    this.list.setAttribute("aria-busy", "false");
    this.refresh();
  }

  fail(answer, error) {
    if (error.name === "AbortError") return answer.end("stopped");
    if (error instanceof ServerError && error.status === 401) this.onUnauthorised();
    const isKnown = error instanceof ServerError;
    return answer.fail(isKnown ? error.message : "The connection to the server was lost.");
  }

  async stream(answer, signal) {
    const id = randomId();
    this.onRequest(id);
    const system = byId("system").value.trim();
    const before = system ? [{ role: "system", content: system }] : [];
    const response = await call("v1/chat/completions", {
      method: "POST",
      signal,
      headers: { "Content-Type": "application/json", "X-Request-Id": id },
      body: JSON.stringify({
        model: this.model,
        messages: [...before, ...this.turns],
        stream: true,
        stream_options: { include_usage: true },
        temperature: Number(byId("temperature").value),
        max_tokens: Math.round(Number(byId("max-tokens").value)) || null,
      }),
    });
    for await (const data of eventData(response)) {
      if (data === "[DONE]") return;
      const chunk = JSON.parse(data);
      if (chunk.error) throw new ServerError(chunk.error.message, 500);
      answer.take(chunk);
    }
    throw new Error("the stream ended early");
  }

  addMessage(role) {
    const message = document.createElement("div");
    message.className = `message ${role}`;
    this.list.append(message);
    message.scrollIntoView({ block: "end" });
    return message;
  }
}

/** One answer while it comes: drawn at most once a frame, with what it took underneath. */
class Answer {
  constructor(message, list) {
    this.message = message;
    this.list = list;
    this.text = "";
    this.usage = null;
    this.reason = "";
    this.startedAt = performance.now();
    this.firstAt = 0;
    this.body = document.createElement("div");
    this.body.className = "text";
    this.meta = document.createElement("p");
    this.meta.className = "meta";
    message.append(this.body, this.meta);
    message.classList.add("running");
    this.frame = 0;
  }

  take(chunk) {
    const choice = chunk.choices?.[0];
    if (chunk.usage) this.usage = chunk.usage;
    if (choice?.finish_reason) this.reason = choice.finish_reason;
    const piece = choice?.delta?.content;
    if (!piece) return;
    this.firstAt ||= performance.now();
    this.lastAt = performance.now();
    this.text += piece;
    this.frame ||= requestAnimationFrame(() => this.draw());
  }

  draw() {
    this.frame = 0;
    const list = this.list;
    const isAtEnd = list.scrollHeight - list.scrollTop - list.clientHeight < 80;
    this.body.replaceChildren(...markdown(this.text));
    if (isAtEnd) list.scrollTop = list.scrollHeight;
  }

  end(note = "") {
    cancelAnimationFrame(this.frame);
    this.draw();
    this.message.classList.remove("running");
    const facts = [];
    const tokens = this.usage?.completion_tokens;
    if (tokens) facts.push(`${whole(tokens)} tokens`);
    if (this.firstAt) facts.push(`first after ${plain(duration(this.firstAt - this.startedAt))}`);
    const seconds = (this.lastAt - this.firstAt) / 1000;
    if (tokens > 1 && seconds > 0) facts.push(`${rate((tokens - 1) / seconds)} tokens/s`);
    if (this.reason === "length") facts.push("cut at max tokens");
    if (note) facts.push(note);
    this.meta.textContent = facts.join(" \u00b7 ");
    this.list.scrollTop = this.list.scrollHeight;
  }

  fail(message) {
    this.end(message);
    this.message.classList.add("failed");
  }
}
