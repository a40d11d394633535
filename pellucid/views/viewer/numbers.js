/**
 * What is painted, in numbers; and what the model answered.
 *
 * @typedef {import("./viewer.js").Seen} Seen
 * @typedef {import("./viewer.js").Actions} Actions
 */
import { entropy } from "./attention.js";
import { precise } from "./colour.js";
import { strongest } from "./controls.js";
import { h, say } from "./dom.js";
import { title } from "./look.js";

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
    const most = Math.max(...strongest(look, 1).map((i) => look.values[i]), ...(look.before ?? []), 1e-30);
    list.replaceChildren(...strongest(look).map((i) => entry(i, look, most, state, actions)));
  }
  return { element, update };
}

function spreadOf(state, look) {
  if (!look.distribution) return [["largest", precise(Math.max(...look.values))]];
  if (state.head === "max" && !look.map) return [["entropy", "none: a maximum is no distribution"]];
  const [nats, before] = [entropy(look.values), look.before && entropy(look.before)];
  const both = (f) => (before === null ? f(nats) : `${f(before)} → ${f(nats)}`);
  const of = state.method === "row" ? look.open : look.n;
  return [
    ["entropy", both((x) => `${x.toFixed(2)} nats`)],
    ["effective keys exp(H)", both((x) => Math.exp(x).toFixed(1)) + ` of ${of}`],
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
      h("span", {}, look.painted.labels[i]),
      bar,
      h("span", { class: "pl-number" }, number),
    ),
  );
}

/** The classes with their probabilities, or the words with theirs. */
export function makeAnswers() {
  const list = h("ol", { class: "pl-top pl-answers" });
  const heading = h("h3", {});
  const sum = h("p", { class: "pl-quiet" });
  const element = h("section", { class: "pl-card", "aria-label": "Answers" }, heading, list, sum);

  /** @param {Seen} seen */
  function update({ trace }) {
    const words = trace.words.length > 0;
    element.hidden = !words && !trace.answers.length;
    say(heading, words ? "What it said" : "What it answered");
    const shares = words ? trace.words.map(([word, log]) => [word, Math.exp(log)]) : trace.answers;
    const text = JSON.stringify(shares);
    if (list.dataset.shares === text) return;
    list.dataset.shares = text;
    list.replaceChildren(
      ...shares.map(([name, share], i) => {
        const bar = h("span", { class: "pl-bar", "aria-hidden": "true" }, h("i", {}));
        bar.firstChild.style.width = `${100 * share}%`;
        const number = words ? `${precise(trace.words[i][1])} (${percent(share)})` : percent(share);
        return h("li", {}, h("div", {}, h("span", {}, name), bar, h("span", { class: "pl-number" }, number)));
      }),
    );
    const total = trace.words.reduce((a, [, log]) => a + log, 0);
    say(sum, words ? `Log-probabilities (and probabilities); ${precise(total)} together.` : "");
  }
  return { element, update };
}

const percent = (share) => (share < 0.001 ? "< 0.1 %" : share > 0.999 ? "> 99.9 %" : `${(100 * share).toFixed(1)} %`);

/** The picture in words, for those who hear it. @param {Seen} seen */
export function spoken({ trace, state, look }) {
  const [first] = title(trace, state, look);
  const top = strongest(look, 4).map((i) => `${look.painted.labels[i]} ${precise(look.values[i])}`);
  const spread = spreadOf(state, look).map(([name, number]) => `${name} ${number}`);
  return `${first}: ${top.join(", ") || "nothing"}. ${spread.join(", ")}.${state.pin ? " Pinned." : ""}`;
}
