/** Masks: which cells are open, and how it is said. Rows sum to one; one that sees nothing is the test of a mask. */
import { attentionRow, scoresOf } from "../attention.js";
import { css, ink, makeScale, short } from "../colour.js";
import { h, set } from "../dom.js";
import { figure, makeCard, makeReadings, makeSegments, makeSlider, written } from "./parts.js";
import { added } from "./sums.js";

const AMOUNTS = { infinite: -Infinity, finite: -1e4 };

/** @param {import("./sums.js").Head} head */
export function makeMask({ layer }) {
  const n = layer.nQueries;
  const patterns = { open: () => 1, causal: (i, j) => +(j <= i), empty: (i, j) => +(j <= i && i > 0) };
  const [rowAt, columnAt] = [(at) => Math.floor(at / n), (at) => at % n];
  const masked = (name) => Uint8Array.from({ length: n * n }, (_, at) => patterns[name](rowAt(at), columnAt(at)));
  const state = { mask: masked("causal"), form: "boolean", place: 0 };
  const forms = [["boolean", "boolean"], ["infinite", "−∞ added"], ["finite", "−10⁴ added"]];
  const starts = [["open", "all open"], ["causal", "causal"], ["empty", "causal, row 0 empty"]];
  const form = makeSegments("Form of the mask", forms, (chosen) => change({ form: chosen }));
  const pattern = makeSegments("Pattern", starts, (chosen) => change({ mask: masked(chosen) }));
  const sizes = { min: 0, max: 5, step: 0.25, value: 0 }; // powers of ten
  const size = makeSlider("Scores multiplied by", sizes, (place) => change({ place }));
  const table = h("table", { class: "pl-grid", "aria-label": "Weights, a row for each query" });
  const readings = makeReadings("What the mask does");
  const about = "Click a cell to open or shut it: what query i may see of key j. Shut cells are hatched.";
  const grid = h("div", { class: "pl-scroll" }, table);
  const element = makeCard("Masks", about, pattern.element, form.element, size.element, grid, readings.element);
  const scale = makeScale("absolute", n, [], true);
  const cells = Array.from({ length: n * n }, (_, at) => {
    const click = () => change({ mask: state.mask.map((open, i) => (i === at ? 1 - open : open)) });
    const name = `query ${rowAt(at)}, key ${columnAt(at)}`;
    return h("button", { type: "button", click, "aria-label": name }, h("data", {}));
  });
  const sums = Array.from({ length: n }, () => [h("td", {}), h("td", {})]);
  const heads = [...Array.from({ length: n }, (_, key) => `k${key}`), "sum", "on shut cells"];
  table.append(h("tr", {}, h("td", {}), ...heads.map((text) => h("th", { scope: "col" }, text))));
  for (let i = 0; i < n; i++) {
    const row = cells.slice(i * n, (i + 1) * n).map((cell) => h("td", {}, cell));
    table.append(h("tr", {}, h("th", { scope: "row" }, `q${i}`), ...row, ...sums[i]));
  }

  /** One row under the mask, in its form. */
  function rowOf(query, beta, open) {
    if (state.form === "boolean") return [...attentionRow({ ...layer, mask: { heads: 1, packed: false, bits: state.mask } }, 0, query, beta)];
    const scores = Array.from(open, (_, key) => scoresOf(layer, query, key, beta)[0]);
    return added(scores, open, AMOUNTS[state.form]);
  }

  function change(changes) {
    Object.assign(state, changes);
    if (changes.mask) pattern.mark(starts.map(([name]) => name).find((name) => `${masked(name)}` === `${state.mask}`));
    const times = 10 ** state.place;
    size.tell(`${written(times)}×`);
    const totals = { one: 0, empty: 0, leak: 0, broken: 0 };
    for (let i = 0; i < n; i++) {
      const open = state.mask.subarray(i * n, (i + 1) * n);
      const row = rowOf(i, times * layer.beta, open);
      row.forEach((weight, j) => paintCell(cells[i * n + j], weight, Boolean(open[j]), scale));
      const sum = row.reduce((a, b) => a + b, 0);
      const leak = row.reduce((a, weight, j) => a + (open[j] ? 0 : weight), 0);
      sums[i][0].replaceChildren(figure(sum, short(sum)));
      sums[i][1].replaceChildren(figure(leak, short(leak)));
      totals.one += +(Math.abs(sum - 1) < 1e-9);
      totals.empty += +!open.some(Boolean);
      totals.leak = Math.max(totals.leak, leak || 0);
      totals.broken += row.filter(Number.isNaN).length;
    }
    readings.update([
      ["rows that sum to one", totals.one],
      ["rows that may see nothing", totals.empty],
      ["largest weight on shut cells", totals.leak],
      ["weights that are NaN", totals.broken],
    ]);
  }

  form.mark(state.form);
  change({ mask: state.mask });
  return { element };
}

function paintCell(cell, weight, open, scale) {
  const number = cell.firstChild;
  number.textContent = Number.isNaN(weight) ? "NaN" : short(weight);
  set(number, "value", weight);
  set(cell, "aria-pressed", open);
  cell.classList.toggle("pl-shut", !open);
  const share = Number.isNaN(weight) ? 0 : scale.share(weight);
  cell.style.backgroundColor = Number.isNaN(weight) ? "#d1495b" : css(share);
  cell.style.color = Number.isNaN(weight) ? "#fff" : ink(share);
}
