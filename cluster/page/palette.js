// The style sheet's colours, for canvases; read again when the room gets dark or light.

const NAMES = ["ink", "soft", "line", "card", "sunk", "prefill", "decode", "decode-2", "recompute",
  "you", "free", "cached", "held", "shared"];
const listeners = new Set();
export const colours = {};

function read() {
  const style = getComputedStyle(document.documentElement);
  for (const name of NAMES) colours[name] = style.getPropertyValue(`--${name}`).trim();
}

/** Called after the colours changed. */
export function onColours(listener) {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

read();
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
  read();
  for (const listener of listeners) listener();
});

/** Fits a canvas to its box on this screen; returns its context, in CSS pixels. */
export function fit(canvas, width, height) {
  const ratio = devicePixelRatio || 1;
  const [w, h] = [Math.round(width * ratio), Math.round(height * ratio)];
  if (canvas.width !== w || canvas.height !== h) {
    canvas.width = w;
    canvas.height = h;
  }
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, width, height);
  return context;
}
