// The room Look: a picture or a text, what a model says of it, and where it looked.

import { parse } from "/viewer/bundle.js";
import { sentenceOf } from "/viewer/streams.js";
import { mount } from "/viewer/viewer.js";
import { address, ask, json } from "./api.js";
import { at, make, percent, trouble } from "./dom.js";
import { find, keep, sampleButtons } from "./pictures.js";
import { change, changeView, value } from "./state.js";

const SMALL = 128; // pixels: a picture below is shown with its pixels as squares

let models = null;
let samples = [];
let limits = null;
let running = null; // what can be aborted
let viewer = null;
let begun = at("text").value; // the text that nobody has changed
let prepare = null; // from the viewer's part of the address to what it shall be for the next trace
const reads = (model, what) => (model.reads ?? ["picture"]).includes(what);
/** @type {Record<"picture" | "blob" | "url" | "trace", any>} */
const shown = { picture: null, blob: null, url: null, trace: null };

export async function enter() {
  if (!models) await furnish();
  await show();
}

export function leave() {
  running?.abort();
  viewer?.destroy();
  viewer = null;
}

async function furnish() {
  const [there, pictures, health] = await Promise.all([json("/api/models"), json("/api/samples"), json("/api/health")]);
  if (!there.length) throw new Error("The server has no models; start it with pellucid serve --models NAME.");
  [models, samples, limits] = [there, pictures, health.limits];
  at("model").append(...models.map((model) => make("option", { value: model.name }, model.name)));
  at("model").addEventListener("change", () => {
    change({ model: at("model").value, target: null });
    prepare = () => "";
    show();
  });
  at("words").addEventListener("submit", (event) => {
    event.preventDefault();
    change({ text: at("text").value, target: null }, { push: true });
    prepare = () => "";
    show();
  });
  at("samples").append(...sampleButtons(samples, (name) => choose(`sample:${name}`)));
  at("file").addEventListener("change", () => {
    if (at("file").files.length) take(at("file").files[0]);
    at("file").value = "";
  });
  addEventListener("paste", (event) => {
    const [file] = event.clipboardData?.files ?? [];
    if (file && !at("look").hidden) take(file);
  });
  for (const name of ["dragenter", "dragover", "dragleave", "drop"]) {
    addEventListener(name, (/** @type {any} */ event) => {
      if (at("look").hidden) return;
      event.preventDefault();
      at("drop").classList.toggle("over", name === "dragenter" || name === "dragover");
      if (name === "drop" && event.dataTransfer.files.length) take(event.dataTransfer.files[0]);
    });
  }
}

async function take(file) {
  trouble(null);
  if (file.size > limits.bytes) {
    trouble(new Error(`The file has ${megabytes(file.size)}, more than the limit of ${megabytes(limits.bytes)}; shrink it.`));
    return;
  }
  try {
    choose(`kept:${await keep(file)}`);
  } catch (error) {
    trouble(error);
  }
}

const megabytes = (bytes) => `${(bytes / (1 << 20)).toFixed(1)} MB`;

function choose(picture) {
  change({ picture, target: null }, { push: true });
  prepare = () => "";
  show();
}

/** Bring the room to what the address says. */
async function show() {
  running?.abort();
  running = new AbortController();
  const { signal } = running;
  trouble(null);
  const model = models.find((each) => each.name === value("model")) ?? preferred();
  at("model").value = model.name;
  const picture = value("picture") ?? `sample:${first(model)}`;
  for (const button of at("samples").children) {
    button.setAttribute("aria-pressed", String(`sample:${button.dataset.name}` === picture));
  }
  at("words").hidden = !reads(model, "text");
  at("pictures").hidden = !reads(model, "picture");
  if (value("text") !== null) at("text").value = value("text");
  else if (at("text").value === begun) at("text").value = begun = firstText(model);
  at("about-model").textContent = `A ${model.kind} of ${(model.parameters / 1e6).toFixed(1)} million parameters. ${sees(model)}`;
  at("answer-title").textContent = model.kind === "captioner" || reads(model, "text") ? "What it says" : "What it sees";
  at("answer").replaceChildren(make("p", { className: "waiting" }, "Looking …"));
  forgetTrace();
  try {
    const text = reads(model, "text") ? at("text").value : null;
    const blob = reads(model, "picture") ? await pictureOf(picture, signal) : null;
    if (signal.aborted) return;
    if (blob) display(picture, blob);
    if (text === null) await Promise.all([answer(model, blob, signal), attend(model, blob, null, signal)]);
    else await answerInside(await attend(model, blob, text, signal));
  } catch (error) {
    if (signal.aborted) return;
    at("answer").replaceChildren();
    at("attention").hidden = true;
    trouble(error);
  }
}

/** The trace of something else must not be seen under the answer that comes: its room stays, empty, until its own does. */
function forgetTrace() {
  const room = at("viewer");
  room.style.minHeight = `${Math.min(room.offsetHeight, innerHeight)}px`;
  viewer?.destroy();
  viewer = null;
  at("download").hidden = true;
  room.replaceChildren(make("p", { className: "waiting", role: "status" }, "Computing where it looks …"));
}

function sees(model) {
  if (!model.image) return `It ${["text", "picture"].filter((what) => reads(model, what)).map((what) => ({ text: "reads text", picture: "looks at pictures" })[what]).join(" and ")}.`;
  return `It looks at ${model.image[0]} × ${model.image[1]} pixels${reads(model, "text") ? " and reads text" : ""}.`;
}

/** What to begin with: each model with a picture of the kind that it knows. */
function first(model) {
  if (/scene/.test(model.name)) return "scene-1";
  return model.kind === "captioner" ? "china" : "ship";
}

const firstText = (model) =>
  model.kind === "translator" ? "A man in a blue shirt rides a horse on the beach." : "The cat sat on the mat because it was tired.";

const preferred = () => models.find((each) => each.kind === "classifier") ?? models[0];

async function pictureOf(picture, signal) {
  const [where, name] = picture.split(":");
  if (where === "sample") return (await ask(`/api/samples/${encodeURIComponent(name)}`, { signal })).blob();
  const file = where === "kept" ? await find(name) : null;
  if (!file) throw new Error("The picture of this address was never chosen in this browser; choose it again.");
  return file;
}

function display(picture, blob) {
  if (shown.url) URL.revokeObjectURL(shown.url);
  Object.assign(shown, { picture, blob, url: URL.createObjectURL(blob) });
  const image = at("shown");
  const [where, name] = picture.split(":");
  const sample = where === "sample" && samples.find((each) => each.name === name);
  const called = sample ? `${sample.kind}: ${sample.title}` : (blob.name ?? "your picture");
  image.alt = called;
  image.hidden = false;
  image.onload = () => {
    image.classList.toggle("tiny", Math.max(image.naturalWidth, image.naturalHeight) <= SMALL);
    at("said-of-picture").textContent = `${called}, ${image.naturalHeight} × ${image.naturalWidth} pixels`;
  };
  image.onerror = () => {
    image.hidden = true; // the server may read formats that the browser can't show
    at("said-of-picture").textContent = called;
  };
  image.src = shown.url;
  at("hint").textContent = "Drop another one here, paste it, or";
}

/** The answer of a model that reads text is in its trace. */
function answerInside(bytes) {
  if (!bytes) return;
  const trace = parse(bytes);
  const { answers, words } = trace;
  if (words.length) {
    const each = words.map(([word, log]) => ({ word: word.trim(), probability: Math.exp(log) }));
    const log_prob = words.reduce((sum, [, log]) => sum + log, 0);
    at("answer").replaceChildren(...caption({ caption: sentenceOf(trace), words: each, log_prob }));
    return;
  }
  const likely = answers.map(([label, share]) => `${label.trim()} ${percent(share)}`).join(", ");
  at("answer").replaceChildren(make("p", { className: "sentence" }, likely || "It answers nothing; below is where it looks."));
}

async function answer(model, blob, signal) {
  const how = { method: "POST", body: blob, signal };
  if (model.kind === "captioner") {
    const said = await json(address("/api/caption", { model: model.name }), how);
    at("answer").replaceChildren(...caption(said.captions[0]));
  } else {
    const said = await json(address("/api/classify", { model: model.name, top: 5 }), how);
    at("answer").replaceChildren(...classes(model, said.classes));
  }
}

function caption(said) {
  const words = said.words.map(({ word, probability }) => make("li", {}, word, make("small", {}, percent(probability))));
  return [
    make("p", { className: "sentence" }, said.caption),
    make("ol", { className: "words", "aria-label": "Words with their probabilities" }, ...words),
    make("p", { className: "caption" }, `Probability of the whole sentence: ${percent(Math.exp(said.log_prob))}.${doubt(said)}`),
  ];
}

/** What is to be said of a sentence that the model is unsure of. */
function doubt({ unsure, expected }) {
  return unsure ? ` It is unsure: people would say about ${Math.round(10 * expected)} in 10 of these words.` : "";
}

function classes(model, found) {
  const explained = value("target");
  const rows = found.map(({ label, probability }) => {
    const fill = make("span", { className: "fill" });
    fill.style.width = `${100 * probability}%`;
    const button = make(
      "button",
      { type: "button", title: `Explain ${label}`, "aria-pressed": label === explained },
      make("span", { className: "label" }, label),
      make("span", { className: "track", "aria-hidden": "true" }, fill),
      make("span", { className: "number" }, percent(probability)),
    );
    button.addEventListener("click", () => {
      change({ target: label });
      prepare = explaining;
      show();
    });
    return make("li", {}, button);
  });
  return [
    make("ol", { className: "classes" }, ...rows),
    make("p", { className: "caption" }, `The likeliest of ${model.labels.length} classes. Choose one to see below what speaks for it.`),
  ];
}

/** The same view, but of the map that explains the class. */
function explaining(hash) {
  const entries = new URLSearchParams(hash.slice(1));
  entries.delete("target");
  entries.set("method", "gradient");
  return entries.toString();
}

/** Show the trace of a picture, a text or both while it comes; all its bytes, or null if nobody waits for them. */
async function attend(model, blob, text, signal) {
  const target = (model.labels ?? []).includes(value("target")) ? value("target") : null;
  const body = blob ?? new Blob([text], { type: "text/plain; charset=utf-8" });
  const beside = blob ? text : null;
  const response = await ask(address("/api/trace", { model: model.name, target, text: beside }), { method: "POST", body, signal });
  if (signal.aborted) return null;
  if (prepare) changeView(prepare(location.hash));
  prepare = null;
  at("attention").hidden = false;
  viewer = mount(at("viewer"), response, { stateInAddress: true });
  at("viewer").style.minHeight = "";
  const trace = await viewer.whole;
  if (signal.aborted || !trace) return null;
  if (shown.trace) URL.revokeObjectURL(shown.trace);
  shown.trace = URL.createObjectURL(new Blob([trace], { type: "application/octet-stream" }));
  Object.assign(at("download"), { href: shown.trace, download: `${model.name}.pellucid`, hidden: false });
  return trace;
}
