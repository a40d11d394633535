/**
 * What is to be seen: everything that follows from a trace and a state, before any of it is drawn.
 *
 * @typedef {import("./bundle.js").Trace} Trace
 * @typedef {import("./bundle.js").Stream} Stream
 * @typedef {import("./bundle.js").Layer} Layer
 * @typedef {import("./state.js").State} State
 * @typedef {import("./attention.js").Changed} Changed
 * @typedef {{
 *   layer: Layer, queries: Stream, keys: Stream, painted: Stream, values: ArrayLike<number>,
 *   before: ArrayLike<number> | null, distribution: boolean, rows: Float64Array[], beta: number,
 *   changed: Changed | null, off: Set<number>, n: number, open: number,
 *   map: import("./bundle.js").StoredMap | null, asked: number,
 * }} Look values: what is painted on the tokens `painted`; before: the same before keys were changed;
 *   n: tokens it is spread over, within windows those of one; open: keys that the query may attend to; asked: queries that a column's mass is of
 */
import { attentionRows, changedKeys, headRow, mixed, openKeys, seenKeys } from "./attention.js";
import { precise } from "./colour.js";
import { editsOf, offOf, timesBeta } from "./state.js";
import { queryLabel, saidBy, streamOf, wordAt } from "./streams.js";

/** Multiplications that somebody can wait for. */
const MOST_WORK = 4e8;

/** @param {Trace} trace @param {State} state @returns {Look} */
export function look(trace, state) {
  const layer = trace.layers[state.layer];
  const [queries, keys] = [layer.queries, layer.keys].map((name) => streamOf(trace, name));
  const beta = timesBeta(state.beta, layer.beta);
  const changed = changedKeys(layer, editsOf(state), offOf(state));
  const off = changed?.off ?? new Set();
  const rows = attentionRows(layer, state.token, beta, changed);
  const open = openKeys(layer, state.token, changed, typeof state.head === "number" ? state.head : 0);
  const shared = { layer, queries, keys, beta, changed, off, rows, open, asked: layer.nQueries };
  const map = storedMap(trace, state);
  if (map) {
    const sum = map.values.reduce((a, b) => a + b, 0);
    const distribution = Math.abs(sum - 1) < 1e-3 && map.values.every((value) => value >= 0);
    const painted = streamOf(trace, map.stream);
    return { ...shared, painted, values: map.values, before: null, distribution, n: map.values.length, map };
  }
  const both = { ...shared, painted: keys, distribution: true, n: seenKeys(layer), map: null };
  if (state.method === "column") {
    const how = [state.layer, state.head, beta, JSON.stringify([state.edits, state.off])].join(" ");
    const [values, asked] = columnShare(layer, state.head, beta, changed, how);
    return { ...both, n: layer.nKeys, values, asked, before: changed && columnShare(layer, state.head, beta, null, `${how} before`)[0] };
  }
  const values = mixed(rows, state.head, off);
  return { ...both, values, before: changed && headRow(layer, state.head, state.token, beta) };
}

/** @type {WeakMap<Layer, Map<string, [Float64Array, number]>>} */
const shares = new WeakMap();

/**
 * The mean row: each key's share of the attention of all queries, or of so many, evenly spaced, as can be waited for.
 * @param {Layer} layer @param {import("./attention.js").Head} head @param {number} beta @param {Changed | null} changed
 * @param {string} how what it is kept by @returns {[Float64Array, number]} and of how many queries
 */
function columnShare(layer, head, beta, changed, how) {
  const kept = shares.get(layer) ?? shares.set(layer, new Map()).get(layer);
  const found = kept?.get(how);
  if (found) return found;
  const each = seenKeys(layer) * layer.width * (typeof head === "number" ? 1 : layer.heads);
  const asked = spaced(layer.nQueries, Math.max(1, Math.floor(MOST_WORK / each)));
  const share = new Float64Array(layer.nKeys);
  for (const query of asked) {
    const row = headRow(layer, head, query, beta, changed);
    for (let key = 0; key < row.length; key++) share[key] += row[key] / asked.length;
  }
  if (kept && kept.size > 8) kept.clear();
  kept?.set(how, [share, asked.length]);
  return [share, asked.length];
}

/** Up to `most` of n numbers, evenly spaced, the first and the last among them. @param {number} n @param {number} most @returns {number[]} */
export function spaced(n, most) {
  if (n <= most) return Array.from({ length: n }, (_, i) => i);
  if (most === 1) return [n - 1];
  return Array.from({ length: most }, (_, i) => Math.round((i * (n - 1)) / (most - 1)));
}

/**
 * The chosen method's map: of the word in question where the layer's queries say words.
 * @param {Trace} trace @param {State} state
 */
function storedMap(trace, state) {
  if (state.method === "row" || state.method === "column") return null;
  const maps = trace.maps.filter((map) => map.method === state.method);
  const word = wordAt(trace, streamOf(trace, trace.layers[state.layer].queries), state.token);
  return (word !== null && maps.find((map) => map.word === word)) || maps[state.target] || null;
}

/** Whether the layer's queries say the words of the trace. @param {Trace} trace @param {Stream} stream */
export const speaks = (trace, stream) => saidBy(trace) === stream;

/**
 * A headline for what is painted, and a line with its circumstances.
 * @param {Trace} trace @param {State} state @param {Look} look @returns {[string, string]}
 */
export function title(trace, state, { layer, queries, beta, map, off, asked }) {
  if (map) return [`${sentence(map.method)}: what counts for “${map.target}”`, "stored with the trace"];
  const heads =
    typeof state.head === "number" ? `head ${state.head} of ${layer.heads}` : `${state.head} of ${layer.heads} heads`;
  const without = off.size ? ` · off: ${[...off].join(", ")}` : "";
  const circumstances = `${layer.name} · ${heads}${without} · β ${betaText(state.beta, beta, layer)}`;
  if (state.method === "column") {
    const by = asked < layer.nQueries ? `${asked} of ${layer.nQueries.toLocaleString("en")} queries` : "all queries";
    return [`How much each token is attended to, by ${by}`, circumstances];
  }
  const query = queryLabel(trace, layer, state.token);
  const saying = wordAt(trace, queries, state.token) !== null || speaks(trace, queries);
  return [saying ? `What it attends to, saying ${query}` : `What ${query} attends to`, circumstances];
}

/** @param {string} text */
const sentence = (text) => text.charAt(0).toUpperCase() + text.slice(1);

/** β in numbers, and beside the layer's own. @param {number} times @param {number} beta @param {Layer} [layer] */
export function betaText(times, beta, layer) {
  if (times === 0) return layer?.bias || layer?.windows?.bias ? "= 0: the bias alone" : "= 0: every key alike";
  if (!Number.isFinite(beta)) return "= ∞: hard";
  return `= ${precise(beta)} (${times === 1 ? "1×, as trained" : `${times}×`})`;
}
