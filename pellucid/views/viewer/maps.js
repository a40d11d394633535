/**
 * The whole map of a layer and head, and the query's row in every head of every layer.
 *
 * @typedef {import("./viewer.js").Seen} Seen
 * @typedef {import("./viewer.js").Actions} Actions
 */
import { attentionRows, changedKeys } from "./attention.js";
import { makeScale, precise } from "./colour.js";
import { h, say, set } from "./dom.js";
import { cells, drawAllHeads, drawMatrix } from "./draw.js";
import { queryLabel, wholeMap } from "./look.js";
import { editsOf, timesBeta } from "./state.js";

/** @param {Actions} actions */
export function makeMatrix(actions) {
  const canvas = h("canvas", { role: "img" });
  const box = h("div", { class: "pl-fit" }, canvas);
  const readout = h("p", { class: "pl-readout" });
  const element = h(
    "section",
    { class: "pl-card pl-matrix", "aria-label": "Whole map" },
    h("h3", {}, "Whole map"),
    h("p", { class: "pl-quiet" }, "A row for each query, a column for each key. Point at a row to see it."),
    box,
    readout,
  );
  /** @type {{for: string, map: Float64Array | null, image: any, scale: any}} */
  let cache = { for: "", map: null, image: null, scale: null };
  /** @type {Seen | null} */
  let shown = null;

  function cellAt(event) {
    if (!shown || !cache.map) return null;
    const { nQueries, nKeys } = shown.look.layer;
    const area = canvas.getBoundingClientRect();
    const query = Math.floor(((event.clientY - area.top) / area.height) * nQueries);
    const key = Math.floor(((event.clientX - area.left) / area.width) * nKeys);
    return query < 0 || key < 0 || query >= nQueries || key >= nKeys ? null : [query, key];
  }
  canvas.addEventListener("pointermove", (event) => {
    const cell = cellAt(event);
    if (!cell) return;
    const { trace, look } = shown;
    const [query, key] = cell;
    const weight = precise(cache.map[query * look.layer.nKeys + key]);
    say(readout, `${queryLabel(trace, look.layer, query)} → ${look.keys.labels[key]}: ${weight}`);
    actions.point(look.queries.name, query, "query");
  });
  canvas.addEventListener("click", (event) => {
    const cell = cellAt(event);
    if (cell) actions.change({ token: cell[0], key: cell[1], pin: true, method: shown.state.method });
  });

  /** Compute the map if it is another one. Slow: after the row has been shown. @param {Seen} seen */
  function compute({ state, look }) {
    const wanted = JSON.stringify([state.trace, state.layer, state.head, String(look.beta), state.edits, state.scale]);
    if (cache.for === wanted) return;
    const { layer } = look;
    const map = wholeMap(layer, state.head, look.beta, look.changed);
    const scale = makeScale(state.scale, layer.nKeys, map ?? [], true);
    cache = { for: wanted, map, scale, image: map && cells(map, layer.nQueries, layer.nKeys, scale) };
  }

  /** @param {Seen} seen */
  function draw(seen) {
    shown = seen;
    const { state, look } = seen;
    const { nQueries, nKeys, name } = look.layer;
    canvas.hidden = !cache.map;
    if (!cache.map) {
      say(readout, `${nQueries} × ${nKeys} weights of all heads are too many to draw at once; choose one head.`);
      return;
    }
    const width = Math.max(box.clientWidth, 100);
    const least = Math.min(20 * nQueries, width / 2);
    const height = Math.round(Math.min(Math.max((width * nQueries) / nKeys, least), 1.25 * width));
    drawMatrix(canvas, { width, height, ...cache, nQueries, nKeys, query: state.token, key: state.key });
    set(canvas, "aria-label", `Attention map of ${name}, ${nQueries} queries by ${nKeys} keys`);
  }
  return { element, compute, draw };
}

/** @param {Actions} actions */
export function makeAllHeads(actions) {
  const canvas = h("canvas", { role: "img", class: "pl-all" });
  const box = h("div", { class: "pl-fit" }, canvas);
  const readout = h("p", { class: "pl-readout" });
  const note = h("p", { class: "pl-quiet" });
  const heading = h("h3", {}, "All heads");
  const element = h("section", { class: "pl-card", "aria-label": "All heads" }, heading, note, box, readout);
  let geometry = { cell: 1, gap: 1, high: 1, places: /** @type {number[]} */ ([]), heads: 0, names: [""] };

  function headAt(event) {
    const area = canvas.getBoundingClientRect();
    const { cell, gap, high, places, heads } = geometry;
    const y = Math.floor((event.clientY - area.top - gap / 2) / (high + gap));
    const x = Math.floor((event.clientX - area.left - gap / 2) / (cell + gap));
    return y < 0 || x < 0 || y >= places.length || x >= heads ? null : [y, x];
  }
  canvas.addEventListener("pointermove", (event) => {
    const place = headAt(event);
    say(readout, place ? `${geometry.names[place[0]]}, head ${place[1]}` : "");
  });
  canvas.addEventListener("click", (event) => {
    const place = headAt(event);
    if (place) actions.change({ layer: geometry.places[place[0]], head: place[1] });
  });

  /** Slow: after the row has been shown. @param {Seen} seen */
  function draw({ trace, state, look }) {
    const alike = trace.layers
      .map((layer, index) => ({ layer, index }))
      .filter(({ layer }) => layer.queries === look.layer.queries && layer.keys === look.layer.keys);
    const layers = alike.map(({ layer, index }) => {
      const changed = changedKeys(layer, editsOf(state, index));
      return { index, rows: attentionRows(layer, state.token, timesBeta(state.beta, layer.beta), changed) };
    });
    const heads = Math.max(...layers.map(({ rows }) => rows.length));
    const width = Math.max(box.clientWidth, 100);
    const gap = 4;
    const cell = Math.min((width - gap) / heads - gap, width / 4.5);
    const scaleOf = (row) => makeScale(state.scale, look.layer.nKeys, row, true);
    const what = { width: gap + heads * (cell + gap), cell, gap, layers, tokens: look.keys, scaleOf };
    const high = drawAllHeads(canvas, { ...what, chosen: state.layer, head: state.head });
    const [places, names] = [alike.map((each) => each.index), alike.map((each) => each.layer.name)];
    geometry = { cell, gap, high, places, heads, names };
    const query = queryLabel(trace, look.layer, state.token);
    const kind = `${look.layer.queries} → ${look.layer.keys}`;
    say(note, `The row of ${query}: a line for each layer ${kind}, a column for each head. Click to go there.`);
    set(canvas, "aria-label", `The row of ${query} in ${layers.length} layers of ${heads} heads, as small maps`);
  }
  return { element, draw };
}
