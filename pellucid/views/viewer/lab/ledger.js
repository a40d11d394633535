/** The ledger: every claim in a row, to be filtered by its verdict. */
import { h } from "../dom.js";
import { VERDICTS, verdictOf } from "./experiment.js";
import { figure, makeSegments } from "./parts.js";

/** @param {import("./experiment.js").Outcome[]} experiments @param {(name: string) => void} open an experiment */
export function makeLedger(experiments, open) {
  const claims = experiments.flatMap(({ name, claims: all }) => all.map((claim) => ({ ...claim, experiment: name })));
  const rows = claims.map((claim) => [claim.verdict, rowOf(claim, open)]);
  const count = (verdict) => claims.filter((claim) => claim.verdict === verdict).length;
  const verdicts = Object.entries(VERDICTS).map(([verdict, text]) => [verdict, `${text} ${count(verdict)}`]);
  const choices = [["all", `all ${claims.length}`], ...verdicts];
  const filter = makeSegments("Verdict", choices, (chosen) => {
    for (const [verdict, row] of rows) row.hidden = chosen !== "all" && chosen !== verdict;
  });
  filter.mark("all");
  const names = ["claim", "verdict", "measured", "tolerance", "counter-example"];
  const head = h("thead", {}, h("tr", {}, ...names.map((name) => h("th", { scope: "col" }, name))));
  const table = h("table", { class: "pl-ledger" }, head, h("tbody", {}, ...rows.map(([, row]) => row)));
  const fallen = experiments.flatMap(({ failures }) => failures);
  const element = h(
    "section",
    { class: "pl-card", "aria-label": "Ledger", id: "ledger" },
    h("h2", {}, "The ledger"),
    ...fallen.map((sentence) => h("p", { class: "pl-fallen" }, `This does not stand: ${sentence}.`)),
    filter.element,
    table,
  );
  return { element };
}

function rowOf(claim, open) {
  const click = () => open(claim.experiment);
  const name = h("button", { type: "button", class: "pl-link", click, title: claim.id }, claim.statement);
  return h(
    "tr",
    { id: `claim-${claim.id}` },
    h("th", { scope: "row" }, name),
    h("td", {}, verdictOf(claim.verdict)),
    h("td", { "data-head": "measured" }, figure(claim.measured)),
    h("td", { "data-head": "tolerance" }, `${claim.relation} `, figure(claim.tolerance)),
    h("td", {}, claim.counter_example ?? ""),
  );
}
