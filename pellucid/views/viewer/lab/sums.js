/**
 * What the sliders need beside the attention itself, in double precision.
 *
 * @typedef {import("../bundle.js").Layer} Layer
 * @typedef {{count: number, width: number, base: number}} Positions
 * @typedef {{layer: Layer, values: number[][]}} Head one head's queries and keys, and its values
 */
import { attentionRow, scoresOf } from "../attention.js";

/** One head from rows of numbers. @returns {Head} */
export function headOf({ q, k, v }) {
  const width = q[0].length;
  const shape = { heads: 1, nQueries: q.length, nKeys: k.length, held: k.length, width };
  const numbers = { q: Float64Array.from(q.flat()), k: Float64Array.from(k.flat()), beta: 1 / Math.sqrt(width) };
  /** @type {any} */
  const layer = { ...shape, ...numbers, causal: false, mask: null };
  return { layer, values: v };
}

/** Σ pⱼ·vⱼ. @param {ArrayLike<number>} row @param {number[][]} values */
export function mixture(row, values) {
  return values[0].map((_, i) => values.reduce((sum, value, j) => sum + row[j] * value[i], 0));
}

/** The length of a − b. */
export const distance = (a, b) => Math.hypot(...a.map((x, i) => x - b[i]));

/**
 * What changing a key does, measured; and to the first order, with s = β·q·k: Δp = p·(1 − p)·Δs, Δo = p·(v − o)·Δs.
 * @param {Head} head @param {number} query @param {number} key
 * @param {import("../attention.js").Changed | null} changed
 */
export function keyMoved({ layer, values }, query, key, changed) {
  const score = [null, changed].map((each) => scoresOf(layer, query, key, layer.beta, each)[0]);
  const rows = [null, changed].map((each) => attentionRow(layer, 0, query, layer.beta, each));
  const outs = rows.map((row) => mixture(row, values));
  const [p, step] = [rows[0][key], score[1] - score[0]];
  const out = outs[1].map((x, i) => x - outs[0][i]);
  const outFirst = values[key].map((x, i) => p * (x - outs[0][i]) * step);
  return { score, rows, weight: rows[1][key] - p, weightFirst: p * (1 - p) * step, out, outFirst };
}

/** How fast the pairs of features turn: ωᵢ = base^(−2i/d). @param {Positions} positions */
export const frequencies = ({ width, base }) => Array.from({ length: width / 2 }, (_, i) => base ** ((-2 * i) / width));

/** sin and cos of every pair at one position. @param {Positions} positions */
export const encoding = (position, positions) =>
  frequencies(positions).flatMap((w) => [Math.sin(w * position), Math.cos(w * position)]);

/** The matrix that takes a pair at any position to the pair `offset` further. @param {Positions} positions */
export function rotation(offset, pair, positions) {
  const angle = offset * frequencies(positions)[pair];
  return [[Math.cos(angle), Math.sin(angle)], [-Math.sin(angle), Math.cos(angle)]];
}

/** A matrix times a vector. */
export const turned = (matrix, vector) => matrix.map((row) => row.reduce((sum, x, i) => sum + x * vector[i], 0));

/** The largest error of the rotations by an offset: all pairs, all positions that have one so far away. */
export function rotationError(offset, positions) {
  const pairs = frequencies(positions).map((_, pair) => rotation(offset, pair, positions));
  let worst = 0;
  for (let position = 0; position + offset < positions.count; position++) {
    const [here, there] = [encoding(position, positions), encoding(position + offset, positions)];
    pairs.forEach((matrix, i) => {
      const [sin, cos] = turned(matrix, here.slice(2 * i, 2 * i + 2));
      worst = Math.max(worst, Math.abs(sin - there[2 * i]), Math.abs(cos - there[2 * i + 1]));
    });
  }
  return worst;
}

/** The dot product of two vectors. */
export const dot = (a, b) => a.reduce((sum, x, i) => sum + x * b[i], 0);

/** The textbook's masked softmax: `amount` is added to the scores of what is forbidden. It can leak, and break. */
export function added(scores, open, amount) {
  const biased = scores.map((score, i) => score + (open[i] ? 0 : amount));
  const best = Math.max(...biased);
  const powers = biased.map((score) => Math.exp(score - best));
  const sum = powers.reduce((a, b) => a + b, 0);
  return powers.map((power) => power / sum);
}
