/**
 * A trace to look at: point at a patch or a word and see what it attends to.
 *
 * @typedef {import("./bundle.js").Trace} Trace
 * @typedef {import("./state.js").State} State
 * @typedef {{name: string, token: number, role?: string}} Under the token under the pointer
 * @typedef {{
 *   trace: Trace, state: State, look: import("./look.js").Look, scale: import("./colour.js").Scale,
 *   picture: {own: any, grey: any} | null, under: Under | null,
 * }} Seen
 * @typedef {{
 *   change: (part: Partial<State>) => void, edit: (part: object) => void, draw: () => void,
 *   asks: (name: string, role?: string) => boolean, point: (name: string, token: number, role?: string) => void,
 *   choose: (name: string, token: number, role?: string) => void, move: (name: string, token: number) => void,
 * }} Actions change: the state; point: hover; choose: click; move: with the keyboard
 */
import { readArriving } from "./arriving.js";
import { parse } from "./bundle.js";
import { makeChain } from "./chain.js";
import { makeScale } from "./colour.js";
import { makeChanger, makeControls } from "./controls.js";
import { h, say, set } from "./dom.js";
import { prepared } from "./draw.js";
import { look } from "./look.js";
import { makeGuide } from "./guide.js";
import { makeAllHeads } from "./heads.js";
import { makeMatrix } from "./maps.js";
import { makeAnswers, makeNumbers, spoken } from "./numbers.js";
import { makeStage } from "./stage.js";
import { firstToken, fitting, fromHash, toHash, withEdit } from "./state.js";
import { isPictured, saidBy, sentenceOf, visible, wordAt } from "./streams.js";

const SOON = 40; // milliseconds after which the slow parts are drawn
const LATER = 300; // after which the address is written and the row is spoken

/**
 * @typedef {ArrayBuffer | ArrayBufferView} Bytes
 * @typedef {{destroy: () => void, state: () => State | null, whole: Promise<Uint8Array<ArrayBuffer> | null>}} Viewer whole: all bytes
 *   of what was read while it came
 */

/**
 * Show one trace, or several to choose from. A response is shown while it comes: as soon as its first layer is there.
 * @param {HTMLElement} element @param {Bytes | Bytes[] | Response} data @param {{stateInAddress?: boolean}} options
 * @returns {Viewer}
 */
export function mount(element, data, { stateInAddress = true } = {}) {
  /** @type {ReturnType<typeof show> | null} */
  let shown = null;
  let gone = false;
  const fail = (error) => {
    if (gone) return null;
    shown?.destroy();
    shown = null;
    element.replaceChildren(h("p", { class: "pellucid pl-error", role: "alert" }, error.message));
    return null;
  };
  const begin = (traces) => {
    const empty = !traces.length || traces.some((trace) => !trace.layers.length);
    if (empty) throw new Error("There is no attention to see.");
    shown = show(element, traces, stateInAddress);
  };
  const arrived = (trace) => {
    if (gone) throw new Error("Nobody waits for it.");
    if (shown) shown.more();
    else begin([trace]);
  };
  /** @type {Promise<Uint8Array<ArrayBuffer> | null>} */
  let whole = Promise.resolve(null);
  try {
    if (data instanceof Response) whole = readArriving(data, arrived).catch(fail);
    else begin((Array.isArray(data) ? data : [data]).map(parse));
  } catch (error) {
    fail(error);
  }
  return {
    destroy() {
      gone = true;
      if (shown) shown.destroy();
      else element.replaceChildren();
    },
    state: () => shown?.state() ?? null,
    whole,
  };
}

function show(element, traces, stateInAddress) {
  /** What was asked for, while not all of it is here; null once somebody has chosen another layer. */
  /** @type {Partial<State> | null} */
  let awaited = stateInAddress ? fromHash(location.hash) : {};
  let state = fitting(traces, awaited);
  /** @type {Under | null} */
  let under = null;
  /** @type {Seen} */
  let seen;
  const pictures = traces.map((trace) => trace.pictures.map(prepared));
  const timers = { soon: 0, later: 0 };

  /** @type {Actions} */
  const actions = {
    change(part) {
      const elsewhere = part.layer !== undefined || part.trace !== undefined;
      const wanted = /** @type {State} */ ({ ...state, ...part });
      awaited = elsewhere ? null : awaited && { ...awaited, ...part };
      if (elsewhere) Object.assign(wanted, moved(wanted));
      state = fitting(traces, wanted);
      draw();
    },
    edit(part) {
      if (state.key !== null) actions.change(withEdit(state, state.key, part));
    },
    draw,
    asks: (name, role) =>
      role !== "key" && name === seen.look.queries.name && (role === "query" || state.pick === "query") && follows(),
    point(name, token, role) {
      under = { name, token, role };
      if (actions.asks(name, role) && !state.pin) actions.change({ token });
      else draw();
    },
    choose(name, token, role) {
      under = { name, token, role };
      const word = role === "query" && name === saidBy(traces[state.trace])?.name ? mapOfWord(token) : null;
      if (actions.asks(name, role)) actions.change({ token, pin: !(state.pin && state.token === token) });
      else if (word !== null) actions.change({ target: word });
      else if (name === seen.look.keys.name && role !== "query") actions.change({ key: token, pin: true });
    },
    move(name, token) {
      under = { name, token };
      actions.change(actions.asks(name) ? { token } : name === seen.look.keys.name ? { key: token } : {});
    },
  };

  /** Whether what is painted follows the query. */
  const follows = () => state.method === "row" || (seen.look.map !== null && seen.look.map.word !== null);

  function mapOfWord(position) {
    const stream = saidBy(traces[state.trace]);
    const word = stream && wordAt(traces[state.trace], stream, position);
    const maps = traces[state.trace].maps.filter((map) => map.method === state.method);
    const place = maps.findIndex((map) => map.word === word);
    return place < 0 || word === null ? null : place;
  }

  /** In another layer a token keeps its number where it is the same token; elsewhere one begins anew. */
  function moved(wanted) {
    const [from, to] = [traces[state.trace], traces[wanted.trace]];
    if (wanted.trace !== state.trace && !to.layers[wanted.layer]) wanted.layer = undefined;
    const [old, next] = [from.layers[state.layer], to.layers[wanted.layer]];
    if (!next) return { token: undefined, key: null, pin: false, edits: {} };
    const same = old.queries === next.queries;
    return {
      token: same ? wanted.token : firstToken(to, next),
      key: old.keys === next.keys ? wanted.key : null,
      pin: same && wanted.pin,
      ...(wanted.trace !== state.trace && { edits: {} }),
    };
  }

  const stage = makeStage(actions);
  const controls = makeControls(actions);
  const changer = makeChanger(actions);
  const numbers = makeNumbers(actions);
  const answers = makeAnswers();
  const matrix = makeMatrix(actions);
  const allHeads = makeAllHeads(actions);
  const chain = makeChain(actions);
  const guide = makeGuide(actions);
  const progress = h("p", { class: "pl-quiet pl-progress", role: "status" });
  const live = h("p", { class: "pl-hidden", "aria-live": "polite", role: "status" });
  const heading = h("p", { class: "pl-model" });
  const strip = makeStrip(traces, pictures, actions);
  const root = h(
    "div",
    { class: "pellucid", keydown: escape },
    h(
      "div",
      { class: "pl-body" },
      h("header", { class: "pl-header" }, h("div", { class: "pl-between" }, heading, guide.begin), guide.element, progress, strip.element),
      h("div", { class: "pl-column pl-first" }, stage.element, chain.element),
      h("div", { class: "pl-column" }, controls.element, changer.element, answers.element),
      h("div", { class: "pl-column pl-wide" }, numbers.element, matrix.element, allHeads.element),
      live,
    ),
  );

  function escape(event) {
    if (event.key === "Escape" && state.pin) actions.change({ pin: false, pick: "query" });
  }

  function draw() {
    const start = performance.now();
    const trace = traces[state.trace];
    const seenNow = look(trace, state);
    const onPicture = isPictured(seenNow.painted);
    const scale = makeScale(state.scale, seenNow.n, seenNow.values, seenNow.distribution, onPicture);
    const onto = seenNow.painted.picture ?? seenNow.queries.picture ?? 0;
    seen = { trace, state, look: seenNow, scale, picture: pictures[state.trace][onto] ?? null, under };
    say(heading, describe(trace));
    say(progress, told(trace));
    for (const part of [strip, stage, controls, changer, numbers, answers, chain, guide]) part.update(seen);
    for (const part of [matrix, allHeads]) part.see(seen);
    root.dataset.pinned = String(state.pin);
    performance.clearMeasures("pellucid row");
    performance.measure("pellucid row", { start, end: performance.now() });
    clearTimeout(timers.soon);
    clearTimeout(timers.later);
    timers.soon = setTimeout(drawSlow, SOON);
    timers.later = setTimeout(tell, LATER);
  }

  function drawSlow() {
    matrix.compute(seen);
    matrix.draw(seen);
    allHeads.draw(seen);
  }

  function tell() {
    say(live, spoken(seen));
    if (stateInAddress) history.replaceState(history.state, "", toHash(state, location.hash));
  }

  function fromAddress() {
    if (toHash(state, location.hash) === location.hash) return;
    state = fitting(traces, fromHash(location.hash));
    draw();
  }

  element.replaceChildren(root);
  draw();
  let width = root.clientWidth;
  const observer = new ResizeObserver(() => {
    if (Math.abs(root.clientWidth - width) < 1) return;
    width = root.clientWidth;
    draw();
  });
  observer.observe(root);
  const dark = matchMedia("(prefers-color-scheme: dark)");
  dark.addEventListener("change", draw);
  if (stateInAddress) window.addEventListener("hashchange", fromAddress);
  return {
    destroy() {
      observer.disconnect();
      clearTimeout(timers.soon);
      clearTimeout(timers.later);
      matrix.stop();
      allHeads.stop();
      dark.removeEventListener("change", draw);
      window.removeEventListener("hashchange", fromAddress);
      root.remove();
    },
    state: () => structuredClone(state),
    /** More of the trace is here. */
    more() {
      state = fitting(traces, awaited ? { ...state, layer: undefined, token: undefined, ...awaited } : state);
      draw();
    },
  };
}

function describe(trace) {
  const heads = [...new Set(trace.layers.map((layer) => layer.heads))].join(" or ");
  const tokens = trace.streams.map(({ labels, name }) => `${labels.length.toLocaleString("en")} ${name} tokens, `);
  return `${trace.model || trace.kind} · ${tokens.join("")}${trace.layers.length} attentions of ${heads} heads`;
}

/** What isn't here, yet or at all. */
function told(trace) {
  if (trace.come < trace.layers.length) return `${trace.come} of ${trace.layers.length} attentions have come …`;
  return trace.missed.map(([name, reason]) => `Not recorded: ${name}, ${reason}.`).join(" ");
}

/** Several traces as thumbnails to choose from. */
function makeStrip(traces, pictures, actions) {
  const element = h("nav", { class: "pl-strip", "aria-label": "Traces", hidden: traces.length < 2 });
  traces.forEach((trace, i) => {
    const answer = visible(trace.answers[0]?.[0] ?? (sentenceOf(trace) || trace.model));
    const small = h("canvas", { "aria-hidden": "true", width: 96, height: 96 });
    const [picture] = pictures[i];
    const context = small.getContext("2d");
    context.imageSmoothingEnabled = picture?.own.width > 96;
    if (picture) context.drawImage(picture.own, 0, 0, 96, 96);
    small.hidden = !picture;
    const click = () => actions.change({ trace: i });
    const label = `${picture ? "Picture" : "Input"} ${i + 1}: ${answer}`;
    element.append(h("button", { type: "button", click, "aria-label": label }, small, h("span", {}, answer)));
  });
  const update = ({ state }) => {
    [...element.children].forEach((button, i) => set(button, "aria-pressed", String(i === state.trace)));
  };
  return { element, update };
}
