/**
 * Panels of an experiment, drawn from their numbers; each has them as a table too.
 *
 * @typedef {{name: string, x: number[], y: (number | null)[], dashed: boolean}} Line
 * @typedef {{kind: "curves", title: string, x: string, y: string, lines: Line[], log: string}} Curves
 * @typedef {{kind: "bars", title: string, y: string, names: string[], series: [string, (number | null)[]][],
 *   line: [string, number] | null, log: boolean}} Bars
 * @typedef {{kind: "matrix", title: string, rows: string, columns: string, values: (number | null)[][], low: number,
 *   high: number, unit: string}} Matrix
 */
import { h } from "../dom.js";
import { sharp } from "../draw.js";
import { figure, keepDrawn, written } from "./parts.js";
import { plotBars, plotCurves, plotMatrix } from "./plot.js";

const MARKS = "●■▲◆▼✚✖";

/** The panel as a figure. mark: draws a line at this x. @param {Curves | Bars | Matrix} panel */
export function makePanel(panel) {
  const canvas = h("canvas", { role: "img", "aria-label": spoken(panel) });
  const place = h("div", { class: "pl-plot" }, canvas);
  const legend = h("ul", { class: "pl-legend" }, ...legendOf(panel));
  const table = h("div", { class: "pl-scroll" }, tableOf(panel));
  const numbers = h("details", { class: "pl-numbers" }, h("summary", {}, "Numbers"), table);
  const element = h("figure", { class: "pl-panel" }, h("figcaption", {}, panel.title), place, legend, numbers);
  let at = null;

  function draw() {
    const width = place.clientWidth;
    if (!width) return;
    const { color, fontSize, fontFamily } = getComputedStyle(canvas);
    const size = 0.8 * parseFloat(fontSize);
    const height = Math.round(Math.min(Math.max(0.62 * width, 14 * size), 24 * size));
    const pen = sharp(canvas, width, height);
    pen.clearRect(0, 0, width, height);
    const entries = [...legend.querySelectorAll("i")];
    const series = entries.map((entry) => ({ colour: getComputedStyle(entry).color, mark: entry.textContent }));
    const look = { width, height, size, font: `${size}px ${fontFamily}`, ink: color, series, at };
    if (panel.kind === "curves") plotCurves(pen, panel, look);
    else if (panel.kind === "bars") plotBars(pen, panel, look);
    else plotMatrix(pen, panel, look);
  }

  keepDrawn(place, draw);
  const mark = (x) => {
    at = x;
    draw();
  };
  return { element, draw, mark };
}

/** What the colours mean; the plot takes them from here. */
function legendOf(panel) {
  if (panel.kind === "matrix") {
    return [h("li", {}, `colour: ${panel.unit}, from ${written(panel.low)} to ${written(panel.high)}`)];
  }
  const names = panel.kind === "curves" ? panel.lines : panel.series.map(([name]) => ({ name, dashed: false }));
  const entries = names.map(({ name, dashed }, i) => {
    const place = i % MARKS.length;
    const mark = dashed ? h("i", { class: "pl-dashed" }, "╌") : h("i", { class: `pl-series-${place}` }, MARKS[place]);
    return h("li", { class: name ? null : "pl-hidden" }, mark, ` ${name}`);
  });
  if (panel.kind === "bars" && panel.line) {
    entries.push(h("li", {}, h("i", { class: "pl-dashed" }, "╌"), ` ${panel.line[0]}: `, figure(panel.line[1])));
  }
  return entries;
}

function tableOf(panel) {
  const head = (...names) => h("tr", {}, ...names.map((name) => h("th", { scope: "col" }, name)));
  const row = (name, cells) => h("tr", {}, h("th", { scope: "row" }, name), ...cells.map((cell) => h("td", {}, cell)));
  const number = (value) => (value === undefined ? "" : figure(value));
  if (panel.kind === "matrix") {
    const columns = panel.values[0].map((_, j) => String(j));
    const rows = panel.values.map((values, i) => row(String(i), values.map(number)));
    return h("table", {}, head(`${panel.rows} \\ ${panel.columns}`, ...columns), ...rows);
  }
  if (panel.kind === "bars") {
    const names = panel.series.map(([name]) => name || panel.y);
    const rows = panel.names.map((name, i) => row(name, panel.series.map(([, values]) => number(values[i]))));
    return h("table", {}, head("", ...names), ...rows);
  }
  const places = [...new Set(panel.lines.flatMap((line) => line.x))].sort((a, b) => a - b);
  const found = panel.lines.map((line) => new Map(line.x.map((x, i) => [x, line.y[i]])));
  const rows = places.map((x) => row(written(x), found.map((line) => number(line.get(x)))));
  return h("table", {}, head(panel.x, ...panel.lines.map((line) => line.name || panel.y)), ...rows);
}

function spoken(panel) {
  const { title, kind } = panel;
  if (kind === "matrix") return `${title}: ${panel.values.length} × ${panel.values[0].length} numbers, ${panel.unit}`;
  const ends = (values) => `${written(values[0] ?? null)} to ${written(values.at(-1) ?? null)}`;
  const each = (values) => values.map((value, i) => `${panel.names[i]} ${written(value)}`).join(", ");
  const told =
    kind === "curves"
      ? panel.lines.map((line) => `${line.name || panel.y} from ${ends(line.y)}`)
      : panel.series.map(([name, values]) => `${name || panel.y}: ${each(values)}`);
  return `${title}: ${told.join("; ")}`;
}
