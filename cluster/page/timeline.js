// The batch over time: a lane for each slot, and in it the requests that held it, one after another.

import { colours, fit, onColours } from "./palette.js";

// Many lanes get more room, in one step, so that the page does not wander.
const LOW = 156;
const HIGH = 208;
const FEW_LANES = 16;
const AXIS = 18;
const FONT = "Inter, system-ui, sans-serif";
const MIN_LANES = 8;
const PIXELS_PER_S = 44;
// Bars are drawn this late, so that their newest part has arrived when its moment is drawn.
const DELAY_S = 0.7;
// A request that was not in a step or two is still in the same bar.
const JOIN_S = 0.25;
const DECODE = 1;
const KINDS = ["prefill", "decode", "recompute"];
const calm = matchMedia("(prefers-reduced-motion: reduce)");

export class Timeline {
  /** now: the gateway's clock in seconds. isOwn: whether a label is a request of this page. */
  constructor(canvas, { now, isOwn }) {
    this.canvas = canvas;
    this.now = now;
    this.isOwn = isOwn;
    this.spans = [];
    this.numLanes = MIN_LANES;
    this.height = LOW;
    this.hidden = 0;
    this.frame = 0;
    this.width = 0;
    this.observer = new ResizeObserver(([entry]) => {
      this.width = entry.contentRect.width;
      this.draw();
    });
    this.observer.observe(canvas);
    this.forget = onColours(() => this.draw());
  }

  /** spans: [lane, label, choice, kind, tokens, from, to] in the order in which they ended. */
  add(spans, hidden) {
    this.hidden = hidden;
    for (const [lane, label, choice, kind, tokens, from, to] of spans) {
      this.spans.push({ lane, label, choice, kind, tokens, from, to });
    }
    if (calm.matches) this.draw();
    else this.animate();
  }

  close() {
    cancelAnimationFrame(this.frame);
    this.observer.disconnect();
    this.forget();
  }

  animate() {
    // While nothing is in sight nothing moves, and an idle page costs nothing.
    this.frame ||= requestAnimationFrame(() => {
      this.frame = 0;
      this.draw();
      if (this.spans.length) this.animate();
    });
  }

  draw() {
    if (!this.width) return;
    const now = this.now() - DELAY_S;
    const windowS = this.width / PIXELS_PER_S;
    this.spans = this.spans.filter((span) => span.to > now - windowS - 1);
    const highest = this.spans.reduce((most, span) => Math.max(most, span.lane + 1), MIN_LANES);
    this.numLanes = Math.min(64, 2 ** Math.ceil(Math.log2(highest)));
    this.height = this.numLanes > FEW_LANES ? HIGH : LOW;
    this.canvas.style.height = `${this.height}px`;
    const context = fit(this.canvas, this.width, this.height);
    const pitch = (this.height - AXIS) / this.numLanes;
    this.drawLanes(context, pitch);
    this.drawAxis(context, windowS);
    for (const bar of this.bars()) this.drawBar(context, bar, pitch, now);
  }

  drawLanes(context, pitch) {
    context.fillStyle = colours.sunk;
    const gap = pitch > 6 ? 2 : 1;
    for (let lane = 0; lane < this.numLanes; lane += 1) {
      context.fillRect(0, lane * pitch, this.width, pitch - gap);
    }
  }

  drawAxis(context, windowS) {
    context.font = `11px ${FONT}`;
    context.textBaseline = "alphabetic";
    for (let ago = 0; ago < windowS; ago += 5) {
      const x = this.width - ago * PIXELS_PER_S;
      context.fillStyle = colours.card;
      if (ago) context.fillRect(x - 0.5, 0, 1, this.height - AXIS);
      context.fillStyle = colours.soft;
      context.textAlign = ago ? "center" : "right";
      if (x > 16) context.fillText(ago ? `${ago} s ago` : "now", x, this.height - 4);
    }
    if (this.hidden) {
      context.textAlign = "left";
      context.fillText(`${this.hidden} more not drawn`, 0, this.height - 4);
    }
  }

  /** Neighbouring spans of one request in one lane, as one bar with parts. */
  bars() {
    const open = new Map();
    const bars = [];
    for (const span of this.spans) {
      const last = open.get(span.lane);
      const isSame = last && last.label === span.label && last.choice === span.choice;
      if (isSame && span.from - last.to < JOIN_S) {
        const part = last.parts.at(-1);
        if (part.kind === span.kind && span.kind === DECODE) part.to = span.to;
        else last.parts.push({ ...span });
        last.to = span.to;
        continue;
      }
      const bar = { lane: span.lane, label: span.label, choice: span.choice, from: span.from,
        to: span.to, parts: [{ ...span }] };
      open.set(span.lane, bar);
      bars.push(bar);
    }
    return bars;
  }

  drawBar(context, bar, pitch, now) {
    const at = (time) => this.width - (now - time) * PIXELS_PER_S;
    const gap = pitch > 6 ? 2 : 1;
    const [y, height] = [bar.lane * pitch, pitch - gap];
    const [left, right] = [at(bar.from), at(Math.min(bar.to, now))];
    if (right <= 0 || bar.from > now) return;
    const width = Math.max(1.5, right - left - 0.5);
    context.save();
    context.beginPath();
    context.roundRect(left, y, width, height, Math.min(4, height / 3, width / 2));
    context.clip();
    const isOdd = (bar.label.charCodeAt(bar.label.length - 1) + bar.choice) % 2;
    let edge = left;
    for (const part of bar.parts) {
      const name = KINDS[part.kind] || "decode";
      context.fillStyle = colours[name === "decode" && isOdd ? "decode-2" : name];
      const end = Math.min(at(part.to), right);
      context.fillRect(edge, y, end - edge + 0.5, height);
      edge = end;
      if (part.kind !== DECODE && end - at(part.from) > 4) {
        context.fillStyle = colours.card;
        context.fillRect(end - 0.5, y, 0.75, height);
      }
    }
    const written = bar.parts.find((part) => part.kind === DECODE) || bar.parts[0];
    const from = Math.max(left, at(written.from), 0);
    this.drawLabel(context, bar, { left: from, y, width: right - from, height });
    context.restore();
    if (this.isOwn(bar.label)) {
      // Around a thin bar, not over it.
      const inset = height > 8 ? 0.5 : -1;
      context.strokeStyle = colours.you;
      context.lineWidth = height > 8 ? 1.5 : 1;
      context.beginPath();
      context.roundRect(left + inset, y + inset, Math.max(2, width - 2 * inset),
        height - 2 * inset, Math.min(4, height / 2));
      context.stroke();
    }
  }

  drawLabel(context, bar, { left, y, width, height }) {
    const text = this.isOwn(bar.label) ? "you" : bar.label;
    if (height < 12 || width < 8 * text.length + 10) return;
    context.fillStyle = colours.card;
    context.font = `600 ${Math.min(11.5, height - 3)}px ${FONT}`;
    context.textAlign = "left";
    context.textBaseline = "middle";
    context.fillText(text, left + 7, y + height / 2 + 0.5);
  }
}
