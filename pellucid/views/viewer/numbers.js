/**
 * What is painted, in numbers; and what the model answered.
 *
 * @typedef {import("./viewer.js").Seen} Seen
 * @typedef {import("./viewer.js").Actions} Actions
 */
import { entropy, largest } from "./attention.js";
import { precise } from "./colour.js";
import { strongest } from "./controls.js";
import { h, say } from "./dom.js";
import { title } from "./look.js";
import { tokenName, visible } from "./streams.js";

const LOST = 5e-4; // of a row that lies on no token: more than rounding

/** @param {Actions} actions */
export function makeNumbers(actions) {
  const spread = h("dl", { class: "pl-spread" });
  const list = h("ol", { class: "pl-top" });
  const heading = h("h3", {});
  const element = h("section", { class: "pl-card", "aria-label": "Numbers" }, heading, spread, list);

  /** @param {Seen} seen */
  function update({ state, look }) {
    say(heading, look.map ? "Strongest tokens" : "Strongest keys");
    const pairs = spreadOf(state, look);
    spread.replaceChildren(...pairs.map(([name, number]) => h("div", {}, h("dt", {}, name), h("dd", {}, number))));
    const most = [look.values, look.before ?? []].flatMap((each) => largest(each, 1).map((i) => each[i]));
    list.replaceChildren(...strongest(look).map((i) => entry(i, look, Math.max(...most, 1e-30), state, actions)));
  }
  return { element, update };
}

function spreadOf(state, look) {
  const most = Array.from(look.values).reduce((a, b) => Math.max(a, b), -Infinity);
  if (!look.distribution) return [["largest", precise(most)]];
  if (state.head === "max" && !look.map) return [["entropy", "none: a maximum is no distribution"]];
  const [nats, before] = [entropy(look.values), look.before && entropy(look.before)];
  const both = (f) => (before === null ? f(nats) : `${f(before)} → ${f(nats)}`);
  const of = state.method === "row" && !look.map ? look.open : look.n;
  const lost = 1 - Array.from(look.values).reduce((a, b) => a + b, 0);
  const taker = look.open && look.layer.windows ? "on padding" : look.layer.sinks ? "on the sink" : null;
  return [
    ["entropy", both((x) => `${x.toFixed(2)} nats`)],
    ["effective keys exp(H)", both((x) => Math.exp(x).toFixed(1)) + ` of ${of}`],
    ...(taker && lost > LOST && !look.map ? [[taker, precise(lost)]] : []),
  ];
}

function entry(i, look, most, state, actions) {
  const [value, before] = [look.values[i], look.before?.[i]];
  const bar = h("span", { class: "pl-bar", "aria-hidden": "true" }, h("i", {}), h("i", {}));
  bar.children[0].hidden = before === undefined;
  bar.children[0].style.width = `${(100 * (before ?? 0)) / most}%`;
  bar.children[1].style.width = `${(100 * value) / most}%`;
  const number = before === undefined ? precise(value) : `${precise(before)} → ${precise(value)}`;
  const choose = () => actions.change({ key: i, pin: true });
  return h(
    "li",
    { class: state.key === i && !look.map ? "pl-key" : null },
    h(
      "button",
      { type: "button", disabled: Boolean(look.map), click: choose, title: "Choose this key to change it" },
      h("span", {}, tokenName(look.painted, i)),
      bar,
      h("span", { class: "pl-number" }, number),
    ),
  );
}

/** The likeliest tokens at the query, or the classes, or the words that were said, with their probabilities. */
export function makeAnswers() {
  const list = h("ol", { class: "pl-top pl-answers" });
  const heading = h("h3", {});
  const sum = h("p", { class: "pl-quiet" });
  const element = h("section", { class: "pl-card", "aria-label": "Answers" }, heading, list, sum);

  /** @param {Seen} seen */
  function update(seen) {
    const { trace } = seen;
    const [title, shares, note] = stepAt(seen) ?? answersOf(trace);
    element.hidden = !shares.length;
    say(heading, title);
    say(sum, note);
    const text = JSON.stringify(shares);
    if (list.dataset.shares === text) return;
    list.dataset.shares = text;
    list.replaceChildren(...shares.map(([name, share, number]) => {
      const bar = h("span", { class: "pl-bar", "aria-hidden": "true" }, h("i", {}));
      bar.firstChild.style.width = `${100 * share}%`;
      return h("li", {}, h("div", {}, h("span", {}, name), bar, h("span", { class: "pl-number" }, number)));
    }));
  }
  return { element, update };
}

/** What was likely at the query, if the trace has it. @returns {[string, [string, number, string][], string] | null} */
function stepAt({ trace, state, look }) {
  const step = trace.steps.find((each) => each.stream === look.queries.name && each.position === state.token);
  if (!step) return null;
  const before = visible(look.queries.labels[state.token]).trim();
  return [`Likely at “${before}”`, step.answers.map(([name, share]) => [visible(name), share, percent(share)]), ""];
}

/** @returns {[string, [string, number, string][], string]} */
function answersOf({ answers, words }) {
  if (!words.length) return ["What it answered", answers.map(([name, share]) => [visible(name), share, percent(share)]), ""];
  const total = precise(words.reduce((a, [, log]) => a + log, 0));
  const said = words.map(([word, log]) => [visible(word), Math.exp(log), `${precise(log)} (${percent(Math.exp(log))})`]);
  return ["What it said", said, `Log-probabilities (and probabilities); ${total} together.`];
}

const percent = (share) => (share < 0.001 ? "< 0.1 %" : share > 0.999 ? "> 99.9 %" : `${(100 * share).toFixed(1)} %`);

/** The picture in words, for those who hear it. @param {Seen} seen */
export function spoken({ trace, state, look }) {
  const [first] = title(trace, state, look);
  const top = strongest(look, 4).map((i) => `${tokenName(look.painted, i)} ${precise(look.values[i])}`);
  const spread = spreadOf(state, look).map(([name, number]) => `${name} ${number}`);
  return `${first}: ${top.join(", ") || "nothing"}. ${spread.join(", ")}.${state.pin ? " Pinned." : ""}`;
}
