/** The lab on one page that carries its data: sliders, the ledger, and every experiment. */
import { h } from "../dom.js";
import { makeBeta } from "./beta.js";
import { makeBlock } from "./block.js";
import { makeExperiment } from "./experiment.js";
import { makeKey } from "./key.js";
import { makeLedger } from "./ledger.js";
import { makeMask } from "./mask.js";
import { makeOffset } from "./offset.js";
import { headOf } from "./sums.js";

/** @param {Document} page */
export function showLab(page) {
  const { live, experiments } = JSON.parse(page.querySelector('script[type="application/json"]')?.textContent ?? "");
  const head = headOf(live);
  const sliders = [makeBeta(head), makeKey(head), makeOffset(live.positions), makeMask(head), makeBlock()];
  const pages = new Map(
    experiments.map((data) => {
      const ask = () => one.show(data);
      const one = makeExperiment(data, { button: "Show what came out", ask });
      return [data.name, one.element];
    }),
  );
  const open = (name) => {
    const element = pages.get(name);
    element.open = true;
    element.scrollIntoView({ block: "start" });
    element.querySelector("summary").focus({ preventScroll: true });
  };
  const claims = experiments.reduce((sum, data) => sum + data.claims.length, 0);
  const tally = `${claims} claims about attention, each run and measured by one of ${experiments.length} experiments.`;
  page.querySelector("main")?.replaceChildren(
    h(
      "div",
      { class: "pellucid pl-lab" },
      h(
        "header",
        {},
        h("h1", {}, "The lab"),
        h("p", {}, tally),
        h("nav", { class: "pl-row", "aria-label": "On this page" }, ...links()),
      ),
      h("h2", { id: "live" }, "Move it yourself"),
      h("p", { class: "pl-quiet" }, "Computed here, in your browser, in double precision, as you move."),
      h("div", { class: "pl-live" }, ...sliders.map((slider) => slider.element)),
      makeLedger(experiments, open).element,
      h("h2", { id: "experiments" }, "The experiments"),
      ...pages.values(),
    ),
  );
}

const PARTS = { "#live": "Sliders", "#ledger": "Ledger", "#experiments": "Experiments" };

const links = () => Object.entries(PARTS).map(([href, text]) => h("a", { href }, text));
