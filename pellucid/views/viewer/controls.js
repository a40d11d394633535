/**
 * What can be chosen: layer, head, method, scale, β; and what can be done to a key.
 *
 * @typedef {import("./viewer.js").Seen} Seen
 * @typedef {import("./viewer.js").Actions} Actions
 */
import { largest, mixed, moved, scoresOf, seenKeys } from "./attention.js";
import { makeScale, precise } from "./colour.js";
import { h, say, set } from "./dom.js";
import { drawSmallMap } from "./draw.js";
import { betaText } from "./look.js";
import { UNCHANGED, betaAt, placeOf, switched } from "./state.js";
import { tokenName } from "./streams.js";

/** @param {Actions} actions */
export function makeControls(actions) {
  const layer = h("select", { "aria-label": "Layer", change: () => actions.change({ layer: Number(layer.value) }) });
  const step = (by) => () => {
    const to = layer.selectedIndex + by;
    if (to >= 0 && to < layer.options.length && !layer.options[to].disabled) actions.change({ layer: Number(layer.options[to].value) });
  };
  const heads = h("div", { class: "pl-heads", role: "radiogroup", "aria-label": "Head", keydown: arrows });
  const off = h("button", { type: "button", class: "pl-off", click: switchOff }, "");
  const choose = () => actions.change({ method: method.value, target: 0 });
  const method = h("select", { "aria-label": "Method", change: choose });
  const target = h("select", { "aria-label": "For", change: () => actions.change({ target: Number(target.value) }) });
  const targetField = h("label", { class: "pl-field" }, h("span", {}, "For"), target);
  const scale = h("select", { "aria-label": "Scale", change: () => actions.change({ scale: scale.value }) });
  for (const [kind, text] of [
    ["absolute", "absolute, logarithmic"],
    ["linear", "absolute, linear"],
    ["rescaled", "rescaled to this map"],
  ]) {
    scale.append(h("option", { value: kind }, text));
  }
  const beta = slider(100, 1, (place) => actions.change({ beta: betaAt(place) }));
  const betaNumber = h("span", { class: "pl-number" });
  const marks = h("div", { class: "pl-marks" });
  for (const [times, text] of Object.entries({ 0: "0", 1: "1×", Infinity: "hard" })) {
    const click = () => actions.change({ beta: Number(times) });
    marks.append(h("button", { type: "button", "data-beta": times, click }, text));
  }
  const element = h(
    "section",
    { class: "pl-card pl-controls", "aria-label": "Choices" },
    h("label", { class: "pl-field" }, h("span", {}, "Layer"), layer),
    h(
      "div",
      { class: "pl-segments pl-steps" },
      h("button", { type: "button", "aria-label": "Layer before", click: step(-1) }, "‹ before"),
      h("button", { type: "button", "aria-label": "Next layer", click: step(1) }, "next ›"),
    ),
    h("div", {}, h("div", { class: "pl-between" }, h("span", { class: "pl-label" }, "Head"), off), heads),
    h(
      "div",
      { class: "pl-pair" },
      h("label", { class: "pl-field" }, h("span", {}, "Method"), method),
      targetField,
      h("label", { class: "pl-field" }, h("span", {}, "Scale"), scale),
    ),
    h(
      "div",
      {},
      h("label", { class: "pl-field pl-beta" }, h("span", {}, "Inverse temperature β"), beta),
      marks,
      betaNumber,
    ),
  );

  /** @type {Seen | null} */
  let shown = null;
  function switchOff() {
    if (!shown) return;
    const { state } = shown;
    actions.change({ off: typeof state.head === "number" ? switched(state, state.head) : [] });
  }

  function arrows(event) {
    const by = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    if (!by) return;
    event.preventDefault();
    const all = [...heads.children];
    const now = all.findIndex((each) => each.getAttribute("aria-checked") === "true");
    const next = all[(now + by + all.length) % all.length];
    next.click();
    next.focus();
  }

  /** @param {Seen} seen */
  function update(seen) {
    const { trace, state, look } = seen;
    shown = seen;
    fillLayers(layer, trace);
    if (typeof state.head === "number") say(off, `Switch head ${state.head} ${look.off.has(state.head) ? "on" : "off"}`);
    else say(off, "All heads on");
    off.hidden = Boolean(look.map) || (typeof state.head === "string" && !state.off.length);
    layer.value = String(state.layer);
    updateHeads(heads, seen, actions);
    const stored = [...new Set(trace.maps.map((map) => map.method))];
    options(method, [["row", "row of the query"], ["column", "column mass"], ...stored.map((name) => [name, name])]);
    method.value = state.method;
    const maps = trace.maps.filter((map) => map.method === state.method);
    targetField.hidden = maps.length < 2 || look.map?.word !== null;
    options(
      target,
      maps.map((map, i) => [String(i), map.target]),
    );
    target.value = String(state.target);
    scale.value = state.scale;
    scale.disabled = !look.distribution;
    beta.disabled = Boolean(look.map);
    const place = String(Math.round(placeOf(state.beta)));
    if (beta.value !== place) beta.value = place;
    const text = `β ${betaText(state.beta, look.beta)}`;
    say(betaNumber, text);
    set(beta, "aria-valuetext", text);
    for (const button of marks.children) {
      set(button, "aria-pressed", String(Number(button.dataset.beta) === state.beta));
      button.disabled = Boolean(look.map);
    }
  }
  return { element, update };
}

function slider(max, step, act) {
  const input = h("input", { type: "range", min: 0, max, step, input: () => act(Number(input.value)) });
  return input;
}

function options(select, pairs) {
  const text = JSON.stringify(pairs);
  if (select.dataset.pairs === text) return;
  select.dataset.pairs = text;
  select.replaceChildren(...pairs.map(([value, name]) => h("option", { value }, name)));
}

function fillLayers(select, trace) {
  const text = JSON.stringify([trace.come, trace.layers.map((each) => [each.name, each.queries, each.keys])]);
  if (select.dataset.layers === text) return;
  select.dataset.layers = text;
  const kinds = [...new Set(trace.layers.map((each) => `${each.queries} → ${each.keys}`))];
  const groups = kinds.map((kind) => {
    const group = h("optgroup", { label: kind });
    trace.layers.forEach((each, i) => {
      if (`${each.queries} → ${each.keys}` === kind) group.append(h("option", { value: i, disabled: i >= trace.come }, each.name));
    });
    return group;
  });
  select.replaceChildren(...groups);
}

/** A small map of the query's row for each head: the choice and the overview in one. */
function updateHeads(box, { trace, state, look }, actions) {
  const names = ["mean", "max", ...look.rows.keys()];
  const made = `${trace.model} ${look.layer.name} ${names.length}`;
  if (box.dataset.made !== made) {
    box.dataset.made = made;
    const choice = (name) => {
      const click = () => actions.change({ head: name });
      const [small, label] = [h("canvas", { "aria-hidden": "true" }), h("span", {}, String(name))];
      return h("button", { type: "button", role: "radio", class: "pl-head", click }, small, label);
    };
    box.replaceChildren(...names.map(choice));
  }
  names.forEach((name, i) => {
    const values = mixed(look.rows, name, look.off);
    const chosen = state.head === name;
    const button = box.children[i];
    set(button, "aria-checked", String(chosen));
    const gone = typeof name === "number" && look.off.has(name);
    button.classList.toggle("pl-gone", gone);
    set(button, "aria-label", typeof name === "number" ? `Head ${name}${gone ? ", off" : ""}` : `${name} over heads`);
    button.tabIndex = chosen ? 0 : -1;
    const scale = makeScale(state.scale, seenKeys(look.layer), values, true);
    button.firstChild.style.aspectRatio = String(drawSmallMap(button.firstChild, values, look.keys, scale));
  });
}

/** The card that changes a key, with the weight before and after. @param {Actions} actions */
export function makeChanger(actions) {
  const pick = () => actions.change({ key: key.value === "" ? null : Number(key.value), pin: true });
  const key = h("select", { "aria-label": "Key", change: pick });
  const length = slider(4, 0.1, (times) => actions.edit({ length: times }));
  const noise = slider(2, 0.05, (size) => actions.edit({ noise: size }));
  const deleted = h("input", { type: "checkbox", change: () => actions.edit({ deleted: deleted.checked }) });
  const [lengthNumber, noiseNumber] = [h("span", { class: "pl-number" }), h("span", { class: "pl-number" })];
  const undo = h("button", { type: "button", click: () => actions.edit({ ...UNCHANGED }) }, "Undo");
  const undoAll = h("button", { type: "button", click: () => actions.change({ edits: {} }) }, "Undo all");
  /** @type {object | null} */
  let offered = null;
  const weight = h("p", { class: "pl-moved", "data-part": "moved" });
  const note = h("p", { class: "pl-quiet" });
  const element = h(
    "section",
    { class: "pl-card pl-changer", "aria-label": "Change a key" },
    h("h3", {}, "Change a key"),
    h("label", { class: "pl-field" }, h("span", {}, "Key"), key),
    h("label", { class: "pl-field" }, h("span", {}, "Elongate"), length, lengthNumber),
    h("label", { class: "pl-field" }, h("span", {}, "Noise"), noise, noiseNumber),
    h("div", { class: "pl-row" }, h("label", { class: "pl-check" }, deleted, h("span", {}, "Delete")), undo, undoAll),
    weight,
    note,
  );

  /** @param {Seen} seen */
  function update({ state, look }) {
    if (offered !== look.keys) {
      offered = look.keys;
      const labels = look.keys.labels.map((_, i) => [String(i), tokenName(look.keys, i)]);
      options(key, [["", "choose one, or pick it in the picture"], ...labels]);
    }
    key.value = state.key === null ? "" : String(state.key);
    const edit = state.edits[`${state.layer}-${state.key}`] ?? UNCHANGED;
    for (const input of [length, noise, deleted, undo]) input.disabled = state.key === null || Boolean(look.map);
    key.disabled = Boolean(look.map);
    undoAll.disabled = !Object.keys(state.edits).length;
    length.value = String(edit.length);
    noise.value = String(edit.noise);
    deleted.checked = edit.deleted;
    say(lengthNumber, `× ${edit.length.toFixed(1)}`);
    say(noiseNumber, `σ ${edit.noise.toFixed(2)}`);
    weight.replaceChildren(...change(state, look));
    say(note, look.map ? STORED : scoreNote(state, look));
  }
  return { element, update };
}

const STORED = "A stored map doesn't follow from one layer's keys: choose the row or the column mass.";
const UNPICKED = "Pick a key, then stretch it, shake it or take it away: the weights are computed anew.";

function change(state, look) {
  if (state.key === null || look.map) return [];
  const now = look.values[state.key];
  if (!look.before) return ["weight ", h("b", {}, precise(now))];
  const share = `${(100 * moved(look.before, look.values)).toPrecision(2)} % of all weight moved`;
  return ["weight ", h("b", {}, precise(look.before[state.key])), " → ", h("b", {}, precise(now)), ` · ${share}`];
}

/** Whether elongating raises the weight: it does where the score is positive. */
function scoreNote(state, look) {
  if (state.key === null) return UNPICKED;
  if (state.method !== "row" || !Number.isFinite(look.beta)) return "";
  const scores = scoresOf(look.layer, state.token, state.key, look.beta, null);
  if (typeof state.head === "number") {
    const score = scores[state.head];
    return `Its score β·q·k was ${precise(score)}: elongating the key ${score > 0 ? "raises" : "lowers"} it.`;
  }
  const positive = scores.filter((score) => score > 0).length;
  return `Its score β·q·k was positive in ${positive} of ${scores.length} heads: elongating the key raises it there.`;
}

/** The tokens that weigh most, for lists and for ears. */
export const strongest = ({ values }, count = 6) => largest(values, count).filter((i) => values[i] > 0);
