/**
 * A trace out of the bytes of its file (docs/trace.md).
 *
 * @typedef {{name: string, labels: string[], grid: [number, number] | null}} Tokens
 * @typedef {{
 *   name: string, queries: string, keys: string, beta: number, causal: boolean,
 *   heads: number, nQueries: number, nKeys: number, width: number,
 *   q: Float32Array, k: Float32Array, values: Float32Array, mask: Uint8Array | null,
 * }} Layer heads one after the other, then tokens, then features
 * @typedef {{method: string, target: string, word: number | null, values: Float32Array}} StoredMap
 * @typedef {{channels: number, height: number, width: number, pixels: Uint8Array}} Picture
 * @typedef {{
 *   model: string, kind: "classifier" | "captioner", image: Picture, tokens: Tokens[], layers: Layer[],
 *   answers: [string, number][], words: [string, number][], maps: StoredMap[],
 * }} Trace
 */

const MAGIC = "PELLUCID";
const VERSION = 1;

/** @param {ArrayBuffer | ArrayBufferView} bytes @returns {Trace} */
export function parse(bytes) {
  const [buffer, start] = aligned(bytes);
  const view = new DataView(buffer, start, bytes.byteLength);
  if (bytes.byteLength < 16 || latin(buffer, start, 8) !== MAGIC) throw new Error("This is no trace of pellucid.");
  const version = view.getUint32(8, true);
  if (version !== VERSION) throw new Error(`The trace is of version ${version}; this page reads version ${VERSION}.`);
  const length = view.getUint32(12, true);
  if (16 + length > bytes.byteLength) throw new Error("The trace ends before its header does.");
  const header = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, start + 16, length)));
  const data = { buffer, start: start + 16 + length, end: start + bytes.byteLength };
  const [channels, height, width] = header.image.shape;
  return {
    ...header,
    image: { channels, height, width, pixels: array(header.image, data) },
    layers: header.layers.map((layer) => readLayer(layer, data)),
    maps: header.maps.map((map) => ({ ...map, values: array(map.values, data) })),
  };
}

function readLayer(layer, data) {
  const [heads, nQueries, width] = layer.q.shape;
  return {
    ...layer,
    beta: Number(String(layer.beta).replace("inf", "Infinity")),
    heads,
    nQueries,
    nKeys: layer.k.shape[1],
    width,
    q: array(layer.q, data),
    k: array(layer.k, data),
    values: array(layer.values, data),
    mask: layer.mask && array(layer.mask, data),
  };
}

function array({ dtype, offset, length, scale }, { buffer, start, end }) {
  if (start + offset + length > end) throw new Error("The trace ends before its arrays do.");
  if (dtype === "uint8") return new Uint8Array(buffer, start + offset, length);
  if (dtype === "float32") return new Float32Array(buffer, start + offset, length / 4);
  if (dtype !== "float16") throw new Error(`The trace has an array of ${dtype}, which this page doesn't know.`);
  return widened(new Uint16Array(buffer, start + offset, length / 2), scale);
}

/** Typed arrays want their place at a multiple of their size; bytes that came inside a message may lie anywhere. */
function aligned(bytes) {
  if (bytes instanceof ArrayBuffer) return [bytes, 0];
  if (bytes.byteOffset % 8 === 0) return [bytes.buffer, bytes.byteOffset];
  const copy = new Uint8Array(bytes.buffer, bytes.byteOffset, bytes.byteLength).slice();
  return [copy.buffer, 0];
}

const latin = (buffer, start, length) => String.fromCharCode(...new Uint8Array(buffer, start, length));

/** @type {Float32Array | null} every half-precision number, by its bits */
let halves = null;

function widened(bits, scale) {
  halves ??= Float32Array.from({ length: 65536 }, (_, i) => half(i));
  const wide = new Float32Array(bits.length);
  for (let i = 0; i < bits.length; i++) wide[i] = halves[bits[i]] * scale;
  return wide;
}

/** @param {number} bits of a half-precision number @returns {number} */
export function half(bits) {
  const sign = bits & 0x8000 ? -1 : 1;
  const exponent = (bits >> 10) & 31;
  const fraction = bits & 1023;
  if (exponent === 0) return sign * fraction * 2 ** -24;
  if (exponent === 31) return fraction ? NaN : sign * Infinity;
  return sign * (1 + fraction / 1024) * 2 ** (exponent - 15);
}
