// The room Runs: which runs there are, and how one of them goes.

import { chart } from "./chart.js";
import { address, ask, json } from "./api.js";
import { at, make, percent, trouble } from "./dom.js";
import { timeLapse } from "./lapse.js";
import { change, value } from "./state.js";

const EVERY = 2000; // milliseconds between looks at a run that goes on
const SLOWLY = 6000; // and at the list
const SHARES = ["accuracy", "top1", "exact"]; // figures that are told in percent

/** @type {any} */
let shown = null; // the run on the page: {name, data, charts, …}
let timer = null;
let visit = 0;

export async function enter() {
  const mine = ++visit;
  await refresh();
  const look = async () => {
    if (mine !== visit) return;
    try {
      if (!document.hidden) await refresh();
    } catch (error) {
      trouble(error);
    }
    if (mine === visit) timer = setTimeout(look, shown?.data.running ? EVERY : SLOWLY);
  };
  timer = setTimeout(look, EVERY);
}

export function leave() {
  visit++;
  clearTimeout(timer);
  forget();
}

async function refresh() {
  const runs = await json("/api/runs");
  const name = value("run") ?? runs[0]?.name ?? null;
  list(runs, name);
  if (name === null) return;
  if (shown?.name !== name) await open(name);
  else await follow();
}

function list(runs, chosen) {
  if (!runs.length) {
    at("run").hidden = true;
    at("run-list").replaceChildren(
      make("p", {}, "No runs yet. They appear here as soon as one begins: ", make("code", {}, "pellucid train vit_digits")),
    );
    return;
  }
  const rows = runs.map((run) => {
    const link = make("a", { href: address("/", { room: "runs", run: run.name }) }, run.name, make("small", {}, ...brief(run)));
    if (run.name === chosen) link.setAttribute("aria-current", "true");
    link.addEventListener("click", (event) => {
      if (event.metaKey || event.ctrlKey || event.shiftKey) return;
      event.preventDefault();
      change({ run: run.name }, { push: true });
      refresh().catch(trouble);
    });
    return make("li", {}, link);
  });
  const focused = document.activeElement?.closest?.("#run-list a")?.getAttribute("href");
  at("run-list").replaceChildren(make("ul", { className: "run-list" }, ...rows));
  if (focused) at("run-list").querySelector(`a[href="${CSS.escape(focused)}"]`)?.focus();
}

function brief(run) {
  const figure = Object.entries(run.figures)[0];
  const score = figure ? `, ${figure[0]} ${written(figure[0])(figure[1])}` : "";
  const state = run.running ? make("span", { className: "live" }, "running") : run.step && run.step === run.steps ? "finished" : "stopped";
  return [state, `, step ${run.step.toLocaleString("en")}${run.steps ? ` of ${run.steps.toLocaleString("en")}` : ""}${score}`];
}

async function open(name) {
  const data = await json(`/api/runs/${encodeURIComponent(name)}`);
  forget();
  const bar = make("progress", { max: 1, "aria-label": "Steps done" });
  const state = make("p", { className: "caption" });
  const plots = make("div", { className: "charts" });
  const table = make("div", { className: "scroll" });
  const [more, lapse] = [make("div", {}), make("div", {})];
  shown = { name, data, bar, state, plots, table, charts: new Map() };
  at("run").hidden = false;
  at("run").replaceChildren(
    make("h2", {}, name), state, bar, plots,
    make("h2", {}, "Evaluations"), table, more, lapse,
    details("Configuration", data.config), details("Environment", data.environment),
  );
  draw();
  if (data.kind === "classifier" && data.checkpoints.length) confusion(name, more);
  const mine = shown; // another run may be opened meanwhile
  if (data.checkpoints.length) mine.lapse = await timeLapse(name, data.checkpoints, lapse);
}

function details(title, content) {
  return make("details", {}, make("summary", {}, title), make("pre", { tabIndex: 0 }, JSON.stringify(content, null, 2)));
}

/** What has come since; everything anew if the run was cut back to a checkpoint. */
async function follow() {
  const { data, name } = shown;
  const news = await json(address(`/api/runs/${encodeURIComponent(name)}`, { after: data.step }));
  if (shown?.name !== name) return;
  if (news.step < data.step) {
    shown = null;
    return open(name);
  }
  for (const [column, values] of Object.entries(news.curves)) (data.curves[column] ??= []).push(...values);
  data.evaluations.push(...news.evaluations);
  Object.assign(data, { step: news.step, steps: news.steps, running: news.running, figures: news.figures, odd_lines: news.odd_lines });
  draw();
}

function draw() {
  const { data, bar, state, plots, table, charts } = shown;
  bar.max = data.steps || 1;
  bar.value = Math.min(data.step, bar.max);
  state.replaceChildren(data.recipe ? `Recipe ${data.recipe}, ` : "", ...brief({ ...data, figures: {} }), ".", odd(data.odd_lines));
  for (const [name, series] of plotted(data)) {
    if (!charts.has(name)) {
      const share = SHARES.includes(name);
      const drawn = chart({ title: name, xLabel: "epoch", format: written(name), range: share ? [0, 1] : [0, null] });
      charts.set(name, drawn);
      plots.append(drawn.element);
    }
    charts.get(name).update(series);
  }
  table.replaceChildren(evaluations(data.evaluations));
}

const odd = (lines) => (lines ? ` Left out of its log: ${lines === 1 ? "an odd line" : `${lines} odd lines`}.` : "");

/** Which curves are drawn, by title: what was logged at each step, and on held-out images. */
function plotted(data) {
  const { curves, evaluations } = data;
  const left = ["step", "epoch", "lr"];
  const held = new Set(evaluations.flatMap((each) => Object.keys(each.figures)));
  const found = new Map();
  for (const name of Object.keys(curves).filter((each) => !left.includes(each) && !each.endsWith("_per_second"))) {
    const series = [{ name: "training", colour: "--series-1", dashed: true, xs: curves.epoch, ys: curves[name] }];
    const twin = name === "accuracy" && held.has("top1") ? "top1" : name;
    if (held.delete(twin)) series.push(heldOut(twin, evaluations));
    found.set(name, series);
  }
  for (const name of held) found.set(name, [heldOut(name, evaluations)]);
  return found;
}

const heldOut = (name, evaluations) => ({
  name: "held out", colour: "--series-2", dashed: false,
  xs: evaluations.map((each) => each.epoch), ys: evaluations.map((each) => each.figures[name] ?? null),
});

const written = (name) => (SHARES.includes(name) ? percent : (x) => (x === null ? "–" : Number(x.toPrecision(4)).toString()));

function evaluations(rows) {
  if (!rows.length) return make("p", { className: "caption" }, "None yet.");
  const names = [...new Set(rows.flatMap((row) => Object.keys(row.figures)))];
  const head = ["step", "epoch", ...names].map((name) => make("th", { scope: "col" }, name));
  const body = rows.slice(-12).map((row) =>
    make("tr", {}, make("td", {}, String(row.step)), make("td", {}, String(row.epoch)), ...names.map((name) => make("td", {}, written(name)(row.figures[name] ?? null)))),
  );
  const caption = rows.length > 12 ? [make("caption", { className: "caption" }, `The last 12 of ${rows.length}`)] : [];
  return make("table", {}, ...caption, make("thead", {}, make("tr", {}, ...head)), make("tbody", {}, ...body));
}

async function confusion(name, place) {
  const button = make("button", { type: "button", className: "button" }, "Draw the confusion matrix");
  const said = make("p", { className: "caption", role: "status" });
  place.replaceChildren(make("h2", {}, "Confusion matrix"), button, said);
  button.addEventListener("click", async () => {
    button.disabled = true;
    said.textContent = "Looking at held-out images …";
    try {
      const response = await ask(`/api/runs/${encodeURIComponent(name)}/confusion.png`);
      const images = response.headers.get("X-Images");
      const picture = make("img", { src: URL.createObjectURL(await response.blob()), alt: `Confusion matrix of ${name} on ${images} held-out images: rows are what they are, columns what the model says.` });
      picture.addEventListener("load", () => URL.revokeObjectURL(picture.src));
      button.replaceWith(make("div", { className: "plate" }, picture));
      said.textContent = `On ${images} held-out images.`;
    } catch (error) {
      button.disabled = false;
      said.textContent = error.message;
    }
  });
}

function forget() {
  for (const drawn of shown?.charts.values() ?? []) drawn.destroy();
  shown?.lapse?.destroy();
  shown = null;
}
