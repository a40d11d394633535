/**
 * A guided look: three questions about the trace that is shown. One predicts, then the viewer shows it. Nothing is
 * written down beforehand: which answer is right is computed from the trace's own q and k.
 *
 * @typedef {import("./viewer.js").Seen} Seen
 * @typedef {import("./viewer.js").Actions} Actions
 * @typedef {{text: string, options: string[], right: number, told: string, before: object, after: object}} Question
 *   before: the state in which it is asked; after: the state that shows the answer
 */
import { attentionRow, changedKeys, entropy, largest, mixed } from "./attention.js";
import { precise } from "./colour.js";
import { h, say } from "./dom.js";
import { timesBeta } from "./state.js";
import { queryLabel, tokenName } from "./streams.js";

const SHARPER = 10; // times β
const SAME = 0.02; // of the effective keys: less than this is no change

const STEPS = [askWhere, askSharper, askDeleted];

/** @param {Actions} actions */
export function makeGuide(actions) {
  const begin = h("button", { type: "button", class: "pl-guide-begin", "aria-expanded": "false", click: toggle }, "Guided look");
  const count = h("p", { class: "pl-quiet" });
  const text = h("p", { class: "pl-question" });
  const options = h("div", { class: "pl-row", role: "group", "aria-label": "Your prediction" });
  const verdict = h("p", { role: "status", class: "pl-verdict" });
  const next = h("button", { type: "button", click: () => ask(step + 1) }, "");
  const leave = h("button", { type: "button", click: end }, "Leave");
  const row = h("div", { class: "pl-row" }, next, leave);
  const element = h("section", { class: "pl-card pl-guide", "aria-label": "Guided look", hidden: true }, count, text, options, verdict, row);
  let step = -1;
  /** @type {Seen | null} */
  let shown = null;
  /** @type {import("./state.js").State | null} */
  let kept = null;
  /** @type {Question | null} */
  let question = null;

  function toggle() {
    if (step >= 0) return end();
    kept = shown && structuredClone(shown.state);
    ask(0);
    return undefined;
  }

  function ask(number) {
    if (!shown || !kept) return;
    if (number >= STEPS.length) return end();
    step = number;
    question = STEPS[step](shown.trace, kept);
    element.hidden = false;
    begin.setAttribute("aria-expanded", "true");
    actions.change({ ...kept, method: "row", edits: {}, off: [], pin: true, ...question.before });
    say(count, `Question ${step + 1} of ${STEPS.length}`);
    say(text, question.text);
    say(verdict, "");
    next.hidden = true;
    options.replaceChildren(...question.options.map((option, i) => h("button", { type: "button", click: () => answer(i) }, option)));
    options.firstChild.focus();
  }

  function answer(chosen) {
    if (!question) return;
    actions.change(question.after);
    [...options.children].forEach((button, i) => {
      button.disabled = true;
      button.setAttribute("aria-pressed", String(i === chosen));
    });
    const right = chosen === question.right;
    say(verdict, `${right ? "Yes." : `No: ${question.options[question.right]}.`} ${question.told}`);
    say(next, step + 1 < STEPS.length ? "Next question" : "Done");
    next.hidden = false;
    next.focus();
  }

  function end() {
    step = -1;
    element.hidden = true;
    begin.setAttribute("aria-expanded", "false");
    if (kept) actions.change(kept);
    kept = null;
    begin.focus();
  }

  /** @param {Seen} seen */
  function update(seen) {
    shown = seen;
  }
  return { element, begin, update };
}

/** All heads together, under the trained β. */
function meanRow(layer, token) {
  return mixed(Array.from({ length: layer.heads }, (_, head) => attentionRow(layer, head, token, layer.beta)), "mean");
}

/** @returns {Question} which token gets the most, asked while all are alike */
function askWhere(trace, state) {
  const layer = trace.layers[state.layer];
  const keys = trace.streams.find(({ name }) => name === layer.keys);
  const row = meanRow(layer, state.token);
  const order = largest(row, row.length).filter((key) => row[key] > 0);
  const places = [...new Set([0, 0.34, 0.67, 1].map((share) => Math.floor(share * (order.length - 1))))];
  const shown = places.map((place) => order[place]).sort((a, b) => a - b);
  const names = shown.map((key) => tokenName(keys, key));
  const asks = queryLabel(trace, layer, state.token);
  return {
    text: `With β = 0 ${asks} attends to all ${order.length} keys alike. With the β it was trained with, which of these gets the most?`,
    options: names,
    right: shown.indexOf(order[0]),
    told: `It gets ${precise(row[order[0]])}, ${(row[order[0]] * order.length).toPrecision(2)} times an even share; the least of the ${order.length} gets ${precise(row[order[order.length - 1]])}.`,
    before: { head: "mean", beta: 0, key: null },
    after: { beta: 1, key: order[0] },
  };
}

/** @returns {Question} whether a larger β means more keys or fewer */
function askSharper(trace, state) {
  const layer = trace.layers[state.layer];
  const { head } = strongest(layer, state.token);
  const [now, then] = [1, SHARPER].map((times) =>
    Math.exp(entropy(attentionRow(layer, head, state.token, timesBeta(times, layer.beta)))),
  );
  const change = then / now - 1;
  return {
    text: `In head ${head} the weights are spread as if over ${now.toFixed(1)} keys. β becomes ${SHARPER} times as large. Over how many keys are they spread then?`,
    options: ["more", "as many", "fewer"],
    right: change > SAME ? 0 : change < -SAME ? 2 : 1,
    told: `${now.toFixed(1)} become ${then.toFixed(1)}: β multiplies every difference between scores. At ∞ only the largest is left.`,
    before: { head, beta: 1, key: null },
    after: { beta: SHARPER },
  };
}

/** @returns {Question} where the weight of a deleted key goes */
function askDeleted(trace, state) {
  const layer = trace.layers[state.layer];
  const { head, key, row } = strongest(layer, state.token);
  const deleted = { length: 1, noise: 0, deleted: true };
  const after = attentionRow(layer, head, state.token, layer.beta, changedKeys(layer, new Map([[key, deleted]])));
  const [, second] = largest(row, 2);
  const factors = Array.from(row).flatMap((weight, i) => (i !== key && weight > 1e-12 ? [after[i] / weight] : []));
  const [least, most] = [Math.min(...factors), Math.max(...factors)];
  const keys = trace.streams.find(({ name }) => name === layer.keys);
  const alike = factors.length > 0 && most / least - 1 < 1e-6;
  const moved = after[second] - row[second];
  return {
    text: `In head ${head} ${tokenName(keys, key)} has ${precise(row[key])} of the weight. It is deleted. Where does its weight go?`,
    options: ["nowhere: the row then sums to less", "to the next strongest alone", "to all the others, each by the same factor"],
    right: alike && most > 1 ? 2 : moved > 0 ? 1 : 0,
    told: factors.length
      ? `${tokenName(keys, second)} goes from ${precise(row[second])} to ${precise(after[second])}, and every other weight is multiplied by ${precise(most)} as well: the softmax divides by a sum that has lost one term.`
      : "There is no other key.",
    before: { head, beta: 1, key },
    after: { edits: { [`${state.layer}-${key}`]: deleted }, key: factors.length ? second : key },
  };
}

/** The head with the largest weight that isn't all, and its key. */
function strongest(layer, token) {
  let best = { head: 0, key: 0, row: attentionRow(layer, 0, token, layer.beta), size: -1 };
  for (let head = 0; head < layer.heads; head++) {
    const row = attentionRow(layer, head, token, layer.beta);
    const [key] = largest(row, 1);
    const size = row[key] < 0.95 ? row[key] : 0;
    if (size > best.size) best = { head, key, row, size };
  }
  return best;
}
