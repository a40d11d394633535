/**
 * The page of one experiment. What came out is hidden until it is asked for: predict first.
 *
 * @typedef {{id: string, statement: string, verdict: string, relation: string, measured: number | null,
 *   tolerance: number, counter_example: string | null}} Claim
 * @typedef {{name: string, title: string, statement: string, formula: string, predict: string, fails: string}} About
 * @typedef {About & {code: string, parameters: object, numbers: Record<string, number | string | null>, panels: any[],
 *   claims: Claim[], failures: string[]}} Outcome
 */
import { h } from "../dom.js";
import { makePanel } from "./panels.js";
import { figure, makeReadings } from "./parts.js";

export const VERDICTS = { true: "true", false: "false", conditional: "true when …" };

/** A verdict in a word and a colour. @param {string} verdict */
export const verdictOf = (verdict) => h("span", { class: `pl-verdict pl-${verdict}` }, VERDICTS[verdict]);

/**
 * @param {About} about @param {{button: string, ask: () => void, opened?: () => void, above?: Node[]}} how
 *   ask: called when the answer is asked for, and calls show; above: stands over what came out, from then on
 */
export function makeExperiment(about, { button, ask, opened = () => {}, above = [] }) {
  const outcome = h("div", { class: "pl-outcome", "aria-live": "polite" });
  const asked = h("div", { class: "pl-outcome", hidden: true }, ...above, outcome);
  const reveal = h("button", { type: "button", class: "pl-reveal", click: ask }, button);
  const element = h(
    "details",
    { class: "pl-card pl-experiment", id: `experiment-${about.name}`, toggle: () => element.open && opened() },
    h("summary", {}, h("h3", {}, about.title), h("span", { class: "pl-quiet" }, about.statement)),
    h("pre", { class: "pl-formula", tabindex: 0, "aria-label": "Formula" }, about.formula),
    h("p", {}, h("strong", {}, "Predict first. "), about.predict),
    reveal,
    asked,
  );

  /** @param {Outcome} data */
  function show(data) {
    reveal.hidden = true;
    asked.hidden = false;
    const open = [...outcome.querySelectorAll("details")].map((details) => details.open);
    const readings = makeReadings("Numbers");
    readings.update(Object.entries(data.numbers));
    const panels = data.panels.map(makePanel);
    const code = h("pre", { tabindex: 0, "aria-label": "Code" }, data.code);
    outcome.replaceChildren(
      h("div", { class: "pl-panels" }, ...panels.map((panel) => panel.element)),
      readings.element,
      h("ul", { class: "pl-claims" }, ...data.claims.map(claimed)),
      ...data.failures.map((failure) => h("p", { class: "pl-fallen" }, `This does not stand: ${failure}.`)),
      h("p", {}, h("strong", {}, "Where it fails. "), data.fails),
      h("details", {}, h("summary", {}, "The code that ran"), code),
    );
    [...outcome.querySelectorAll("details")].forEach((details, i) => (details.open = Boolean(open[i])));
    panels.forEach((panel) => panel.draw());
  }

  /** Say something instead: that it runs, or what went wrong. */
  function tell(sentence) {
    asked.hidden = false;
    outcome.replaceChildren(h("p", { role: "status" }, sentence));
  }
  return { element, show, tell, reveal };
}

/** @param {Claim} claim */
function claimed(claim) {
  const said = `, said to be ${claim.relation} `;
  return h(
    "li",
    {},
    h("p", {}, verdictOf(claim.verdict), ` ${claim.statement}`),
    h("p", { class: "pl-quiet" }, "measured ", figure(claim.measured), said, figure(claim.tolerance)),
    claim.counter_example && h("p", { class: "pl-quiet" }, claim.counter_example),
  );
}
