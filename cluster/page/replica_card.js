// One replica: its figures, its batch over time and its blocks.

import { BlockMap } from "./block_map.js";
import { duration, percent, rate, setFigure, whole } from "./format.js";
import { Timeline } from "./timeline.js";

const STATES = {
  active: "serving",
  starting: "not taking requests",
  suspect: "silent",
  draining: "leaving",
  gone: "gone",
};

/** A replica's name, short enough to say. */
export const shortName = (id) => (id.length > 10 ? id.slice(-6) : id);

const titleOf = (id) => (/^replica/i.test(id) ? id : `Replica ${shortName(id)}`);

export class ReplicaCard {
  constructor(id, timelineOptions) {
    const template = document.getElementById("replica-card");
    this.element = template.content.firstElementChild.cloneNode(true);
    this.element.setAttribute("aria-label", titleOf(id));
    this.element.dataset.replica = id;
    this.id = id;
    this.find = (selector) => this.element.querySelector(selector);
    this.timeline = new Timeline(this.find(".timeline"), timelineOptions);
    this.map = new BlockMap(this.find(".map"));
  }

  update(replica) {
    this.title(replica);
    const set = (name, pair) => setFigure(this.find(`[data-figure="${name}"]`), pair);
    const cap = replica.max_running;
    set("batch", [whole(replica.running), cap ? `of ${whole(cap)}` : ""]);
    const rows = cap ? Math.min(1, replica.rows / cap) : 0;
    this.find(".occupancy i").style.width = `${100 * rows}%`;
    set("waiting", [whole(replica.waiting), ""]);
    set("rate", [rate(replica.output_tokens_per_s), "tok/s"]);
    set("step", duration(replica.step_ms));
    set("ttft", duration(replica.ttft?.p50));
    set("tpot", duration(replica.tpot?.p50));
    this.blocks(replica);
    if (!replica.view) return;
    this.timeline.add(replica.view.spans, replica.view.hidden);
    if (replica.view.cells) this.map.set(replica.view.cells);
    const perCell = replica.view.blocks_per_cell;
    const hits = replica.hit_tokens / replica.prompt_tokens;
    this.find(".about").textContent = [
      "",
      perCell > 1 ? `${perCell} to a cell` : "",
      hits > 0 ? `${percent(hits, 1)} of prompt tokens found cached` : "",
    ].filter((text, index) => text || !index).join(" \u00b7 ");
    this.find(".timeline").setAttribute("aria-label",
      `Batch over time: ${replica.running} running, ${replica.waiting} waiting`);
  }

  close() {
    this.timeline.close();
    this.map.close();
    this.element.remove();
  }

  title({ role, state, epoch }) {
    const text = [shortName(this.id), role, state, epoch].join();
    if (this.titled === text) return;
    this.titled = text;
    const small = document.createElement("small");
    small.textContent = role === "mixed" ? "" : role;
    this.find("h2").replaceChildren(titleOf(this.id), small);
    this.find(".state").dataset.state = state;
    const restarts = epoch > 1 ? ` \u00b7 engine core ${epoch}` : "";
    this.find(".state-text").textContent = (STATES[state] || state) + restarts;
  }

  blocks(replica) {
    const held = replica.num_blocks - replica.free_blocks;
    const parts = [
      ["held", "in use", held - replica.shared_blocks],
      ["shared", "shared", replica.shared_blocks],
      ["cached", "cached", replica.cached_blocks],
      ["free", "free", replica.free_blocks - replica.cached_blocks],
    ];
    const text = parts.map(([, word, number]) => `${whole(number)} ${word}`).join(", ");
    if (this.counted === text) return;
    this.counted = text;
    this.find(".blocks .keys").replaceChildren(...parts.map(([kind, word, number]) => {
      const key = document.createElement("i");
      key.className = `key ${kind}`;
      const entry = document.createElement("span");
      entry.append(key, `${word} ${whole(number)}`);
      return entry;
    }));
    const used = percent(held, replica.num_blocks);
    this.find(".map").setAttribute("aria-label", `KV blocks, ${used} in use: ${text}`);
  }
}
