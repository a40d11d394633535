/**
 * softmax(β·qkᵀ), a row at a time, in double precision. No map is stored: q, k and β are enough.
 *
 * @typedef {import("./bundle.js").Layer} Layer
 * @typedef {import("./bundle.js").Mask} Mask
 * @typedef {import("./bundle.js").Bias} Bias
 * @typedef {ArrayLike<number>} Numbers
 * @typedef {{length: number, noise: number, deleted: boolean}} Edit of a key: made `length` times as long, after
 *   Gaussian noise of `noise` times its root mean square; or deleted
 * @typedef {Map<number, Edit>} Edits by the key's number
 * @typedef {{vectors: Map<number, Float64Array>, deleted: Set<number>, off: Set<number>}} Changed keys' vectors and
 *   those that are gone; heads that are switched off
 * @typedef {number | "mean" | "max"} Head
 * @typedef {{
 *   keys: Int32Array | null, n: number, mask: Mask | null, bias: Bias | null,
 *   rows: number, row: number, kind: number,
 * }} Sight of one query: its n keys by their numbers, null for all; which row of so many, of which kind, is its own in
 *   mask and bias
 */

const MASKING = -1e4; // a bias as low as this is a mask

/**
 * How one head's query spreads its attention over the keys; all zeros if it may attend to nothing.
 * Hard attention (β = ±∞) shares the weight between keys that tie.
 * @param {Layer} layer @param {number} head @param {number} query @param {number} beta
 * @param {Changed | null} changed @returns {Float64Array}
 */
export function attentionRow(layer, head, query, beta, changed = null) {
  const sight = sightOf(layer, query);
  const dots = products(layer, head, query, sight, changed);
  const open = allowed(layer, query, sight, changed, head);
  if (!Number.isFinite(beta)) return spread(layer, sight, hard(dots, open, Math.sign(beta)));
  const scores = scored(layer, head, sight, beta, dots);
  return spread(layer, sight, soft(scores, open, layer.sinks?.[head] ?? -Infinity));
}

/**
 * All heads' rows.
 * @param {Layer} layer @param {number} query @param {number} beta @param {Changed | null} changed @returns {Float64Array[]}
 */
export function attentionRows(layer, query, beta, changed = null) {
  return Array.from({ length: layer.heads }, (_, head) => attentionRow(layer, head, query, beta, changed));
}

/**
 * One head's row, or the mean or the maximum over the heads that are on.
 * @param {Float64Array[]} rows @param {Head} head @param {Set<number>} [off]
 */
export function mixed(rows, head, off) {
  if (typeof head === "number") return rows[head];
  const on = off?.size ? rows.filter((_, i) => !off.has(i)) : rows;
  const out = new Float64Array(rows[0].length);
  for (const row of on) {
    for (let i = 0; i < out.length; i++) {
      if (head === "mean") out[i] += row[i] / on.length;
      else if (row[i] > out[i]) out[i] = row[i];
    }
  }
  return out;
}

/**
 * The row of one head, or of all of them.
 * @param {Layer} layer @param {Head} head @param {number} query @param {number} beta @param {Changed | null} changed
 */
export function headRow(layer, head, query, beta, changed = null) {
  if (typeof head === "number") return attentionRow(layer, head, query, beta, changed);
  return mixed(attentionRows(layer, query, beta, changed), head, changed?.off);
}

/**
 * The whole map, queries one after the other.
 * @param {Layer} layer @param {Head} head @param {number} beta @param {Changed | null} changed @returns {Float64Array}
 */
export function attentionMap(layer, head, beta, changed = null) {
  const map = new Float64Array(layer.nQueries * layer.nKeys);
  for (let query = 0; query < layer.nQueries; query++) {
    map.set(headRow(layer, head, query, beta, changed), query * layer.nKeys);
  }
  return map;
}

/** −Σ p·ln p, in nats. @param {ArrayLike<number>} row */
export function entropy(row) {
  let sum = 0;
  for (let i = 0; i < row.length; i++) if (row[i] > 0) sum -= row[i] * Math.log(row[i]);
  return sum;
}

/** Half the sum of the differences: the share of the weight that moved. @param {Numbers} before @param {Numbers} after */
export function moved(before, after) {
  let sum = 0;
  for (let i = 0; i < before.length; i++) sum += Math.abs(after[i] - before[i]);
  return sum / 2;
}

/** The places of the largest values, the largest first. @param {Numbers} values @param {number} count @returns {number[]} */
export function largest(values, count) {
  /** @type {number[]} */
  const best = [];
  for (let i = 0; i < values.length; i++) {
    if (best.length === count && values[i] <= values[best[count - 1]]) continue;
    let place = best.length;
    while (place > 0 && values[best[place - 1]] < values[i]) place--;
    best.splice(place, 0, i);
    if (best.length > count) best.pop();
  }
  return best;
}

/**
 * A query's and a key's features in one head.
 * @param {Layer} layer @param {number} head @param {number} query @param {number} key @param {Changed | null} changed
 */
export function featuresOf(layer, head, query, key, changed = null) {
  const [from, start] = keyAt(layer, head, key, changed);
  const at = (head * layer.nQueries + query) * layer.width;
  return { q: layer.q.subarray(at, at + layer.width), k: from.subarray(start, start + layer.width) };
}

/**
 * β·q·k of one query and one key, in each head.
 * @param {Layer} layer @param {number} query @param {number} key @param {number} beta @param {Changed | null} changed
 * @returns {number[]}
 */
export function scoresOf(layer, query, key, beta, changed = null) {
  return Array.from({ length: layer.heads }, (_, head) => {
    const [from, start] = keyAt(layer, head, key, changed);
    return beta * dot(layer.q, (head * layer.nQueries + query) * layer.width, from, start, layer.width);
  });
}

/**
 * Every number between q, k and the weight. Hard attention has no exponentials.
 * @param {Layer} layer @param {number} head @param {number} query @param {number} key @param {number} beta
 * @param {Changed | null} changed
 */
export function stepsOf(layer, head, query, key, beta, changed = null) {
  const { q, k } = featuresOf(layer, head, query, key, changed);
  const product = dot(q, 0, k, 0, layer.width);
  const sight = sightOf(layer, query);
  const open = allowed(layer, query, sight, changed, head);
  const finite = Number.isFinite(beta);
  const scores = scored(layer, head, sight, finite ? beta : 1, products(layer, head, query, sight, changed));
  const at = sight.keys ? sight.keys.indexOf(key) : key; // −1 outside of its window
  const sink = layer.sinks?.[head] ?? -Infinity;
  const best = scores.reduce((most, score, i) => (open[i] ? Math.max(most, score) : most), sink);
  const exponentials = scores.map((score, i) => (open[i] ? Math.exp(score - best) : 0));
  const scaled = (finite ? beta : 1) * product;
  return {
    q: Math.sqrt(dot(q, 0, q, 0, q.length)),
    k: Math.sqrt(dot(k, 0, k, 0, k.length)),
    dot: product,
    scaled,
    capped: layer.softcap ? layer.softcap * Math.tanh(scaled / layer.softcap) : scaled,
    score: at < 0 ? scaled : scores[at],
    open: Boolean(open[at]),
    count: open.reduce((a, b) => a + b, 0),
    padding: sight.keys ? sight.keys.filter((each, i) => each >= layer.nKeys && open[i]).length : 0,
    exp: exponentials[at] ?? 0,
    sum: exponentials.reduce((a, b) => a + b, 0) + (sink > -Infinity ? Math.exp(sink - best) : 0),
    weight: attentionRow(layer, head, query, beta, changed)[key],
    value: layer.values ? layer.values[head * layer.held + key] : NaN,
  };
}

/**
 * How many keys this query may attend to, in one head or in any.
 * @param {Layer} layer @param {number} query @param {Changed | null} changed
 */
export function openKeys(layer, query, changed = null, head = 0) {
  return allowed(layer, query, sightOf(layer, query), changed, head).reduce((sum, each) => sum + each, 0);
}

/** How many keys are multiplied for a row: within windows few of all. @param {Layer} layer */
export const seenKeys = ({ windows, nKeys }) => windows?.size ?? nKeys;

/**
 * The keys that are not as they were, and the heads that are off.
 * @param {Layer} layer @param {Edits} edits @param {number[]} off @returns {Changed | null}
 */
export function changedKeys(layer, edits, off = []) {
  if (!edits.size && !off.length) return null;
  const vectors = new Map();
  const deleted = new Set();
  for (const [key, edit] of edits) {
    if (edit.deleted) deleted.add(key);
    else vectors.set(key, changedKey(layer, key, edit));
  }
  return { vectors, deleted, off: new Set(off) };
}

/** @param {Layer} layer @param {number} key @param {Edit} edit */
function changedKey(layer, key, { length, noise }) {
  const { held, width, k } = layer;
  const heads = layer.keyHeads ?? layer.heads;
  const vector = new Float64Array(heads * width);
  const random = gaussian(key + 1);
  for (let head = 0; head < heads; head++) {
    const start = (head * held + key) * width;
    const size = Math.sqrt(dot(k, start, k, start, width) / width);
    for (let i = 0; i < width; i++) {
      vector[head * width + i] = length * (k[start + i] + (noise ? noise * size * random() : 0));
    }
  }
  return vector;
}

/** Which key head a query head reads: heads in groups share one. @param {Layer} layer @param {number} head */
const sharedHead = ({ heads, keyHeads }, head) => Math.floor((head * (keyHeads ?? heads)) / heads);

/**
 * Where a key's features lie: in which numbers, from which on.
 * @param {Layer} layer @param {number} head @param {number} key @param {Changed | null} changed
 * @returns {[Float32Array | Float64Array, number]}
 */
function keyAt(layer, head, key, changed) {
  const shared = sharedHead(layer, head);
  const own = changed?.vectors.get(key);
  return own ? [own, shared * layer.width] : [layer.k, (shared * layer.held + key) * layer.width];
}

/** What a query sees: all keys, or those of its window. @param {Layer} layer @param {number} query @returns {Sight} */
function sightOf(layer, query) {
  const { windows, nQueries, nKeys, mask, bias } = layer;
  if (!windows) return { keys: null, n: nKeys, mask, bias, rows: nQueries, row: query, kind: 0 };
  const { size, places, kinds, stands } = windows;
  const number = Math.floor(stands[query] / size);
  const keys = places.subarray(number * size, (number + 1) * size);
  return { keys, n: size, mask: windows.mask, bias: windows.bias, rows: size, row: stands[query] % size, kind: kinds[number] };
}

/**
 * The row over all keys, of weights over those in sight; what padding takes is left out.
 * @param {Layer} layer @param {Sight} sight @param {Float64Array} weights
 */
function spread({ nKeys }, { keys }, weights) {
  if (!keys) return weights;
  const row = new Float64Array(nKeys);
  keys.forEach((key, i) => key < nKeys && (row[key] = weights[i]));
  return row;
}

/** @param {Layer} layer @param {number} head @param {number} query @param {Sight} sight @param {Changed | null} changed */
function products(layer, head, query, { keys, n }, changed) {
  const { nQueries, held, width, q, k } = layer;
  const [start, shared] = [(head * nQueries + query) * width, sharedHead(layer, head)];
  const dots = new Float64Array(n);
  for (let i = 0; i < n; i++) dots[i] = dot(q, start, k, (shared * held + (keys ? keys[i] : i)) * width, width);
  changed?.vectors.forEach((vector, key) => {
    const at = keys ? keys.indexOf(key) : key;
    if (at >= 0) dots[at] = dot(q, start, vector, shared * width, width);
  });
  return dots;
}

/** Where the row of a mask or bias begins, in rows. @param {Mask | Bias} part @param {number} head @param {Sight} sight */
const rowOf = ({ heads }, head, { rows, row, kind }) => (kind * heads + (heads > 1 ? head : 0)) * rows + row;

/**
 * The scores: times β, capped, with the bias of the place. In place.
 * @param {Layer} layer @param {number} head @param {Sight} sight @param {number} beta @param {Float64Array} dots
 */
function scored({ softcap }, head, sight, beta, dots) {
  const { bias } = sight;
  for (let i = 0; i < dots.length; i++) dots[i] *= beta;
  if (softcap) for (let i = 0; i < dots.length; i++) dots[i] = softcap * Math.tanh(dots[i] / softcap);
  if (bias) {
    const from = rowOf(bias, head, sight) * sight.n;
    for (let i = 0; i < dots.length; i++) dots[i] += bias.values[from + i];
  }
  return dots;
}

/** @param {Numbers} a @param {number} startA @param {Numbers} b @param {number} startB @param {number} width */
function dot(a, startA, b, startB, width) {
  let sum = 0;
  for (let i = 0; i < width; i++) sum += a[startA + i] * b[startB + i];
  return sum;
}

/**
 * 1 for each key that the query may attend to. Queries are the last rows of the keys' sequence.
 * @param {Layer} layer @param {number} query @param {Sight} sight @param {Changed | null} changed @param {number} head
 */
function allowed({ nQueries, nKeys, causal }, query, sight, changed, head) {
  const { n, mask, bias, keys } = sight;
  const open = new Uint8Array(n).fill(1);
  if (causal) open.fill(0, Math.max(0, query + nKeys - nQueries + 1));
  if (mask) {
    const row = rowOf(mask, head, sight);
    const bytes = Math.ceil(n / 8);
    for (let i = 0; i < n; i++) {
      open[i] &= mask.packed ? (mask.bits[row * bytes + (i >> 3)] >> (i & 7)) & 1 : mask.bits[row * n + i];
    }
  }
  if (bias) {
    const from = rowOf(bias, head, sight) * n;
    for (let i = 0; i < n; i++) if (bias.values[from + i] <= MASKING) open[i] = 0;
  }
  changed?.deleted.forEach((key) => (open[keys ? keys.indexOf(key) : key] = 0)); // at −1 nothing is
  return open;
}

/**
 * In place: the weights; a sink takes its share and is no key.
 * @param {Float64Array} scores @param {Uint8Array} open @param {number} sink
 */
function soft(scores, open, sink) {
  let best = sink;
  for (let i = 0; i < scores.length; i++) if (open[i] && scores[i] > best) best = scores[i];
  let sum = sink > -Infinity ? Math.exp(sink - best) : 0;
  for (let i = 0; i < scores.length; i++) sum += scores[i] = open[i] ? Math.exp(scores[i] - best) : 0;
  if (sum > 0) for (let i = 0; i < scores.length; i++) scores[i] /= sum;
  return scores;
}

/** @param {Float64Array} dots @param {Uint8Array} open @param {number} sign */
function hard(dots, open, sign) {
  let [best, size] = [-Infinity, 0];
  for (let i = 0; i < dots.length; i++) {
    size = Math.max(size, Math.abs(dots[i]));
    if (open[i] && sign * dots[i] > best) best = sign * dots[i];
  }
  // Equal keys may get products that differ in the last bits.
  const rounding = 8 * Number.EPSILON * size;
  const hits = dots.map((product, i) => (open[i] && sign * product >= best - rounding ? 1 : 0));
  const sum = hits.reduce((a, b) => a + b, 0);
  return sum ? hits.map((hit) => hit / sum) : hits;
}

/** Normal numbers that are the same each time: mulberry32, then Box and Muller. @param {number} seed */
export function gaussian(seed) {
  let state = seed * 0x9e3779b9;
  const uniform = () => {
    state = (state + 0x6d2b79f5) | 0;
    let t = Math.imul(state ^ (state >>> 15), 1 | state);
    t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t;
    return ((t ^ (t >>> 14)) >>> 0) / 2 ** 32;
  };
  return () => Math.sqrt(-2 * Math.log(1 - uniform())) * Math.cos(2 * Math.PI * uniform());
}
