// The KV blocks of a replica as a map: every cell a block, or a few of them where there are many.

import { colours, fit, onColours } from "./palette.js";

const KINDS = ["free", "cached", "held", "shared"];
const LEVELS = 64;
const MAX_HEIGHT = 100;
const SIZES = [16, 14, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3];

export class BlockMap {
  constructor(canvas) {
    this.canvas = canvas;
    this.cells = new Uint8Array();
    this.text = "";
    this.width = 0;
    this.observer = new ResizeObserver(([entry]) => {
      this.width = entry.contentRect.width;
      this.draw();
    });
    this.observer.observe(canvas);
    this.forget = onColours(() => this.draw());
  }

  /** cells: base64 of a byte for each cell, kind * 64 + share of its blocks that are not free. */
  set(cells) {
    if (cells === this.text) return;
    this.text = cells;
    this.cells = Uint8Array.from(atob(cells), (character) => character.charCodeAt(0));
    this.draw();
  }

  close() {
    this.observer.disconnect();
    this.forget();
  }

  draw() {
    if (!this.width || !this.cells.length) return;
    const { size, columns, rows } = this.layout();
    const height = rows * size;
    this.canvas.style.height = `${height}px`;
    const context = fit(this.canvas, this.width, height);
    const gap = size > 6 ? 2 : 1;
    this.cells.forEach((cell, index) => {
      const [x, y] = [(index % columns) * size, Math.floor(index / columns) * size];
      context.globalAlpha = 1;
      context.fillStyle = colours.free;
      context.fillRect(x, y, size - gap, size - gap);
      const kind = cell >> 6;
      if (!kind) return;
      context.globalAlpha = 0.35 + (0.65 * (cell % LEVELS)) / (LEVELS - 1);
      context.fillStyle = colours[KINDS[kind]];
      context.fillRect(x, y, size - gap, size - gap);
    });
    context.globalAlpha = 1;
  }

  layout() {
    for (const size of SIZES) {
      const columns = Math.max(1, Math.floor(this.width / size));
      const rows = Math.ceil(this.cells.length / columns);
      if (rows * size <= MAX_HEIGHT || size === SIZES.at(-1)) return { size, columns, rows };
    }
    return null;
  }
}
