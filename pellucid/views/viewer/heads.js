/**
 * All layers and heads at a glance, by the query's row or by the whole map; and a search by what they do.
 *
 * @typedef {import("./viewer.js").Seen} Seen
 * @typedef {import("./viewer.js").Actions} Actions
 * @typedef {import("./survey.js").Found} Found
 */
import { attentionRows, changedKeys, seenKeys } from "./attention.js";
import { makeScale, precise } from "./colour.js";
import { h, say, set } from "./dom.js";
import { drawAllHeads, drawGlance } from "./draw.js";
import { editsOf, offOf, timesBeta } from "./state.js";
import { queryLabel } from "./streams.js";
import { ASKED, MEASURES, sorted, survey } from "./survey.js";
import { makeWork } from "./work.js";

const LISTED = 6;
const GAP = 4;

/** @param {Actions} actions */
export function makeAllHeads(actions) {
  const canvas = h("canvas", { role: "application", tabindex: 0, class: "pl-all" });
  const box = h("div", { class: "pl-fit" }, canvas);
  const readout = h("p", { class: "pl-readout" });
  const note = h("p", { class: "pl-quiet" });
  const showing = h("fieldset", { class: "pl-segments" }, h("legend", {}, "Show"));
  let what = "row";
  for (const [value, text] of [["row", "the query's row"], ["map", "whole maps"]]) {
    const click = () => ((what = value), actions.draw());
    showing.append(h("button", { type: "button", "data-value": value, click }, text));
  }
  const measure = h("select", { "aria-label": "Find heads that look at", change: () => actions.draw() });
  measure.append(h("option", { value: "" }, "choose what they look at"));
  for (const [value, text] of MEASURES) measure.append(h("option", { value: String(value) }, String(text)));
  const filter = h("input", { type: "search", placeholder: "layer", "aria-label": "Only layers whose name has", input: () => actions.draw() });
  const list = h("ol", { class: "pl-top pl-found", "aria-label": "Heads found" });
  const said = h("p", { class: "pl-quiet", role: "status" });
  const element = h(
    "section",
    { class: "pl-card pl-heads-card", "aria-label": "All heads" },
    h("h3", {}, "All heads"),
    showing,
    note,
    box,
    readout,
    h("label", { class: "pl-field" }, h("span", {}, "Find heads"), measure),
    h("label", { class: "pl-field" }, h("span", {}, "in layers"), filter),
    list,
    said,
  );
  let geometry = { cell: 1, gap: GAP, high: 1, places: /** @type {number[]} */ ([]), heads: 0, names: [""] };
  /** @type {{for: string, found: Found[], total: number}} */
  let surveyed = { for: "", found: [], total: 0 };
  /** @type {Seen | null} */
  let shown = null;
  const work = makeWork(() => shown && drawFound(shown));

  function headAt(event) {
    const area = canvas.getBoundingClientRect();
    const { cell, gap, high, places, heads } = geometry;
    const y = Math.floor((event.clientY - area.top - gap / 2) / (high + gap));
    const x = Math.floor((event.clientX - area.left - gap / 2) / (cell + gap));
    return y < 0 || x < 0 || y >= places.length || x >= heads ? null : [y, x];
  }
  canvas.addEventListener("pointermove", (event) => {
    const place = headAt(event);
    say(readout, place ? `${geometry.names[place[0]]}, head ${place[1]}` : "");
  });
  canvas.addEventListener("click", (event) => {
    const place = headAt(event);
    if (place) actions.change({ layer: geometry.places[place[0]], head: place[1] });
  });
  canvas.addEventListener("keydown", (event) => {
    const step = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
    if (!step || !shown) return;
    event.preventDefault();
    const { state, look } = shown;
    const row = Math.max(geometry.places.indexOf(state.layer), 0) + step[0];
    const layer = geometry.places[Math.min(Math.max(row, 0), geometry.places.length - 1)];
    const head = typeof state.head === "number" ? state.head + step[1] : 0;
    actions.change({ layer, head: Math.min(Math.max(head, 0), look.layer.heads - 1) });
    say(readout, `${shown.trace.layers[layer].name}, head ${head}`);
  });

  /** Slow: after the row has been shown. @param {Seen} seen */
  function draw(seen) {
    shown = seen;
    for (const button of showing.querySelectorAll("button")) set(button, "aria-pressed", String(button.dataset.value === what));
    const needed = what === "map" || measure.value;
    if (needed) begin(seen);
    if (what === "row") drawRows(seen);
    drawFound(seen);
  }

  function begin({ trace, state }) {
    const wanted = JSON.stringify([state.trace, trace.come, String(state.beta), state.edits, state.off]);
    if (surveyed.for === wanted) return;
    const total = trace.layers.slice(0, trace.come).reduce((sum, layer) => sum + layer.heads, 0);
    surveyed = { for: wanted, found: [], total };
    work.start(survey(trace, state, surveyed.found));
  }

  function drawRows({ trace, state, look }) {
    const alike = trace.layers
      .slice(0, trace.come)
      .map((layer, index) => ({ layer, index }))
      .filter(({ layer }) => layer.queries === look.layer.queries && layer.keys === look.layer.keys);
    const layers = alike.map(({ layer, index }) => {
      const changed = changedKeys(layer, editsOf(state, index), offOf(state, index));
      return { index, rows: attentionRows(layer, state.token, timesBeta(state.beta, layer.beta), changed) };
    });
    place(alike, Math.max(...layers.map(({ rows }) => rows.length)));
    const scaleOf = (row) => makeScale(state.scale, seenKeys(look.layer), row, true);
    const how = { ...geometry, layers, tokens: look.keys, scaleOf, chosen: state.layer, head: state.head };
    geometry.high = drawAllHeads(canvas, how);
    const query = queryLabel(trace, look.layer, state.token);
    const kind = `${look.layer.queries} → ${look.layer.keys}`;
    say(note, `The row of ${query}: a line for each layer ${kind}, a column for each head. Click to go there.`);
    const many = `${layers.length} layers of ${geometry.heads} heads`;
    set(canvas, "aria-label", `The row of ${query} in ${many}, as small maps. Arrow keys choose one.`);
  }

  function place(layers, heads) {
    const width = Math.max(box.clientWidth, 100);
    const cell = Math.min((width - GAP) / heads - GAP, width / 4.5);
    const names = layers.map(({ layer }) => layer.name);
    geometry = { cell, gap: GAP, high: cell, places: layers.map(({ index }) => index), heads, names };
  }

  /** What the survey has found so far. @param {Seen} seen */
  function drawFound(seen) {
    const { trace, state } = seen;
    const { found, total } = surveyed;
    if (what === "map") {
      const all = trace.layers.map((layer, index) => ({ layer, index })).slice(0, trace.come);
      place(all, Math.max(...all.map(({ layer }) => layer.heads)));
      const scaleOf = (each) => makeScale(state.scale, seenKeys(trace.layers[each.layer]), each.small, true);
      drawGlance(canvas, { ...geometry, found, scaleOf, chosen: state.layer, head: state.head });
      say(note, `Every map, a line for each layer: ${ASKED} queries or all, the largest weight in each cell. Click to go there.`);
      set(canvas, "aria-label", `The maps of ${total} heads, a line for each of ${all.length} layers. Arrow keys choose one.`);
    }
    const chosen = measure.value;
    filter.parentElement.hidden = list.hidden = said.hidden = !chosen;
    if (!chosen) return;
    const fitting = found.filter((each) => trace.layers[each.layer].name.includes(filter.value));
    const best = sorted(fitting, chosen).slice(0, LISTED);
    list.replaceChildren(...best.map((each) => entry(each, trace, chosen, actions)));
    const so = found.length < total ? `${found.length} of ${total} heads so far` : `${fitting.length} of ${total} heads`;
    const of = chosen === "entropy" ? "Mean entropy in nats" : "Mean share of a query's attention";
    say(said, `${of}; ${so}, up to ${ASKED} queries of each.`);
  }
  return { element, see: (seen) => (shown = seen), draw, stop: work.stop };
}

/** A head that was found, as a button that goes there. @param {Found} found */
function entry(found, trace, measure, actions) {
  const bar = h("span", { class: "pl-bar", "aria-hidden": "true" }, h("i", {}));
  const most = measure === "entropy" ? Math.log(trace.layers[found.layer].nKeys) : 1;
  bar.firstChild.style.width = `${Math.min(100, (100 * found[measure]) / most)}%`;
  const where = measure === "offset" ? ` (${found.shift > 0 ? "+" : ""}${String(found.shift).replace("-", "−")})` : "";
  const name = `${trace.layers[found.layer].name}, head ${found.head}${where}`;
  const click = () => actions.change({ layer: found.layer, head: found.head });
  const number = h("span", { class: "pl-number" }, precise(found[measure]));
  return h("li", {}, h("button", { type: "button", click }, h("span", {}, name), bar, number));
}
