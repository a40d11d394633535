/**
 * What each head does, from some of its rows: a small picture of its map, and numbers to search by.
 *
 * @typedef {import("./bundle.js").Trace} Trace
 * @typedef {import("./bundle.js").Layer} Layer
 * @typedef {import("./state.js").State} State
 * @typedef {{layer: number, head: number, entropy: number, first: number, previous: number, itself: number,
 *   same: number, special: number, offset: number, shift: number, small: Float32Array, rows: number,
 *   columns: number}} Found shares of a query's attention, on average; offset: to whichever one place relative to it
 *   gets most, `shift`; small: the map, `rows` by `columns`, the largest weight in each
 */
import { attentionRow, changedKeys, entropy } from "./attention.js";
import { spaced } from "./look.js";
import { editsOf, offOf, timesBeta } from "./state.js";
import { streamOf } from "./streams.js";

export const ASKED = 48; // queries of each head
const COLUMNS = 48; // of a small map

/** What heads can be searched by: name, what it is, whether it needs queries and keys to be the same tokens. */
export const MEASURES = [
  ["previous", "the token before", true],
  ["first", "the first token", false],
  ["itself", "itself", true],
  ["same", "the same word elsewhere", false],
  ["offset", "one place relative to it", true],
  ["special", "special tokens", false],
  ["entropy", "few keys (low entropy)", false],
];

/**
 * Survey every head, one at each step. @param {Trace} trace @param {State} state @param {Found[]} found is filled
 */
export function* survey(trace, state, found) {
  for (let index = 0; index < trace.come; index++) {
    const layer = trace.layers[index];
    const changed = changedKeys(layer, editsOf(state, index), offOf(state, index));
    const beta = timesBeta(state.beta, layer.beta);
    const same = sameWords(streamOf(trace, layer.queries), streamOf(trace, layer.keys));
    for (let head = 0; head < layer.heads; head++) {
      found.push(surveyHead(layer, index, head, beta, changed, same, streamOf(trace, layer.keys)));
      yield;
    }
  }
}

/**
 * What was found of one head.
 * @param {Layer} layer @param {number} index @param {number} head @param {number} beta
 * @param {import("./attention.js").Changed | null} changed @param {(query: number) => number[]} same
 * @param {import("./bundle.js").Stream} keys @returns {any}
 */
function surveyHead(layer, index, head, beta, changed, same, keys) {
  const asked = spaced(layer.nQueries, ASKED);
  const columns = Math.min(layer.nKeys, COLUMNS);
  const shift = layer.nKeys - layer.nQueries; // queries are the last rows of the keys' sequence
  /** @type {Record<string, number>} */
  const sums = { entropy: 0, first: 0, previous: 0, itself: 0, same: 0, special: 0 };
  const small = new Float32Array(asked.length * columns);
  const byOffset = new Float64Array(layer.nQueries + layer.nKeys);
  const self = layer.queries === layer.keys;
  asked.forEach((query, place) => {
    const row = attentionRow(layer, head, query, beta, changed);
    const at = query + shift;
    sums.entropy += entropy(row);
    sums.first += row[0];
    sums.previous += row[at - 1] ?? 0;
    sums.itself += row[at] ?? 0;
    for (const key of keys.special) sums.special += row[key];
    for (const key of same(query)) if (!self || key !== at) sums.same += row[key];
    row.forEach((weight, key) => {
      byOffset[key - at + layer.nQueries] += weight;
      const cell = place * columns + Math.floor((key * columns) / layer.nKeys);
      if (weight > small[cell]) small[cell] = weight;
    });
  });
  const best = byOffset.reduce((most, mass, i) => (mass > byOffset[most] ? i : most), 0);
  const mean = (/** @type {number} */ sum) => sum / asked.length;
  const means = Object.fromEntries(Object.entries(sums).map(([name, sum]) => [name, mean(sum)]));
  const place = { offset: mean(byOffset[best]), shift: best - layer.nQueries };
  return { layer: index, head, ...means, ...place, small, rows: asked.length, columns };
}

/**
 * Which keys are the same word as a query's.
 * @param {import("./bundle.js").Stream} queries @param {import("./bundle.js").Stream} keys
 * @returns {(query: number) => number[]}
 */
function sameWords(queries, keys) {
  const places = new Map();
  const name = (/** @type {string} */ label) => label.trim().toLowerCase();
  const words = queries.kind === "text" && keys.kind === "text";
  if (words) keys.labels.forEach((label, i) => places.set(name(label), [...(places.get(name(label)) ?? []), i]));
  return (query) => places.get(name(queries.labels[query])) ?? [];
}

/** What a head has of a measure. @param {Found} found @param {string} measure @returns {number} */
const valueOf = (found, measure) => /** @type {Record<string, any>} */ (found)[measure];

/** The heads in the order of a measure, the most first; of entropy the least. @param {Found[]} found @param {string} measure */
export function sorted(found, measure) {
  const sign = measure === "entropy" ? 1 : -1;
  return [...found].sort((a, b) => sign * (valueOf(a, measure) - valueOf(b, measure)));
}
