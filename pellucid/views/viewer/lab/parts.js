/** What the lab's pages are put together from: sliders, and numbers that are text. */
import { h, say, set } from "../dom.js";

/**
 * A number in a few digits; null is what JSON has for a number that is none.
 * @param {number | string | null} value
 */
export function written(value) {
  if (typeof value === "string") return value;
  if (value === null || Number.isNaN(value)) return "NaN";
  if (!Number.isFinite(value)) return value > 0 ? "∞" : "−∞";
  const size = Math.abs(value);
  const large = size >= 1e6 || (size > 0 && size < 1e-4);
  const text = Number.isInteger(value) && !large ? value.toLocaleString("en") : String(Number(value.toPrecision(4)));
  return (large ? value.toExponential(2).replace(/\.?0*e\+?/, "e") : text).replaceAll("-", "−");
}

/** A number as an element: a few digits to read, all of them in its value. */
export const figure = (value, text = written(value)) => h("data", { value: String(value) }, text);

/** Names with numbers: [name, value, text?]. */
export function makeReadings(label) {
  const element = h("dl", { class: "pl-readings", "aria-label": label });
  const update = (pairs) => {
    const rows = pairs.map(([name, ...number]) => h("div", {}, h("dt", {}, name), h("dd", {}, figure(...number))));
    element.replaceChildren(...rows);
  };
  return { element, update };
}

/**
 * A range with its name and its number. `input` gets the place; `tell` writes what it stands for.
 * @param {string} name @param {{min: number, max: number, step?: number | string, value: number}} bounds
 * @param {(place: number) => void} input
 */
export function makeSlider(name, { min, max, step = 1, value }, input) {
  const number = h("span", { class: "pl-number" });
  const listen = () => input(Number(range.value));
  const range = h("input", { type: "range", "aria-label": name, min, max, step, value, input: listen });
  const element = h("label", { class: "pl-slider" }, h("span", {}, name), number, range);
  const tell = (text) => {
    say(number, text);
    set(range, "aria-valuetext", text);
  };
  return { element, range, tell };
}

/** Buttons, one of which is pressed. @param {string[][]} choices */
export function makeSegments(name, choices, chosen) {
  const buttons = choices.map(([value, text]) => {
    const click = () => press(value);
    return h("button", { type: "button", "data-value": value, click }, text);
  });
  const element = h("div", { class: "pl-segments", role: "group", "aria-label": name }, ...buttons);
  const mark = (value) => buttons.forEach((button) => set(button, "aria-pressed", button.dataset.value === value));
  function press(value) {
    mark(value);
    chosen(value);
  }
  return { element, mark };
}

/** Weights as bars, each with its number; `before` is a line across the bar. */
export function makeWeights(label) {
  const element = h("ol", { class: "pl-top", "aria-label": label });
  /** @param {ArrayLike<number>} row @param {ArrayLike<number> | null} before @param {number | null} chosen */
  const update = (row, before = null, chosen = null) => {
    const items = Array.from(row, (weight, key) => {
      const bar = h("span", { class: "pl-bar", "aria-hidden": "true" }, before && h("i", {}), h("i", {}));
      if (before) bar.firstChild.style.width = `${100 * before[key]}%`;
      bar.lastChild.style.width = `${100 * weight}%`;
      const name = h("span", { class: key === chosen ? "pl-chosen" : null }, `key ${key}`);
      return h("li", {}, h("div", {}, name, bar, h("span", { class: "pl-number" }, figure(weight, weight.toFixed(4)))));
    });
    element.replaceChildren(...items);
  };
  return { element, update };
}

/** A card of the page. */
export function makeCard(title, about, ...children) {
  return h("section", { class: "pl-card", "aria-label": title }, h("h3", {}, title), h("p", {}, about), ...children);
}

/** Draw now, and again when the place gets another size or the page other colours. */
export function keepDrawn(element, draw) {
  new ResizeObserver(draw).observe(element);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
}
