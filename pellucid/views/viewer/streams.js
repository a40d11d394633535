/**
 * Rows of tokens: which of them lie on a picture, how they are called, what was said after them.
 *
 * @typedef {import("./bundle.js").Trace} Trace
 * @typedef {import("./bundle.js").Stream} Stream
 * @typedef {import("./bundle.js").Layer} Layer
 */

/** @param {Trace} trace @param {string} name @returns {Stream} */
export function streamOf(trace, name) {
  const found = trace.streams.find((each) => each.name === name);
  if (!found) throw new Error(`The trace has no tokens called ${name}.`);
  return found;
}

/** How many of the tokens are patches. @param {Stream} stream */
export const patchCount = ({ grid }) => (grid ? grid[0] * grid[1] : 0);

/** Whether a token lies on the grid. @param {Stream} stream @param {number} token */
export const isPatch = (stream, token) => token >= stream.first && token < stream.first + patchCount(stream);

/** Whether its patches can be painted on a picture. @param {Stream} stream */
export const isPictured = ({ grid, picture }) => grid !== null && picture !== null;

/** @type {WeakMap<Stream, number[]>} */
const beside = new WeakMap();

/** The tokens that don't lie on a picture, in their order. @param {Stream} stream @returns {number[]} */
export function besidePicture(stream) {
  let found = beside.get(stream);
  if (!found) {
    const all = Array.from(stream.labels, (_, i) => i);
    found = isPictured(stream) ? all.filter((i) => !isPatch(stream, i)) : all;
    beside.set(stream, found);
  }
  return found;
}

/** A label that can be seen. @param {string} label */
export function visible(label) {
  const text = label.replaceAll("\n", "⏎").replaceAll("\t", "⇥");
  return text.trim() ? text : text.replaceAll(" ", "␣") || "∅";
}

/** A token by its label; of text, where words come again, with its place. @param {Stream} stream @param {number} token */
export function tokenName(stream, token) {
  const label = visible(stream.labels[token]);
  return stream.kind === "text" ? `${label.trim()} (${token})` : label;
}

/** Which word the query at this position said, or null. @param {Trace} trace @param {Stream} stream @param {number} position */
export function wordAt(trace, stream, position) {
  if (stream.prompt === null || stream.prompt === undefined) return null;
  const word = position - Math.max(stream.prompt - 1, 0);
  return trace.words[word] && word >= 0 ? word : null;
}

/** The position whose query said the word. @param {Stream} stream @param {number} word */
export const positionOf = (stream, word) => word + Math.max((stream.prompt ?? 1) - 1, 0);

/** What was said as a sentence: pieces of words bring their own spaces, whole words don't; its end isn't written. @param {Trace} trace */
export function sentenceOf({ words }) {
  const said = words.map(([word]) => word).filter((word) => word !== "<end>");
  return said.join(said.some((word) => word.startsWith(" ")) ? "" : " ").trim();
}

/** The stream whose queries said the words, if any were said. @param {Trace} trace @returns {Stream | null} */
export function saidBy(trace) {
  if (!trace.words.length) return null;
  return trace.streams.find(({ prompt }) => prompt !== null && prompt !== undefined) ?? null;
}

/** A query by its name: of what generates, the word that was said. @param {Trace} trace @param {Layer} layer @param {number} token */
export function queryLabel(trace, layer, token) {
  const stream = streamOf(trace, layer.queries);
  const label = stream.labels[token];
  const word = wordAt(trace, stream, token);
  if (word !== null) return `“${visible(trace.words[word][0]).trim()}”`;
  if (stream.kind === "text") return saidBy(trace) === stream ? `what follows “${visible(label).trim()}”` : `“${visible(label).trim()}”`;
  return stream.kind === "patches" && !isPatch(stream, token) ? `the ${label} token` : label;
}
