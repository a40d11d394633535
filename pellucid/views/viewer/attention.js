/**
 * softmax(β·qkᵀ), a row at a time, in double precision. No map is stored: q, k and β are enough.
 *
 * @typedef {import("./bundle.js").Layer} Layer
 * @typedef {{length: number, noise: number, deleted: boolean}} Edit of a key: made `length` times as long, after
 *   Gaussian noise of `noise` times its root mean square; or deleted
 * @typedef {Map<number, Edit>} Edits by the key's number
 * @typedef {{vectors: Map<number, Float64Array>, deleted: Set<number>, off: Set<number>}} Changed keys' vectors and
 *   those that are gone; heads that are switched off
 * @typedef {number | "mean" | "max"} Head
 */

const MASKING = -1e4; // a bias as low as this is a mask

/**
 * How one head's query spreads its attention over the keys; all zeros if it may attend to nothing.
 * Hard attention (β = ±∞) shares the weight between keys that tie.
 * @param {Layer} layer @param {number} head @param {number} query @param {number} beta
 * @param {Changed | null} changed @returns {Float64Array}
 */
export function attentionRow(layer, head, query, beta, changed = null) {
  const dots = products(layer, head, query, changed);
  const open = allowed(layer, query, changed, head);
  if (!Number.isFinite(beta)) return hard(dots, open, Math.sign(beta));
  return soft(scored(layer, head, query, beta, dots), open, layer.sinks?.[head] ?? -Infinity);
}

/** All heads' rows. @param {Layer} layer @param {number} query @param {Changed | null} changed @returns {Float64Array[]} */
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

/** The row of one head, or of all of them. @param {Layer} layer @param {Head} head @param {number} query @param {Changed | null} changed */
export function headRow(layer, head, query, beta, changed = null) {
  if (typeof head === "number") return attentionRow(layer, head, query, beta, changed);
  return mixed(attentionRows(layer, query, beta, changed), head, changed?.off);
}

/**
 * The whole map, queries one after the other.
 * @param {Layer} layer @param {Head} head @param {Changed | null} changed @returns {Float64Array}
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

/** Half the sum of the differences: the share of the weight that moved. */
export function moved(before, after) {
  let sum = 0;
  for (let i = 0; i < before.length; i++) sum += Math.abs(after[i] - before[i]);
  return sum / 2;
}

/** The places of the largest values, the largest first. @param {ArrayLike<number>} values @returns {number[]} */
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

/** A query's and a key's features in one head. @param {Layer} layer @param {Changed | null} changed */
export function featuresOf(layer, head, query, key, changed = null) {
  const [from, start] = keyAt(layer, head, key, changed);
  const at = (head * layer.nQueries + query) * layer.width;
  return { q: layer.q.subarray(at, at + layer.width), k: from.subarray(start, start + layer.width) };
}

/** β·q·k of one query and one key, in each head. @param {Layer} layer @param {Changed | null} changed @returns {number[]} */
export function scoresOf(layer, query, key, beta, changed = null) {
  return Array.from({ length: layer.heads }, (_, head) => {
    const [from, start] = keyAt(layer, head, key, changed);
    return beta * dot(layer.q, (head * layer.nQueries + query) * layer.width, from, start, layer.width);
  });
}

/**
 * Every number between q, k and the weight. Hard attention has no exponentials.
 * @param {Layer} layer @param {number} head @param {number} query @param {number} key @param {Changed | null} changed
 */
export function stepsOf(layer, head, query, key, beta, changed = null) {
  const { q, k } = featuresOf(layer, head, query, key, changed);
  const product = dot(q, 0, k, 0, layer.width);
  const open = allowed(layer, query, changed, head);
  const finite = Number.isFinite(beta);
  const scores = scored(layer, head, query, finite ? beta : 1, products(layer, head, query, changed));
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
    score: scores[key],
    open: Boolean(open[key]),
    count: open.reduce((a, b) => a + b, 0),
    exp: exponentials[key],
    sum: exponentials.reduce((a, b) => a + b, 0) + (sink > -Infinity ? Math.exp(sink - best) : 0),
    weight: attentionRow(layer, head, query, beta, changed)[key],
    value: layer.values ? layer.values[head * layer.nKeys + key] : NaN,
  };
}

/** How many keys this query may attend to, in one head or in any. @param {Layer} layer @param {Changed | null} changed */
export function openKeys(layer, query, changed = null, head = 0) {
  return allowed(layer, query, changed, head).reduce((sum, each) => sum + each, 0);
}

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

function changedKey(layer, key, { length, noise }) {
  const { nKeys, width, k } = layer;
  const heads = layer.keyHeads ?? layer.heads;
  const vector = new Float64Array(heads * width);
  const random = gaussian(key + 1);
  for (let head = 0; head < heads; head++) {
    const start = (head * nKeys + key) * width;
    const size = Math.sqrt(dot(k, start, k, start, width) / width);
    for (let i = 0; i < width; i++) {
      vector[head * width + i] = length * (k[start + i] + (noise ? noise * size * random() : 0));
    }
  }
  return vector;
}

/** Which key head a query head reads: heads in groups share one. */
const sharedHead = ({ heads, keyHeads }, head) => Math.floor((head * (keyHeads ?? heads)) / heads);

function keyAt(layer, head, key, changed) {
  const shared = sharedHead(layer, head);
  const own = changed?.vectors.get(key);
  return own ? [own, shared * layer.width] : [layer.k, (shared * layer.nKeys + key) * layer.width];
}

function products(layer, head, query, changed) {
  const { nQueries, nKeys, width, q, k } = layer;
  const [start, shared] = [(head * nQueries + query) * width, sharedHead(layer, head)];
  const dots = new Float64Array(nKeys);
  for (let key = 0; key < nKeys; key++) dots[key] = dot(q, start, k, (shared * nKeys + key) * width, width);
  changed?.vectors.forEach((vector, key) => (dots[key] = dot(q, start, vector, shared * width, width)));
  return dots;
}

/** The scores: times β, capped, with the bias of the place. In place. */
function scored(layer, head, query, beta, dots) {
  const { nQueries, nKeys, softcap, bias } = layer;
  for (let i = 0; i < dots.length; i++) dots[i] *= beta;
  if (softcap) for (let i = 0; i < dots.length; i++) dots[i] = softcap * Math.tanh(dots[i] / softcap);
  if (bias) {
    const from = ((bias.heads > 1 ? head : 0) * nQueries + query) * nKeys;
    for (let i = 0; i < dots.length; i++) dots[i] += bias.values[from + i];
  }
  return dots;
}

function dot(a, startA, b, startB, width) {
  let sum = 0;
  for (let i = 0; i < width; i++) sum += a[startA + i] * b[startB + i];
  return sum;
}

/** 1 for each key that the query may attend to. Queries are the last rows of the keys' sequence. */
function allowed({ nQueries, nKeys, causal, mask, bias }, query, changed, head) {
  const open = new Uint8Array(nKeys).fill(1);
  if (causal) open.fill(0, Math.max(0, query + nKeys - nQueries + 1));
  if (mask) {
    const row = (mask.heads > 1 ? head : 0) * nQueries + query;
    const bytes = Math.ceil(nKeys / 8);
    for (let key = 0; key < nKeys; key++) {
      open[key] &= mask.packed ? (mask.bits[row * bytes + (key >> 3)] >> (key & 7)) & 1 : mask.bits[row * nKeys + key];
    }
  }
  if (bias) {
    const from = ((bias.heads > 1 ? head : 0) * nQueries + query) * nKeys;
    for (let key = 0; key < nKeys; key++) if (bias.values[from + key] <= MASKING) open[key] = 0;
  }
  changed?.deleted.forEach((key) => (open[key] = 0));
  return open;
}

/** In place: the weights; a sink takes its share and is no key. */
function soft(scores, open, sink) {
  let best = sink;
  for (let i = 0; i < scores.length; i++) if (open[i] && scores[i] > best) best = scores[i];
  let sum = sink > -Infinity ? Math.exp(sink - best) : 0;
  for (let i = 0; i < scores.length; i++) sum += scores[i] = open[i] ? Math.exp(scores[i] - best) : 0;
  if (sum > 0) for (let i = 0; i < scores.length; i++) scores[i] /= sum;
  return scores;
}

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

/** Normal numbers that are the same each time: mulberry32, then Box and Muller. */
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
