// Numbers as people read them.

const DASH = "\u2013";
const grouped = new Intl.NumberFormat("en");

export const whole = (number) => grouped.format(Math.round(number));

/** Tokens per second: one decimal while it is small. */
export const rate = (number) => (number > 0 && number < 10 ? number.toFixed(1) : whole(number));

export const percent = (part, all) => (all ? `${Math.round((100 * part) / all)}%` : DASH);

/** Milliseconds as [number, unit]. */
export function duration(ms) {
  if (ms === null || ms === undefined || ms === 0) return [DASH, ""];
  if (ms >= 10000) return [(ms / 1000).toFixed(1), "s"];
  if (ms >= 1000) return [(ms / 1000).toFixed(2), "s"];
  return [ms >= 100 ? ms.toFixed(0) : ms.toFixed(1), "ms"];
}

export const plain = (pair) => pair.filter(Boolean).join(" ");

export const time = (unixSeconds) =>
  new Date(1000 * unixSeconds).toLocaleTimeString("en-GB", { hour12: false });

/** Fills an element with a figure and, smaller, its unit. */
export function setFigure(element, [figure, unit]) {
  const text = unit ? `${figure} ${unit}` : figure;
  if (element.dataset.text === text) return;
  element.dataset.text = text;
  element.replaceChildren(figure);
  if (unit) {
    const small = document.createElement("small");
    small.textContent = unit;
    element.append(" ", small);
  }
}
