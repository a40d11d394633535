/**
 * A trace out of the bytes of its file (docs/trace.md), the second version or the first.
 *
 * @typedef {{
 *   name: string, kind: string, labels: string[], special: Set<number>, grid: [number, number] | null, first: number,
 *   picture: number | null, seconds: number | null, prompt: number | null,
 * }} Stream tokens in their order; first: where the patches of the grid begin; prompt: how many were given
 * @typedef {{heads: number, packed: boolean, bits: Uint8Array}} Mask of one head for all, or of each
 * @typedef {{heads: number, values: Float32Array}} Bias likewise
 * @typedef {{
 *   size: number, places: Int32Array, kinds: Int32Array, stands: Int32Array, mask: Mask | null, bias: Bias | null,
 * }} Windows of so many places: which key stands at each, which of the masks and biases is a window's, and at which
 *   place each key stands; keys from nKeys on are padding
 * @typedef {{
 *   name: string, queries: string, keys: string, beta: number, causal: boolean, softcap: number | null,
 *   heads: number, keyHeads: number, nQueries: number, nKeys: number, held: number, width: number,
 *   q: Float32Array, k: Float32Array, values: Float32Array | null, mask: Mask | null, bias: Bias | null,
 *   sinks: Float32Array | null, windows: Windows | null,
 * }} Layer heads one after the other, then tokens, then features; keyHeads: heads share keys if there are fewer;
 *   held: keys that k and values hold, padding among them
 * @typedef {{method: string, target: string, stream: string, word: number | null, values: Float32Array}} StoredMap
 * @typedef {{name: string, channels: number, height: number, width: number, pixels: Uint8Array}} Picture
 * @typedef {{stream: string, position: number, answers: [string, number][]}} Step
 * @typedef {{
 *   model: string, kind: string, streams: Stream[], pictures: Picture[], layers: Layer[], come: number,
 *   answers: [string, number][], steps: Step[], words: [string, number][], maps: StoredMap[],
 *   missed: [string, string][],
 * }} Trace come: how many of the layers are here; the maps are when all are
 * @typedef {{buffer: ArrayBuffer, start: number, end: number}} Data where the arrays lie
 * @typedef {{dtype: string, shape: number[], from: number, to: number}} Place of an array in the data
 * @typedef {{dtype: string, shape: number[], data_offsets: [number, number]}} Entry as safetensors says it
 * @typedef {Record<string, Place>} Places by the names of the arrays
 * @typedef {(name: string, scale?: number) => any} Read an array by its name: bytes or numbers, by its kind
 * @typedef {{mask?: string | null, bias?: string | null, bias_scale?: number}} Beside names of a mask and a bias
 * @typedef {Beside & {places: string, kinds: string}} WindowsHeader
 * @typedef {Beside & {
 *   name: string, queries: string, keys: string, beta: number | string, causal: boolean, softcap: number | null,
 *   q: string, k: string, values: string | null, sinks: string | null, q_scale?: number, k_scale?: number,
 *   windows?: WindowsHeader | null,
 * }} LayerHeader its arrays by their names
 * @typedef {Omit<Stream, "special"> & {special?: number[]}} StreamHeader
 * @typedef {Omit<Trace, "streams" | "pictures" | "layers" | "maps" | "come" | "missed"> & {
 *   streams: StreamHeader[], pictures: {name: string, tensor: string}[], layers: LayerHeader[],
 *   maps: (Omit<StoredMap, "values"> & {tensor: string})[], missed?: [string, string][],
 * }} TraceHeader all of a trace but its arrays
 * @typedef {{dtype: string, shape: number[], offset: number, length: number, scale: number}} FirstArray
 * @typedef {{
 *   name: string, queries: string, keys: string, beta: number | string, causal: boolean,
 *   q: FirstArray, k: FirstArray, values: FirstArray, mask: FirstArray | null,
 * }} FirstLayer of the first version, its arrays by their places
 */
import { widened } from "./halves.js";

const FIRST_MAGIC = "PELLUCID";
const ENDS = "The trace ends before its arrays do.";

/** @param {ArrayBuffer | ArrayBufferView} bytes @returns {Trace} */
export function parse(bytes) {
  const [buffer, start] = aligned(bytes);
  const data = { buffer, start, end: start + bytes.byteLength };
  if (isFirst(buffer, start, bytes.byteLength)) return parseFirst(data);
  const header = readHeader(buffer, start, bytes.byteLength);
  if (!header) throw new Error("The trace ends before its header does.");
  const trace = traceOf(header, { ...data, start: start + header.begins });
  if (header.begins + header.length > bytes.byteLength) throw new Error(ENDS);
  trace.come = trace.layers.length;
  return trace;
}

/** Whether the bytes are of the first version. @param {ArrayBuffer} buffer @param {number} start @param {number} length */
export const isFirst = (buffer, start, length) =>
  length >= 16 && String.fromCharCode(...new Uint8Array(buffer, start, 8)) === FIRST_MAGIC;

/**
 * The header of a file of the second version, or null if not all of it is here.
 * @param {ArrayBuffer} buffer @param {number} start @param {number} length
 * @returns {{trace: TraceHeader, places: Places, begins: number, length: number} | null}
 */
export function readHeader(buffer, start, length) {
  if (length < 8) return null;
  const size = Number(new DataView(buffer, start, 8).getBigUint64(0, true));
  if (size > 2 ** 28) throw new Error("This is no trace of pellucid.");
  if (8 + size > length) return null;
  const text = new TextDecoder().decode(new Uint8Array(buffer, start + 8, size));
  const { __metadata__: about, ...arrays } = JSON.parse(text);
  if (about?.format !== "pellucid-trace") throw new Error("This is no trace of pellucid.");
  if (about.version !== "2") throw new Error(`The trace is of version ${about.version}; this page reads 1 and 2.`);
  const entries = Object.entries(/** @type {Record<string, Entry>} */ (arrays));
  const places = Object.fromEntries(entries.map(([name, each]) => [name, placeOf(each)]));
  const end = Object.values(places).reduce((most, { to }) => Math.max(most, to), 0);
  return { trace: JSON.parse(about.trace), places, begins: 8 + size, length: end };
}

/** @param {Entry} entry @returns {Place} */
const placeOf = ({ dtype, shape, data_offsets: [from, to] }) => ({ dtype, shape, from, to });

/**
 * The trace, its arrays read when they are asked for.
 * @param {{trace: TraceHeader, places: Places}} header @param {Data} data @returns {Trace}
 */
export function traceOf({ trace, places }, data) {
  const kept = new Map(); // layers may share a mask or a bias
  /** @type {Read} */
  const read = (name, scale = 1) => {
    if (!kept.has(name)) kept.set(name, array(places[name], data, scale));
    return kept.get(name);
  };
  return {
    ...trace,
    come: 0,
    missed: trace.missed ?? [],
    streams: trace.streams.map((each) => ({ ...each, special: new Set(each.special ?? []) })),
    pictures: trace.pictures.map(({ name, tensor }) => {
      const [channels, height, width] = places[tensor].shape;
      return lazily({ name, channels, height, width }, { pixels: () => read(tensor) });
    }),
    layers: trace.layers.map((layer) => layerOf(layer, places, read)),
    maps: trace.maps.map((map) => lazily({ ...map }, { values: () => read(map.tensor) })),
  };
}

/**
 * How many of the layers are here, if so many bytes of the data are.
 * @param {{trace: TraceHeader, places: Places}} header @param {number} received @returns {number}
 */
export function countCome({ trace, places }, received) {
  const missing = trace.layers.findIndex((layer) => arraysOf(layer).some((name) => name && places[name].to > received));
  return missing < 0 ? trace.layers.length : missing;
}

/** The names of a layer's arrays. @param {LayerHeader} layer */
function arraysOf({ q, k, mask, bias, sinks, values, windows }) {
  const inside = windows ? [windows.places, windows.kinds, windows.mask, windows.bias] : [];
  return [q, k, mask, bias, sinks, values, ...inside];
}

/** @param {LayerHeader} layer @param {Places} places @param {Read} read @returns {Layer} */
function layerOf(layer, places, read) {
  const [heads, nQueries, width] = places[layer.q].shape;
  const [keyHeads, held] = places[layer.k].shape;
  const { q, k, sinks, values, windows, ...said } = layer;
  const nKeys = windows ? nQueries : held;
  return lazily(
    { ...said, beta: numeric(layer.beta), heads, keyHeads, nQueries, nKeys, held, width },
    {
      q: () => read(q, layer.q_scale ?? 1),
      k: () => read(k, layer.k_scale ?? 1),
      values: () => values && read(values),
      sinks: () => sinks && read(sinks),
      windows: () => windows && windowsOf(windows, places, read),
      ...besideOf(layer, places, read),
    },
  );
}

/**
 * Mask and bias of a layer or of its windows; the axis before queries and keys is that of heads.
 * @param {Beside} beside @param {Places} places @param {Read} read
 */
const besideOf = ({ mask, bias, bias_scale: scale }, places, read) => ({
  mask: () => mask && { heads: places[mask].shape.at(-3), packed: true, bits: read(mask) },
  bias: () => bias && { heads: places[bias].shape.at(-3), values: read(bias, scale ?? 1) },
});

/** @param {WindowsHeader} windows @param {Places} places @param {Read} read @returns {Windows} */
function windowsOf(windows, places, read) {
  /** @type {Int32Array[]} */
  const [all, kinds] = [read(windows.places), read(windows.kinds)];
  const stands = new Int32Array(all.length);
  all.forEach((key, place) => (stands[key] = place));
  return lazily({ size: places[windows.places].shape[1], places: all, kinds, stands }, besideOf(windows, places, read));
}

/** @param {number | string} beta */
const numeric = (beta) => Number(String(beta).replace("inf", "Infinity"));

/**
 * The object with properties that are made when they are first asked for.
 * @param {object} object @param {Record<string, () => unknown>} makers @returns {any}
 */
function lazily(object, makers) {
  for (const [name, make] of Object.entries(makers)) {
    const get = () => {
      const value = make();
      Object.defineProperty(object, name, { value, enumerable: true });
      return value;
    };
    Object.defineProperty(object, name, { get, enumerable: true, configurable: true });
  }
  return object;
}

/** @param {Place} place @param {Data} data @param {number} scale @returns {any} */
function array({ dtype, from, to }, { buffer, start, end }, scale) {
  if (start + to > end) throw new Error(ENDS);
  if (dtype === "U8" || dtype === "uint8") return new Uint8Array(buffer, start + from, to - from);
  const bytes = (start + from) % 4 ? buffer.slice(start + from, start + to) : null;
  const [there, at] = bytes ? [bytes, 0] : [buffer, start + from];
  if (dtype === "F32" || dtype === "float32") return new Float32Array(there, at, (to - from) / 4);
  if (dtype === "I32") return new Int32Array(there, at, (to - from) / 4);
  if (dtype === "F16" || dtype === "float16") return widened(new Uint16Array(there, at, (to - from) / 2), scale);
  throw new Error(`The trace has an array of ${dtype}, which this page doesn't know.`);
}

/**
 * Typed arrays want their place at a multiple of their size; bytes that came inside a message may lie anywhere.
 * @param {ArrayBuffer | ArrayBufferView} bytes @returns {[ArrayBuffer, number]}
 */
function aligned(bytes) {
  if (bytes instanceof ArrayBuffer) return [bytes, 0];
  if (bytes.byteOffset % 8 === 0) return [/** @type {ArrayBuffer} */ (bytes.buffer), bytes.byteOffset];
  const copy = new Uint8Array(bytes.buffer, bytes.byteOffset, bytes.byteLength).slice();
  return [copy.buffer, 0];
}

/**
 * A trace of the first version as one of the second: one picture, and rows of tokens "image" and "words".
 * @param {Data} data @returns {Trace}
 */
function parseFirst({ buffer, start, end }) {
  const view = new DataView(buffer, start, end - start);
  const version = view.getUint32(8, true);
  if (version !== 1) throw new Error(`The trace is of version ${version}; this page reads 1 and 2.`);
  const length = view.getUint32(12, true);
  if (start + 16 + length > end) throw new Error("The trace ends before its header does.");
  const header = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, start + 16, length)));
  const data = { buffer, start: start + 16 + length, end };
  /** @param {FirstArray} each */
  const read = (each) => array({ ...each, from: each.offset, to: each.offset + each.length }, data, each.scale);
  const [channels, height, width] = header.image.shape;
  return {
    ...header,
    come: header.layers.length,
    streams: header.tokens.map(streamOfFirst),
    pictures: [{ name: "", channels, height, width, pixels: read(header.image) }],
    layers: header.layers.map((/** @type {FirstLayer} */ layer) => layerOfFirst(layer, read)),
    steps: [],
    missed: [],
    maps: header.maps.map((/** @type {{values: FirstArray}} */ map) => ({ ...map, stream: "image", values: read(map.values) })),
  };
}

/** @param {{name: string, labels: string[], grid: [number, number] | null}} tokens @returns {Stream} */
function streamOfFirst({ name, labels, grid }) {
  const patches = grid && name === "image";
  const first = grid ? labels.length - grid[0] * grid[1] : 0;
  const [kind, picture] = patches ? ["patches", 0] : [name === "words" ? "text" : "tokens", null];
  const prompt = name === "words" ? 1 : null;
  return { name, kind, labels, special: new Set(), grid, first, picture, seconds: null, prompt };
}

/** @param {FirstLayer} layer @param {(each: FirstArray) => any} read @returns {Layer} */
function layerOfFirst(layer, read) {
  const [heads, nQueries, width] = layer.q.shape;
  return {
    ...layer,
    beta: numeric(layer.beta),
    softcap: null,
    heads,
    keyHeads: layer.k.shape[0],
    nQueries,
    nKeys: layer.k.shape[1],
    held: layer.k.shape[1],
    width,
    q: read(layer.q),
    k: read(layer.k),
    values: read(layer.values),
    mask: layer.mask && { heads: 1, packed: false, bits: read(layer.mask) },
    bias: null,
    sinks: null,
    windows: null,
  };
}
