/**
 * What is to be seen: everything that follows from a trace and a state, before any of it is drawn.
 *
 * @typedef {import("./bundle.js").Trace} Trace
 * @typedef {import("./state.js").State} State
 * @typedef {{
 *   layer: import("./bundle.js").Layer, queries: import("./bundle.js").Tokens, keys: import("./bundle.js").Tokens,
 *   painted: import("./bundle.js").Tokens, values: ArrayLike<number>, before: Float64Array | null,
 *   distribution: boolean, rows: Float64Array[], beta: number, changed: import("./attention.js").Changed | null,
 *   n: number, open: number, map: import("./bundle.js").StoredMap | null,
 * }} Look values: what is painted on the tokens `painted`; before: the same before keys were changed;
 *   n: tokens it is spread over; open: keys that the query may attend to
 */
import { attentionMap, attentionRows, changedKeys, columnShare, headRow, openKeys } from "./attention.js";
import { precise } from "./colour.js";
import { editsOf, timesBeta } from "./state.js";

/** Multiplications that a whole map may take: a second at worst. */
const MOST_WORK = 4e8;

/** @param {Trace} trace @param {State} state @returns {Look} */
export function look(trace, state) {
  const layer = trace.layers[state.layer];
  const [queries, keys] = [layer.queries, layer.keys].map((name) => tokensOf(trace, name));
  const beta = timesBeta(state.beta, layer.beta);
  const changed = changedKeys(layer, editsOf(state));
  const rows = attentionRows(layer, state.token, beta, changed);
  const open = openKeys(layer, state.token, changed);
  const shared = { layer, queries, keys, beta, changed, rows, open };
  const map = storedMap(trace, state);
  if (map) {
    const sum = map.values.reduce((a, b) => a + b, 0);
    const distribution = Math.abs(sum - 1) < 1e-3 && map.values.every((value) => value >= 0);
    const painted = tokensOf(trace, "image");
    return { ...shared, painted, values: map.values, before: null, distribution, n: map.values.length, map };
  }
  const paint = state.method === "column" ? columnShare : rowOf(state.token);
  const values = paint(layer, state.head, beta, changed);
  const before = changed && paint(layer, state.head, beta);
  return { ...shared, painted: keys, values, before, distribution: true, n: layer.nKeys, map: null };
}

const rowOf = (token) => (layer, head, beta, changed) => headRow(layer, head, token, beta, changed);

/** The whole map of a layer and head, or null if it is too large to be computed while somebody waits. */
export function wholeMap(layer, head, beta, changed) {
  const heads = typeof head === "number" ? 1 : layer.heads;
  if (layer.nQueries * layer.nKeys * layer.width * heads > MOST_WORK) return null;
  return attentionMap(layer, head, beta, changed);
}

export const tokensOf = (trace, name) => trace.tokens.find((each) => each.name === name);

/** The chosen method's map: of the word in question where the layer's queries are words. */
function storedMap(trace, state) {
  const maps = trace.maps.filter((map) => map.method === state.method);
  const word = trace.layers[state.layer].queries === "words" ? maps.find((map) => map.word === state.token) : null;
  return word ?? maps[state.target] ?? null;
}

/** A query by its name: of words, the one that was said. */
export function queryLabel(trace, layer, token) {
  const label = tokensOf(trace, layer.queries).labels[token];
  if (layer.queries !== "words") return token < extraOf(tokensOf(trace, layer.queries)) ? `the ${label} token` : label;
  return trace.words[token] ? `“${trace.words[token][0]}”` : `what follows “${label}”`;
}

/** @returns {number} tokens that stand before the patches */
export const extraOf = (tokens) => tokens.labels.length - (tokens.grid ? tokens.grid[0] * tokens.grid[1] : 0);

/** A headline for what is painted, and a line with its circumstances. @returns {[string, string]} */
export function title(trace, state, { layer, beta, map }) {
  if (map) return [`${sentence(map.method)}: what counts for “${map.target}”`, "stored with the trace"];
  const heads =
    typeof state.head === "number" ? `head ${state.head} of ${layer.heads}` : `${state.head} of ${layer.heads} heads`;
  const circumstances = `${layer.name} · ${heads} · β ${betaText(state.beta, beta)}`;
  if (state.method === "column") return ["How much each token is attended to, by all queries", circumstances];
  const query = queryLabel(trace, layer, state.token);
  const asked = layer.queries === "words" ? `What it attends to, saying ${query}` : `What ${query} attends to`;
  return [asked, circumstances];
}

const sentence = (text) => text.charAt(0).toUpperCase() + text.slice(1);

/** β in numbers, and beside the layer's own. */
export function betaText(times, beta) {
  if (times === 0) return "= 0: every key alike";
  if (!Number.isFinite(beta)) return "= ∞: hard";
  return `= ${precise(beta)} (${times === 1 ? "1×, as trained" : `${times}×`})`;
}
