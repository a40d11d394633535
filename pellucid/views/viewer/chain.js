/**
 * How a weight comes about: one head's q and k feature by feature, for the strongest keys, and every step from the
 * product to the weight with its equation, its shape and its number.
 *
 * @typedef {import("./viewer.js").Seen} Seen
 * @typedef {import("./viewer.js").Actions} Actions
 */
import { featuresOf, largest, stepsOf } from "./attention.js";
import { precise } from "./colour.js";
import { h, say } from "./dom.js";
import { queryLabel, tokenName } from "./streams.js";

const SHOWN = 6; // keys

/** @param {Actions} actions */
export function makeChain(actions) {
  const heading = h("h3", {}, "From q and k to a weight");
  const note = h("p", { class: "pl-quiet" });
  const table = h("table", { class: "pl-features" });
  const steps = h("ol", { class: "pl-flow" });
  const element = h(
    "section",
    { class: "pl-card pl-chain", "aria-label": "From q and k to a weight" },
    heading,
    note,
    h("div", { class: "pl-scroll", tabindex: 0, role: "region", "aria-label": "Features of q and k" }, table),
    steps,
  );

  /** @param {Seen} seen */
  function update({ trace, state, look }) {
    element.hidden = Boolean(look.map);
    if (look.map) return;
    const { layer, beta, changed } = look;
    const head = typeof state.head === "number" ? state.head : loudest(look);
    const row = look.rows[head];
    const keys = largest(row, SHOWN);
    const key = state.key ?? keys[0];
    if (!keys.includes(key)) keys[keys.length - 1] = key;
    const asks = queryLabel(trace, layer, state.token);
    const of = typeof state.head === "number" ? "" : ", the one with the largest weight";
    say(note, `${asks} asks in head ${head}${of}. Blue is below zero, orange above; each bar its own range.`);
    const { q } = featuresOf(layer, head, state.token, key, changed);
    table.replaceChildren(headings(q), ...keys.map((each) => keyRow(each)));
    const told = stepsOf(layer, head, state.token, key, beta, changed);
    steps.replaceChildren(...flow(told, layer, look).map(([name, shape, value]) =>
      h("li", {}, h("span", {}, name), h("small", {}, shape), h("b", { class: "pl-number" }, value)),
    ));

    function keyRow(each) {
      const { k } = featuresOf(layer, head, state.token, each, changed);
      const product = q.map((x, i) => x * k[i]);
      const choose = () => actions.change({ key: each, pin: true });
      const name = tokenName(look.keys, each);
      const button = h("button", { type: "button", click: choose, "aria-pressed": String(each === key) }, name);
      const dot = product.reduce((a, b) => a + b, 0);
      return h(
        "tr",
        {},
        h("th", { scope: "row" }, button),
        h("td", {}, strip(k, `k of ${name}`)),
        h("td", {}, strip(product, `q times k of ${name}`)),
        ...[dot, row[each]].map((value) => h("td", { class: "pl-number" }, precise(value))),
      );
    }
  }
  return { element, update };
}

/** The head that gives a key the largest weight of all, among those that are on. */
function loudest({ rows, off }) {
  const most = rows.map((row, head) => (off.has(head) ? -1 : row.reduce((a, b) => Math.max(a, b), 0)));
  return most.indexOf(Math.max(...most));
}

function headings(q) {
  const name = (text) => h("th", { scope: "col" }, text);
  const first = h("th", { scope: "col" }, "q ", strip(q, "q"));
  return h("tr", {}, first, name("k"), name("q ∘ k"), name("q·k"), name("weight"));
}

/** Features as a bar of cells: orange above zero, blue below, as strong as they are large. */
function strip(values, name) {
  const most = values.reduce((a, b) => Math.max(a, Math.abs(b)), 1e-30);
  const image = new ImageData(values.length, 1);
  values.forEach((value, i) => {
    const share = Math.abs(value) / most;
    const full = value > 0 ? [230, 120, 20] : [40, 110, 220];
    image.data.set([...full.map((x) => 245 + share * (x - 245)), 255], 4 * i);
  });
  const says = `${name}: ${values.length} features, the largest ${precise(most)}`;
  const canvas = h("canvas", { class: "pl-strip-of", role: "img", width: values.length, height: 1, "aria-label": says, title: says });
  canvas.getContext("2d").putImageData(image, 0, 0);
  return canvas;
}

/** The steps as (what, shape, number). @returns {[string, string, string][]} */
function flow(told, layer, look) {
  const { heads, keyHeads, nQueries, nKeys, held, width, softcap, sinks, windows } = layer;
  const map = `[${heads}, ${nQueries}, ${nKeys}]`;
  const open = told.open ? precise(told.exp) : "0: masked";
  const bias = windows ? windows.bias && `[${windows.bias.heads}, ${windows.size}, ${windows.size}]` : layer.bias && `[${layer.bias.heads}, ${nQueries}, ${nKeys}]`;
  const among = windows ? ` of its window${told.padding ? `, ${told.padding} of them padding` : ""}` : "";
  /** @type {any[]} */
  const all = [
    ["q of the query", `[${heads}, ${nQueries}, ${width}]`, `length ${precise(told.q)}`],
    ["k of the key", `[${keyHeads ?? heads}, ${held}, ${width}]`, `length ${precise(told.k)}`],
    ["q·k = Σ q ∘ k", map, precise(told.dot)],
    [`β·q·k, β = ${precise(look.beta)}`, map, precise(told.scaled)],
    softcap && [`${precise(softcap)}·tanh(score / ${precise(softcap)})`, map, precise(told.capped)],
    bias && ["plus the bias of the place", bias, precise(told.score)],
    ["exp(score − largest)", map, open],
    [`Σ over ${told.count} keys${among}${sinks ? " and the sink" : ""}`, `[${heads}, ${nQueries}]`, precise(told.sum)],
    ["weight = exp / Σ", map, precise(told.weight)],
    layer.values && ["length of the value v", `[${heads}, ${held}]`, precise(told.value)],
    layer.values && ["weight × length: what it moves", map, precise(told.weight * told.value)],
  ];
  return all.filter(Boolean);
}
