/**
 * The picture and the tokens: what is painted, and where one points.
 *
 * @typedef {import("./viewer.js").Seen} Seen
 * @typedef {import("./viewer.js").Actions} Actions
 */
import { css, ink, precise, short } from "./colour.js";
import { makeColumns } from "./columns.js";
import { h, say, set } from "./dom.js";
import { drawScale } from "./draw.js";
import { title } from "./look.js";
import { makePicture } from "./picture.js";
import { besidePicture, isPictured, positionOf, queryLabel, saidBy, streamOf } from "./streams.js";
import { makeTokens } from "./tokens.js";

const NONE = { labels: [], special: new Set(), name: "", kind: "text" };

/** @param {Actions} actions */
export function makeStage(actions) {
  const headline = h("h2", { class: "pl-headline" });
  const circumstances = h("p", { class: "pl-quiet pl-circumstances" });
  const pointing = segments("Pointing picks", [["query", "the query"], ["key", "a key to change"]], (pick) =>
    actions.change({ pick, ...(pick === "key" && { pin: true }) }),
  );
  const viewing = segments("Tokens", [["tokens", "as a line"], ["columns", "in two columns"]], (view) =>
    actions.change({ view }),
  );
  const picture = makePicture(actions);
  const columns = makeColumns(actions);
  const said = makeTokens("Said, with log-probabilities", actions, "query");
  const asking = makeTokens("Ask", actions, "query");
  const read = makeTokens("Read", actions, undefined);
  const readout = h("p", { class: "pl-readout" });
  const bar = h("canvas", { class: "pl-scale", role: "img" });
  const says = h("p", { class: "pl-quiet pl-says" });
  const tools = h("div", { class: "pl-tools" }, pointing, viewing, ...picture.tools);
  const element = h(
    "section",
    { class: "pl-stage", "aria-label": "Picture and tokens" },
    h("div", {}, headline, circumstances),
    tools,
    said.element,
    picture.element,
    columns.element,
    asking.element,
    read.element,
    h("div", {}, bar, says),
    readout,
  );

  /** @param {Seen} seen */
  function update(seen) {
    const { trace, state, look, scale } = seen;
    updateBar(scale, Boolean(seen.picture) && isPictured(look.painted)); // first: it asks for sizes, before any change
    const [first, second] = title(trace, state, look);
    say(headline, first);
    say(circumstances, second);
    press(pointing, state.pick);
    press(viewing, state.view);
    picture.update(seen);
    const generated = saidBy(trace);
    updateSaid(said, seen, generated);
    columns.element.hidden = state.view !== "columns";
    if (state.view === "columns") columns.update(seen);
    const asks = look.queries !== look.keys && look.queries !== look.painted && generated !== look.queries;
    updateTokens(asking, seen, state.view === "tokens" && asks ? look.queries : null);
    updateTokens(read, seen, state.view === "tokens" || look.map ? look.painted : null);
    set(read.element, "aria-label", look.painted.picture === null ? "Read" : "Beside the patches");
    say(readout, seen.under ? readoutOf(seen) : "");
    say(says, `Colours: ${scale.says}.`);
    set(bar, "aria-label", `Colour scale, ${scale.says}`);
  }

  /** The scale is drawn when it is another one, or another size or colour of text. */
  let drawn = "";
  function updateBar(scale, onPicture) {
    const { fontSize, color } = getComputedStyle(bar);
    const how = { width: element.clientWidth || 320, onPicture, size: parseFloat(fontSize) * 0.85 };
    const wanted = JSON.stringify([how, color, scale.says, scale.ticks]);
    if (drawn === wanted) return;
    drawn = wanted;
    drawScale(bar, { ...how, scale, text: color });
  }
  return { element, update };
}

/** Buttons of which one is pressed. @param {string} name @param {string[][]} choices @param {(chosen: any) => void} act */
function segments(name, choices, act) {
  const set = h("fieldset", { class: "pl-segments" }, h("legend", {}, name));
  for (const [value, text] of choices) {
    set.append(h("button", { type: "button", "data-value": value, "aria-pressed": "false", click: () => act(value) }, text));
  }
  return set;
}

function press(box, chosen) {
  for (const button of box.querySelectorAll("button")) set(button, "aria-pressed", String(button.dataset.value === chosen));
}

/** The tokens of a row that lie on no picture, with what is painted on them. */
function updateTokens(line, { state, look, scale }, stream) {
  const painted = stream === look.painted;
  const dress = (token, numbered) => {
    if (!painted) return null;
    const value = look.values[token];
    const share = scale.share(value);
    const number = numbered ? { number: short(value), says: `, weight ${precise(value)}` } : { number: "", says: "" };
    return { colour: css(share), ink: ink(share), ...number };
  };
  const asks = stream === look.queries && state.method === "row";
  const answers = stream === look.keys && !look.map;
  const deleted = answers && look.changed ? look.changed.deleted : new Set();
  const marks = { query: asks ? state.token : null, pin: state.pin, key: answers ? state.key : null, deleted };
  line.update(stream ?? NONE, stream ? besidePicture(stream) : [], dress, marks);
}

/** The words that were said, each with its log-probability; they ask where the layer's queries say words. */
function updateSaid(line, { trace, state, look }, generated) {
  const asks = generated === look.queries && (state.method === "row" || look.map?.word !== null);
  const words = trace.words.map(([word]) => word);
  const labels = generated ? Array.from({ length: positionOf(generated, words.length) }, (_, i) => words[i - positionOf(generated, 0)] ?? "") : [];
  const which = generated ? words.map((_, i) => positionOf(generated, i)) : [];
  const chosen = asks ? state.token : look.map?.word != null && generated ? positionOf(generated, look.map.word) : null;
  const dress = (position) => {
    const logarithm = precise(trace.words[position - which[0]][1]);
    return { colour: "", ink: "", number: logarithm, says: `, log-probability ${logarithm}` };
  };
  const stream = generated ? { ...NONE, name: generated.name, labels } : NONE;
  line.update(stream, which, dress, { query: chosen, pin: state.pin, key: null, deleted: new Set() });
}

function readoutOf({ trace, state, look, under }) {
  const { name, token } = under;
  const label = streamOf(trace, name).labels[token] ?? "";
  if (look.painted.name !== name || under.role === "query") return "";
  const value = look.values[token];
  const times = look.distribution ? ` = ${(value * look.n).toPrecision(2)} × 1/${look.n}` : "";
  const before = look.before ? `, before ${precise(look.before[token])}` : "";
  const asked = state.method === "row" && !look.map ? `${queryLabel(trace, look.layer, state.token)} → ` : "";
  return `${asked}${label}: ${precise(value)}${times}${before}`;
}
