// The cluster beside the chat: sums, percentiles, a card for each replica, and what happened.

import { duration, percent, rate, setFigure, time, whole } from "./format.js";
import { ReplicaCard, shortName } from "./replica_card.js";

const MAX_EVENTS = 40;
const byId = (id) => document.getElementById(id);

export class ClusterView {
  /** isOwn: whether a request's label belongs to this page. */
  constructor({ isOwn }) {
    this.cards = new Map();
    this.isOwn = isOwn;
    this.lastEvent = 0;
    this.offsetS = Infinity;
  }

  /** The gateway's clock now, as far as updates that were not held up tell. */
  now() {
    return performance.now() / 1000 - this.offsetS;
  }

  /** A stream that was opened anew may come from another gateway, with another clock. */
  restart() {
    this.offsetS = Infinity;
    this.lastEvent = 0;
    byId("events").replaceChildren();
  }

  update(update) {
    if (update.at !== undefined) {
      this.offsetS = Math.min(this.offsetS, performance.now() / 1000 - update.at);
    }
    if (update.replicas) {
      this.showReplicas(update.replicas);
      this.showSums(update.replicas);
      this.showLatency(update.cluster);
    }
    this.showEvents(update.events);
  }

  showReplicas(replicas) {
    const present = new Set(replicas.map((replica) => replica.id));
    for (const [id, card] of this.cards) {
      if (present.has(id)) continue;
      card.close();
      this.cards.delete(id);
    }
    for (const replica of replicas) {
      if (!this.cards.has(replica.id)) {
        const card = new ReplicaCard(replica.id, { now: () => this.now(), isOwn: this.isOwn });
        this.cards.set(replica.id, card);
        byId("replicas").append(card.element);
      }
      this.cards.get(replica.id).update(replica);
    }
    byId("no-replicas").hidden = replicas.length > 0;
  }

  showSums(replicas) {
    const sum = (name) => replicas.reduce((total, replica) => total + replica[name], 0);
    const blocks = sum("num_blocks");
    setFigure(byId("sum-rate"), [rate(sum("output_tokens_per_s")), ""]);
    setFigure(byId("sum-running"), [whole(sum("running")), ""]);
    setFigure(byId("sum-waiting"), [whole(sum("waiting")), ""]);
    setFigure(byId("sum-kv"), [percent(blocks - sum("free_blocks"), blocks), ""]);
  }

  showLatency({ ttft, tpot }) {
    for (const [id, latency] of [["ttft", ttft], ["tpot", tpot]]) {
      const cells = byId(id).querySelectorAll("td");
      ["p50", "p90", "p99"].forEach((name, index) => {
        setFigure(cells[index], duration(latency?.[name]));
      });
    }
    const num = ttft?.num || 0;
    const requests = num === 1 ? "request" : "requests";
    byId("latency-num").textContent = num ? `\u00b7 ${whole(num)} ${requests}` : "";
  }

  showEvents(events) {
    const list = byId("events");
    for (const event of events) {
      if (event.number <= this.lastEvent) continue;
      this.lastEvent = event.number;
      const item = document.createElement("li");
      item.dataset.kind = event.kind;
      const when = document.createElement("time");
      when.textContent = time(event.at);
      const where = document.createElement("span");
      where.className = "where";
      where.textContent = shortName(event.replica_id);
      const what = document.createElement("span");
      what.className = "what";
      what.textContent = event.text;
      item.append(when, where, what);
      list.prepend(item);
    }
    while (list.childElementCount > MAX_EVENTS) list.lastElementChild.remove();
    byId("no-events").hidden = list.childElementCount > 0;
  }
}
