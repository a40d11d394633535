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
 *   name: string, queries: string, keys: string, beta: number, causal: boolean, softcap: number | null,
 *   heads: number, keyHeads: number, nQueries: number, nKeys: number, width: number,
 *   q: Float32Array, k: Float32Array, values: Float32Array | null, mask: Mask | null, bias: Bias | null,
 *   sinks: Float32Array | null,
 * }} Layer heads one after the other, then tokens, then features; keyHeads: heads share keys if there are fewer
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

/** Whether the bytes are of the first version. @param {ArrayBuffer} buffer */
export const isFirst = (buffer, start, length) =>
  length >= 16 && String.fromCharCode(...new Uint8Array(buffer, start, 8)) === FIRST_MAGIC;

/**
 * The header of a file of the second version, or null if not all of it is here.
 * @param {ArrayBuffer} buffer @param {number} start @param {number} length
 * @returns {{trace: any, places: Record<string, Place>, begins: number, length: number} | null}
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
  const places = Object.fromEntries(Object.entries(arrays).map(([name, each]) => [name, placeOf(each)]));
  const end = Object.values(places).reduce((most, { to }) => Math.max(most, to), 0);
  return { trace: JSON.parse(about.trace), places, begins: 8 + size, length: end };
}

const placeOf = ({ dtype, shape, data_offsets: [from, to] }) => ({ dtype, shape, from, to });

/** The trace, its arrays read when they are asked for. @param {any} header @param {Data} data @returns {Trace} */
export function traceOf({ trace, places }, data) {
  const kept = new Map(); // layers may share a mask or a bias
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

/** How many of the layers are here, if so many bytes of the data are. @returns {number} */
export function countCome({ trace, places }, received) {
  const names = (layer) => ["q", "k", "mask", "bias", "sinks", "values"].map((part) => layer[part]);
  const missing = trace.layers.findIndex((layer) => names(layer).some((name) => name && places[name].to > received));
  return missing < 0 ? trace.layers.length : missing;
}

function layerOf(layer, places, read) {
  const [heads, nQueries, width] = places[layer.q].shape;
  const [keyHeads, nKeys] = places[layer.k].shape;
  const { q, k, mask, bias, sinks, values, ...said } = layer;
  return lazily(
    { ...said, beta: numeric(layer.beta), heads, keyHeads, nQueries, nKeys, width },
    {
      q: () => read(q, layer.q_scale ?? 1),
      k: () => read(k, layer.k_scale ?? 1),
      values: () => values && read(values),
      sinks: () => sinks && read(sinks),
      mask: () => mask && { heads: places[mask].shape[0], packed: true, bits: read(mask) },
      bias: () => bias && { heads: places[bias].shape[0], values: read(bias, layer.bias_scale ?? 1) },
    },
  );
}

const numeric = (beta) => Number(String(beta).replace("inf", "Infinity"));

/** The object with properties that are made when they are first asked for. */
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
  if (dtype === "F16" || dtype === "float16") return widened(new Uint16Array(there, at, (to - from) / 2), scale);
  throw new Error(`The trace has an array of ${dtype}, which this page doesn't know.`);
}

/** Typed arrays want their place at a multiple of their size; bytes that came inside a message may lie anywhere. */
function aligned(bytes) {
  if (bytes instanceof ArrayBuffer) return [bytes, 0];
  if (bytes.byteOffset % 8 === 0) return [bytes.buffer, bytes.byteOffset];
  const copy = new Uint8Array(bytes.buffer, bytes.byteOffset, bytes.byteLength).slice();
  return [copy.buffer, 0];
}

/** A trace of the first version as one of the second: one picture, and rows of tokens "image" and "words". */
function parseFirst({ buffer, start, end }) {
  const view = new DataView(buffer, start, end - start);
  const version = view.getUint32(8, true);
  if (version !== 1) throw new Error(`The trace is of version ${version}; this page reads 1 and 2.`);
  const length = view.getUint32(12, true);
  if (start + 16 + length > end) throw new Error("The trace ends before its header does.");
  const header = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, start + 16, length)));
  const data = { buffer, start: start + 16 + length, end };
  const read = (each) => array({ ...each, from: each.offset, to: each.offset + each.length }, data, each.scale);
  const [channels, height, width] = header.image.shape;
  return {
    ...header,
    come: header.layers.length,
    streams: header.tokens.map(streamOfFirst),
    pictures: [{ name: "", channels, height, width, pixels: read(header.image) }],
    layers: header.layers.map((layer) => layerOfFirst(layer, read)),
    steps: [],
    missed: [],
    maps: header.maps.map((map) => ({ ...map, stream: "image", values: read(map.values) })),
  };
}

function streamOfFirst({ name, labels, grid }) {
  const patches = grid && name === "image";
  const first = grid ? labels.length - grid[0] * grid[1] : 0;
  const [kind, picture] = patches ? ["patches", 0] : [name === "words" ? "text" : "tokens", null];
  const prompt = name === "words" ? 1 : null;
  return { name, kind, labels, special: new Set(), grid, first, picture, seconds: null, prompt };
}

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
    width,
    q: read(layer.q),
    k: read(layer.k),
    values: read(layer.values),
    mask: layer.mask && { heads: 1, packed: false, bits: read(layer.mask) },
    bias: null,
    sinks: null,
  };
}
