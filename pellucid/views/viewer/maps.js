/**
 * The whole map of a layer and head, with a zoom: where a pixel stands for several weights it shows the largest.
 *
 * @typedef {import("./viewer.js").Seen} Seen
 * @typedef {import("./viewer.js").Actions} Actions
 * @typedef {{query: number, key: number, queries: number, keys: number}} Window what is in sight: from, and how many
 * @typedef {{for: string, values: Float32Array, rows: number, columns: number, asked: number}} Pooled
 */
import { headRow, seenKeys } from "./attention.js";
import { makeScale, precise } from "./colour.js";
import { h, say, set } from "./dom.js";
import { cells, drawMatrix } from "./draw.js";
import { queryLabel, visible } from "./streams.js";
import { makeWork } from "./work.js";

const LEAST = 8; // tokens in sight, at the nearest
const SPREAD = 16; // every so many rows are computed first: the whole is seen early

/** @param {Actions} actions */
export function makeMatrix(actions) {
  const canvas = h("canvas", { role: "application", tabindex: 0 });
  const box = h("div", { class: "pl-fit" }, canvas);
  const readout = h("p", { class: "pl-readout" });
  const progress = h("p", { class: "pl-quiet" });
  const zooming = h("div", { class: "pl-segments", role: "group", "aria-label": "Zoom of the map" });
  for (const [factor, text, name] of [
    ["1", "whole", "Whole map"],
    ["2", "−", "Map: zoom out"],
    ["0.5", "+", "Map: zoom in"],
  ]) {
    const click = () => zoomTo(factor === "1" ? 1 : near * Number(factor));
    zooming.append(h("button", { type: "button", "aria-label": name, click }, text));
  }
  const element = h(
    "section",
    { class: "pl-card pl-matrix", "aria-label": "Whole map" },
    h("div", { class: "pl-between" }, h("h3", {}, "Whole map"), zooming),
    h("p", { class: "pl-quiet" }, "A row for each query, a column for each key. Point at a row to see it."),
    box,
    readout,
    progress,
  );
  /** @type {Pooled} */
  let pooled = { for: "", values: new Float32Array(0), rows: 0, columns: 0, asked: 0 };
  /** @type {Seen | null} */
  let shown = null;
  let near = 1; // the share of each side that is in sight
  /** @type {Window} */
  let sight = { query: 0, key: 0, queries: 1, keys: 1 };
  const work = makeWork(() => shown && draw(shown));

  function zoomTo(share) {
    if (!shown) return;
    const { nQueries, nKeys } = shown.look.layer;
    near = Math.min(1, Math.max(share, LEAST / Math.max(nQueries, nKeys)));
    sight = { query: -1, key: -1, queries: 0, keys: 0 };
    compute(shown);
    draw(shown);
  }

  /** @returns {[number, number] | null} */
  function cellAt(event) {
    if (!shown) return null;
    const area = canvas.getBoundingClientRect();
    const query = sight.query + Math.floor(((event.clientY - area.top) / area.height) * sight.queries);
    const key = sight.key + Math.floor(((event.clientX - area.left) / area.width) * sight.keys);
    const { nQueries, nKeys } = shown.look.layer;
    return query < 0 || key < 0 || query >= nQueries || key >= nKeys ? null : [query, key];
  }
  canvas.addEventListener("pointermove", (event) => {
    const cell = cellAt(event);
    if (!cell || !shown) return;
    tell(cell);
    actions.point(shown.look.queries.name, cell[0], "query");
  });
  canvas.addEventListener("click", (event) => {
    const cell = cellAt(event);
    if (cell) actions.change({ token: cell[0], key: cell[1], pin: true });
  });
  canvas.addEventListener("keydown", (event) => {
    const step = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
    if (event.key === "+" || event.key === "-") zoomTo(event.key === "+" ? near / 2 : near * 2);
    else if (step && shown) {
      const { state, look } = shown;
      const within = (x, n) => Math.min(Math.max(x, 0), n - 1);
      const token = within(state.token + step[0], look.layer.nQueries);
      const key = step[1] ? within((state.key ?? -step[1]) + step[1], look.layer.nKeys) : state.key;
      actions.change({ token, key, pin: true });
      tell([token, key ?? 0]);
    } else return;
    event.preventDefault();
  });
  box.addEventListener(
    "wheel",
    (event) => {
      if (event.ctrlKey) zoomTo(event.deltaY < 0 ? near / 1.25 : near * 1.25);
      else if (near < 1) pan(event.deltaY, event.deltaX);
      else return;
      event.preventDefault();
    },
    { passive: false },
  );

  function pan(down, across) {
    if (!shown) return;
    const { nQueries, nKeys } = shown.look.layer;
    const move = (from, many, n, by) => Math.round(Math.min(Math.max(from + (by * many) / 600, 0), n - many));
    sight.query = move(sight.query, sight.queries, nQueries, down);
    sight.key = move(sight.key, sight.keys, nKeys, across);
    compute(shown, false);
    draw(shown);
  }

  function tell([query, key]) {
    if (!shown) return;
    const { trace, state, look } = shown;
    const weight = headRow(look.layer, state.head, query, look.beta, look.changed)[key];
    say(readout, `${queryLabel(trace, look.layer, query)} → ${visible(look.keys.labels[key])}: ${precise(weight)}`);
  }

  /** Compute the map if it is another one, piece by piece. @param {Seen} seen */
  function compute(seen, follow = true) {
    const { state, look } = seen;
    const { layer } = look;
    if (follow) sight = followed(sight, near, layer, state);
    const width = Math.max(box.clientWidth, 100);
    const what = [state.trace, state.layer, state.head, String(look.beta), state.edits, state.off, sight, width];
    const wanted = JSON.stringify(what);
    if (pooled.for === wanted) return;
    const [rows, columns] = [Math.min(sight.queries, Math.round(width)), Math.min(sight.keys, Math.round(width))];
    pooled = { for: wanted, values: new Float32Array(rows * columns), rows, columns, asked: 0 };
    work.start(pool(pooled, { ...sight }, layer, state.head, look.beta, look.changed));
  }

  /** @param {Seen} seen */
  function draw(seen) {
    shown = seen;
    const { state, look } = seen;
    const { nQueries, nKeys, name } = look.layer;
    if (!pooled.for) return;
    const width = Math.max(box.clientWidth, 100);
    const least = Math.min(20 * sight.queries, width / 2);
    const height = Math.round(Math.min(Math.max((width * sight.queries) / sight.keys, least), 1.25 * width));
    const scale = makeScale(state.scale, seenKeys(look.layer), pooled.values, true);
    const image = cells(pooled.values, pooled.rows, pooled.columns, scale);
    const exact = pooled.rows === sight.queries && pooled.columns === sight.keys;
    const key = state.key === null || state.key < sight.key || state.key >= sight.key + sight.keys ? null : state.key - sight.key;
    const query = state.token - sight.query;
    const there = query >= 0 && query < sight.queries ? query : null;
    const map = exact ? pooled.values : null;
    drawMatrix(canvas, { width, height, image, map, nQueries: sight.queries, nKeys: sight.keys, scale, query: there, key });
    const whole = near === 1 ? "" : `, queries ${sight.query}–${sight.query + sight.queries - 1}, keys ${sight.key}–${sight.key + sight.keys - 1}`;
    const keys = "Arrow keys choose a query and a key, plus and minus zoom";
    set(canvas, "aria-label", `Attention map of ${name}, ${nQueries} queries by ${nKeys} keys${whole}. ${keys}.`);
    const done = exact ? "" : "Where a pixel stands for several weights it shows the largest.";
    say(progress, pooled.asked < sight.queries ? `${pooled.asked} of ${sight.queries} queries so far …` : done);
  }
  return { element, see: (seen) => (shown = seen), compute, draw, stop: work.stop };
}

/** What is in sight, with the query and the key in it. @returns {Window} */
function followed(sight, near, { nQueries, nKeys }, { token, key }) {
  const [queries, keys] = [Math.max(1, Math.round(near * nQueries)), Math.max(1, Math.round(near * nKeys))];
  const hold = (from, many, n, at) => {
    const inside = from >= 0 && at >= from && at < from + many;
    return Math.min(Math.max(inside ? from : Math.round(at - many / 2), 0), n - many);
  };
  const middle = key ?? Math.min(token + nKeys - nQueries, nKeys - 1);
  const same = sight.queries === queries && sight.keys === keys;
  const column = same && key === null ? Math.min(sight.key, nKeys - keys) : hold(same ? sight.key : -1, keys, nKeys, Math.max(middle, 0));
  return { query: hold(same ? sight.query : -1, queries, nQueries, token), key: column, queries, keys };
}

/** One query of each row of pixels first, then all others. @param {Pooled} pooled @param {Window} sight */
function* pool(pooled, sight, layer, head, beta, changed) {
  const rowOf = (i) => Math.floor((i * pooled.rows) / sight.queries);
  const order = Array.from({ length: sight.queries }, (_, i) => i);
  const first = order.filter((i) => i === 0 || rowOf(i) !== rowOf(i - 1));
  const seen = new Set(first);
  const coarse = first.toSorted((a, b) => (a % SPREAD) - (b % SPREAD) || a - b);
  for (const i of [...coarse, ...order.filter((each) => !seen.has(each))]) {
    const row = headRow(layer, head, sight.query + i, beta, changed);
    const at = rowOf(i) * pooled.columns;
    for (let key = 0; key < sight.keys; key++) {
      const cell = at + Math.floor((key * pooled.columns) / sight.keys);
      if (row[sight.key + key] > pooled.values[cell]) pooled.values[cell] = row[sight.key + key];
    }
    pooled.asked++;
    yield;
  }
}
