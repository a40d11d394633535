/**
 * A trace that is still on its way: it can be looked at as soon as its first layer is here.
 *
 * @typedef {import("./bundle.js").Trace} Trace
 */
import { countCome, isFirst, parse, readHeader, traceOf } from "./bundle.js";

const BEGINNING = 2 ** 16; // bytes that are gathered before the header is known
const MOST = 2 ** 31; // bytes of a trace that a page can hold

/**
 * Read a response; each time another layer has come, and at the end, `told` gets the trace.
 * @param {Response} response @param {(trace: Trace) => void} told @returns {Promise<Uint8Array<ArrayBuffer>>} all its bytes
 */
export async function readArriving(response, told) {
  if (!response.body) throw new Error("The trace didn't come.");
  const reader = response.body.getReader();
  let bytes = new Uint8Array(BEGINNING);
  let [received, sizes] = [0, 0];
  /** @type {any} */
  let header = null;
  /** @type {Trace | null} */
  let trace = null;
  for (let piece = await reader.read(); !piece.done; piece = await reader.read()) {
    if (received + piece.value.length > bytes.length) {
      if (header) throw new Error("The trace is longer than its header says.");
      bytes = grown(bytes, Math.max(2 * bytes.length, received + piece.value.length));
    }
    bytes.set(piece.value, received);
    received += piece.value.length;
    if (!header && !isFirst(bytes.buffer, 0, received) && (header = readHeader(bytes.buffer, 0, received))) {
      const total = header.begins + header.length;
      if (total > MOST) throw new Error("The trace is larger than a page can hold.");
      bytes = grown(bytes.subarray(0, Math.min(received, total)), total);
      trace = traceOf(header, { buffer: bytes.buffer, start: header.begins, end: total });
    }
    if (!trace) continue;
    const come = countCome(header, received - header.begins);
    if (come > sizes) {
      sizes = come;
      if (come < trace.layers.length) told(Object.assign(trace, { come }));
    }
  }
  const whole = bytes.subarray(0, received);
  if (trace && received === bytes.length) told(Object.assign(trace, { come: trace.layers.length }));
  else told(parse(whole));
  return whole;
}

/** @param {Uint8Array} bytes @param {number} length */
function grown(bytes, length) {
  const larger = new Uint8Array(length);
  larger.set(bytes);
  return larger;
}
