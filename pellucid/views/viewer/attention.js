/**
 * softmax(β·qkᵀ), a row at a time, in double precision. No map is stored: q, k and β are enough.
 *
 * @typedef {import("./bundle.js").Layer} Layer
 * @typedef {{length: number, noise: number, deleted: boolean}} Edit of a key: made `length` times as long, after
 *   Gaussian noise of `noise` times its root mean square; or deleted
 * @typedef {Map<number, Edit>} Edits by the key's number
 * @typedef {{vectors: Map<number, Float64Array>, deleted: Set<number>}} Changed
 * @typedef {number | "mean" | "max"} Head
 */

/**
 * How one head's query spreads its attention over the keys; all zeros if it may attend to nothing.
 * Hard attention (β = ±∞) shares the weight between keys that tie.
 * @param {Layer} layer @param {number} head @param {number} query @param {number} beta
 * @param {Changed | null} changed @returns {Float64Array}
 */
export function attentionRow(layer, head, query, beta, changed = null) {
  const dots = products(layer, head, query, changed);
  const open = allowed(layer, query, changed);
  return Number.isFinite(beta) ? soft(dots, open, beta) : hard(dots, open, Math.sign(beta));
}

/** All heads' rows. @returns {Float64Array[]} */
export function attentionRows(layer, query, beta, changed = null) {
  return Array.from({ length: layer.heads }, (_, head) => attentionRow(layer, head, query, beta, changed));
}

/** One head's row, or the mean or the maximum over heads. @param {Float64Array[]} rows @param {Head} head */
export function mixed(rows, head) {
  if (typeof head === "number") return rows[head];
  const out = new Float64Array(rows[0].length);
  for (const row of rows) {
    for (let i = 0; i < out.length; i++) {
      if (head === "mean") out[i] += row[i] / rows.length;
      else if (row[i] > out[i]) out[i] = row[i];
    }
  }
  return out;
}

/** The row of one head, or of all of them. @param {Head} head */
export function headRow(layer, head, query, beta, changed = null) {
  if (typeof head === "number") return attentionRow(layer, head, query, beta, changed);
  return mixed(attentionRows(layer, query, beta, changed), head);
}

/** The whole map, queries one after the other. @param {Layer} layer @param {Head} head @returns {Float64Array} */
export function attentionMap(layer, head, beta, changed = null) {
  const map = new Float64Array(layer.nQueries * layer.nKeys);
  for (let query = 0; query < layer.nQueries; query++) {
    map.set(headRow(layer, head, query, beta, changed), query * layer.nKeys);
  }
  return map;
}

/** The mean row: each key's share of the attention of all queries, which is its column mass over their number. */
export function columnShare(layer, head, beta, changed = null) {
  const share = new Float64Array(layer.nKeys);
  for (let query = 0; query < layer.nQueries; query++) {
    const row = headRow(layer, head, query, beta, changed);
    for (let key = 0; key < row.length; key++) share[key] += row[key] / layer.nQueries;
  }
  return share;
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
  const order = Array.from(values, (_, i) => i);
  return order.sort((a, b) => values[b] - values[a] || a - b).slice(0, count);
}

/** β·q·k of one query and one key, in each head. @returns {number[]} */
export function scoresOf(layer, query, key, beta, changed = null) {
  return Array.from({ length: layer.heads }, (_, head) => {
    const k = changed?.vectors.get(key);
    const [from, start] = k ? [k, head * layer.width] : [layer.k, (head * layer.nKeys + key) * layer.width];
    return beta * dot(layer.q, (head * layer.nQueries + query) * layer.width, from, start, layer.width);
  });
}

/** How many keys this query may attend to. */
export function openKeys(layer, query, changed = null) {
  return allowed(layer, query, changed).reduce((sum, each) => sum + each, 0);
}

/** The keys that are not as they were. @param {Layer} layer @param {Edits} edits @returns {Changed | null} */
export function changedKeys(layer, edits) {
  if (!edits.size) return null;
  const vectors = new Map();
  const deleted = new Set();
  for (const [key, edit] of edits) {
    if (edit.deleted) deleted.add(key);
    else vectors.set(key, changedKey(layer, key, edit));
  }
  return { vectors, deleted };
}

function changedKey(layer, key, { length, noise }) {
  const { heads, nKeys, width, k } = layer;
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

function products(layer, head, query, changed) {
  const { nQueries, nKeys, width, q, k } = layer;
  const start = (head * nQueries + query) * width;
  const dots = new Float64Array(nKeys);
  for (let key = 0; key < nKeys; key++) dots[key] = dot(q, start, k, (head * nKeys + key) * width, width);
  changed?.vectors.forEach((vector, key) => (dots[key] = dot(q, start, vector, head * width, width)));
  return dots;
}

function dot(a, startA, b, startB, width) {
  let sum = 0;
  for (let i = 0; i < width; i++) sum += a[startA + i] * b[startB + i];
  return sum;
}

/** 1 for each key that the query may attend to. Queries are the last rows of the keys' sequence. */
function allowed({ nQueries, nKeys, causal, mask }, query, changed) {
  const open = new Uint8Array(nKeys).fill(1);
  if (causal) open.fill(0, Math.max(0, query + nKeys - nQueries + 1));
  if (mask) for (let key = 0; key < nKeys; key++) open[key] &= mask[query * nKeys + key];
  changed?.deleted.forEach((key) => (open[key] = 0));
  return open;
}

function soft(dots, open, beta) {
  let best = -Infinity;
  for (let i = 0; i < dots.length; i++) if (open[i] && beta * dots[i] > best) best = beta * dots[i];
  let sum = 0;
  for (let i = 0; i < dots.length; i++) sum += dots[i] = open[i] ? Math.exp(beta * dots[i] - best) : 0;
  if (sum > 0) for (let i = 0; i < dots.length; i++) dots[i] /= sum;
  return dots;
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
function gaussian(seed) {
  let state = seed * 0x9e3779b9;
  const uniform = () => {
    state = (state + 0x6d2b79f5) | 0;
    let t = Math.imul(state ^ (state >>> 15), 1 | state);
    t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t;
    return ((t ^ (t >>> 14)) >>> 0) / 2 ** 32;
  };
  return () => Math.sqrt(-2 * Math.log(1 - uniform())) * Math.cos(2 * Math.PI * uniform());
}
