/**
 * What is looked at, and how it is written in the address.
 *
 * @typedef {import("./bundle.js").Trace} Trace
 * @typedef {import("./bundle.js").Layer} Layer
 * @typedef {import("./attention.js").Edit} Edit
 * @typedef {{
 *   trace: number, layer: number, head: number | "mean" | "max", token: number, pin: boolean, key: number | null,
 *   pick: "query" | "key", method: string, target: number, beta: number, view: "tokens" | "columns",
 *   scale: import("./colour.js").ScaleKind, edits: Record<string, Edit>, off: string[],
 * }} State token: the query; beta: times the layer's own; target: which of the method's maps;
 *   edits: by "layer-key"; off: heads that are switched off, "layer-head"
 */
import { isPictured, streamOf } from "./streams.js";

export const UNCHANGED = Object.freeze({ length: 1, noise: 0, deleted: false });

/**
 * Where to begin: the last attention onto a picture, else the last onto other tokens, else the first.
 * @param {Trace[]} traces @returns {State}
 */
export function beginning(traces, trace = 0) {
  const { layers } = traces[trace];
  const pictured = layers.findLastIndex((each) => isPictured(streamOf(traces[trace], each.keys)));
  const layer = Math.max(0, pictured >= 0 ? pictured : layers.findLastIndex((each) => each.keys !== each.queries));
  return {
    trace,
    layer,
    head: "mean",
    token: firstToken(traces[trace], layers[layer]),
    pin: false,
    key: null,
    pick: "query",
    method: "row",
    target: 0,
    beta: 1,
    view: "tokens",
    scale: "absolute",
    edits: {},
    off: [],
  };
}

/**
 * The query that a layer is first seen from: the class token or the middle patch; of text the last that is a word.
 * @param {Trace} trace @param {Layer} layer
 */
export function firstToken(trace, layer) {
  const asked = streamOf(trace, layer.queries);
  if (asked.prompt !== null && trace.words.length) return Math.max(asked.prompt - 1, 0);
  if (asked.kind === "text") {
    const last = layer.causal ? layer.nQueries - 1 : 0;
    const words = asked.labels.flatMap((_, i) => (asked.special.has(i) ? [] : [i]));
    return layer.causal ? last : (words[0] ?? last);
  }
  if (!asked.grid) return 0;
  const [rows, columns] = asked.grid;
  return asked.first ? 0 : Math.floor(rows / 2) * columns + Math.floor(columns / 2);
}

/**
 * The state, made to fit the traces: what an address asks for may not be there.
 * @param {Trace[]} traces @param {Partial<State>} wanted @returns {State}
 */
export function fitting(traces, wanted) {
  const start = beginning(traces, within(wanted.trace, traces.length, 0));
  const trace = traces[start.trace];
  const state = { ...start, ...wanted, trace: start.trace };
  state.layer = within(state.layer, trace.layers.length, start.layer);
  if (state.layer >= trace.come) state.layer = Math.max(trace.come - 1, 0);
  const layer = trace.layers[state.layer];
  const usual = firstToken(trace, layer);
  state.token = within(wanted.token, layer.nQueries, usual);
  state.key = state.key === null ? null : within(state.key, layer.nKeys, null);
  if (typeof state.head === "number") state.head = within(state.head, layer.heads, "mean");
  if (!["row", "column"].includes(state.method)) {
    const maps = trace.come < trace.layers.length ? [] : trace.maps.filter((map) => map.method === state.method);
    if (!maps.length) state.method = "row";
    state.target = within(state.target, maps.length, 0);
  }
  const there = (/** @type {string} */ place) => within(Number(place.split("-")[1]), trace.layers[Number(place.split("-")[0])]?.nKeys ?? 0, null);
  state.edits = Object.fromEntries(Object.entries(state.edits).filter(([place]) => there(place) !== null));
  const headsOf = (/** @type {string} */ place) => trace.layers[Number(place.split("-")[0])]?.heads ?? 0;
  state.off = state.off.filter((place) => Number(place.split("-")[1]) < headsOf(place));
  return state;
}

/**
 * The number if it is one of 0…n − 1.
 * @template T @param {number | null | undefined} i @param {number} n @param {T} otherwise @returns {number | T}
 */
const within = (i, n, otherwise) => (typeof i === "number" && Number.isInteger(i) && i >= 0 && i < n ? i : otherwise);

/** The edits of one layer's keys. @param {State} state @returns {Map<number, Edit>} */
export function editsOf(state, layer = state.layer) {
  const found = new Map();
  for (const [place, edit] of Object.entries(state.edits)) {
    const [of, key] = place.split("-").map(Number);
    if (of === layer) found.set(key, edit);
  }
  return found;
}

/** The heads of one layer that are switched off. @param {State} state @returns {number[]} */
export function offOf(state, layer = state.layer) {
  return state.off.map((place) => place.split("-").map(Number)).flatMap(([of, head]) => (of === layer ? [head] : []));
}

/** The state's heads that are off, with one more or one less. @param {State} state @param {number} head */
export function switched(state, head) {
  const place = `${state.layer}-${head}`;
  return state.off.includes(place) ? state.off.filter((each) => each !== place) : [...state.off, place];
}

/**
 * The state with one key of the present layer changed.
 * @param {State} state @param {number} key @param {Partial<Edit>} change @returns {State}
 */
export function withEdit(state, key, change) {
  const place = `${state.layer}-${key}`;
  const edit = { ...UNCHANGED, ...state.edits[place], ...change };
  const { [place]: _, ...others } = state.edits;
  const same = edit.length === 1 && edit.noise === 0 && !edit.deleted;
  return { ...state, edits: same ? others : { ...others, [place]: edit } };
}

const OURS = "trace layer head token pin key pick method target beta view scale edits off".split(" ");

/** The address's fragment: others' entries stay, ours are written anew. @param {State} state */
export function toHash(state, hash = "") {
  const entries = new URLSearchParams(hash.replace(/^#/, ""));
  for (const name of OURS) entries.delete(name);
  for (const name of /** @type {const} */ (["trace", "layer", "head", "token", "method"])) entries.set(name, String(state[name]));
  if (state.pin) entries.set("pin", "1");
  if (state.key !== null) entries.set("key", String(state.key));
  if (state.pick !== "query") entries.set("pick", state.pick);
  if (state.target) entries.set("target", String(state.target));
  if (state.beta !== 1) entries.set("beta", state.beta === Infinity ? "inf" : String(state.beta));
  if (state.view !== "tokens") entries.set("view", state.view);
  if (state.scale !== "absolute") entries.set("scale", state.scale);
  if (state.off.length) entries.set("off", state.off.join("_"));
  const edits = Object.entries(state.edits).map(([place, edit]) => {
    const parts = [place, edit.length !== 1 && `x${edit.length}`, edit.noise && `n${edit.noise}`, edit.deleted && "d"];
    return parts.filter(Boolean).join("-");
  });
  if (edits.length) entries.set("edits", edits.join("_"));
  return `#${entries}`;
}

/** What a fragment asks for; whatever can't be read is left out. @param {string} hash @returns {Partial<State>} */
export function fromHash(hash) {
  const entries = new URLSearchParams(hash.replace(/^#/, ""));
  /** @type {any} */
  const wanted = {};
  for (const name of ["trace", "layer", "token", "key", "target"]) {
    if (/^\d{1,9}$/.test(entries.get(name) ?? "")) wanted[name] = Number(entries.get(name));
  }
  const head = entries.get("head") ?? "";
  if (/^\d{1,4}$/.test(head)) wanted.head = Number(head);
  else if (["mean", "max"].includes(head)) wanted.head = head;
  if (entries.has("pin")) wanted.pin = entries.get("pin") === "1";
  if (entries.get("pick") === "key") wanted.pick = "key";
  if (entries.has("method")) wanted.method = entries.get("method");
  const beta = entries.get("beta") === "inf" ? Infinity : Number(entries.get("beta") ?? 1);
  if (beta >= 0) wanted.beta = beta;
  if (["absolute", "linear", "rescaled"].includes(entries.get("scale") ?? "")) wanted.scale = entries.get("scale");
  if (["tokens", "columns"].includes(entries.get("view") ?? "")) wanted.view = entries.get("view");
  if (entries.has("off")) wanted.off = (entries.get("off") ?? "").split("_").filter((each) => /^\d{1,4}-\d{1,4}$/.test(each));
  if (entries.has("edits")) wanted.edits = Object.fromEntries((entries.get("edits") ?? "").split("_").flatMap(edit));
  return wanted;
}

/** @param {string} text @returns {[string, Edit][]} */
function edit(text) {
  const match = /^(\d{1,4}-\d{1,6})(?:-x(\d*\.?\d+))?(?:-n(\d*\.?\d+))?(-d)?$/.exec(text);
  if (!match) return [];
  return [[match[1], { length: Number(match[2] ?? 1), noise: Number(match[3] ?? 0), deleted: Boolean(match[4]) }]];
}

/** The slider of β, 0 to 100: none at all, then 1/90 to 90 times with 1× in the middle, then hard. @param {number} place */
export function betaAt(place) {
  if (place <= 0) return 0;
  if (place >= 100) return Infinity;
  return Number((10 ** ((place - 50) / 25)).toPrecision(3));
}

/** @param {number} beta @returns {number} the slider's place */
export function placeOf(beta) {
  if (beta === 0) return 0;
  return beta === Infinity ? 100 : Math.min(Math.max(50 + 25 * Math.log10(beta), 1), 99);
}

/** times·β, where 0·∞ is 0: no attention to scores at all. @param {number} times @param {number} beta */
export const timesBeta = (times, beta) => (times === 0 ? 0 : times * beta);
