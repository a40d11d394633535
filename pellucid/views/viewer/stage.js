/**
 * The picture and the tokens: what is painted, and where one points.
 *
 * @typedef {import("./viewer.js").Seen} Seen
 * @typedef {import("./viewer.js").Actions} Actions
 */
import { css, ink, precise, short } from "./colour.js";
import { h, say, set } from "./dom.js";
import { drawPicture, drawScale } from "./draw.js";
import { extraOf, queryLabel, title, tokensOf } from "./look.js";

const MOST_ZOOM = 8;

/** @param {Actions} actions */
export function makeStage(actions) {
  const headline = h("h2", { class: "pl-headline" });
  const circumstances = h("p", { class: "pl-quiet pl-circumstances" });
  const pointing = h("fieldset", { class: "pl-segments" }, h("legend", {}, "Pointing picks"));
  for (const [pick, text] of [
    ["query", "the query"],
    ["key", "a key to change"],
  ]) {
    const click = () => actions.change({ pick, ...(pick === "key" && { pin: true }) });
    pointing.append(h("button", { type: "button", "data-pick": pick, "aria-pressed": "false", click }, text));
  }
  const zooming = h("div", { class: "pl-segments", role: "group", "aria-label": "Zoom" });
  for (const [factor, text, name] of [
    [1 / 1.5, "−", "Zoom out"],
    [1.5, "+", "Zoom in"],
  ]) {
    zooming.append(h("button", { type: "button", "aria-label": name, click: () => zoom(factor) }, text));
  }
  const cover = h("input", { type: "range", min: 0, max: 1, step: 0.05, value: 0.75, input: () => actions.draw() });
  const canvas = h("canvas", { class: "pl-picture", tabindex: 0, role: "application" });
  const scroll = h("div", { class: "pl-scroll" }, canvas);
  const extras = h("div", { class: "pl-chips", role: "group", "aria-label": "Beside the patches" });
  const said = h("div", { class: "pl-chips", role: "group", "aria-label": "Said, with log-probabilities" });
  const read = h("div", { class: "pl-chips", role: "group", "aria-label": "Read" });
  const readout = h("p", { class: "pl-readout" });
  const bar = h("canvas", { class: "pl-scale", role: "img" });
  const says = h("p", { class: "pl-quiet pl-says" });
  const element = h(
    "section",
    { class: "pl-stage", "aria-label": "Picture" },
    h("div", {}, headline, circumstances),
    said,
    h("div", { class: "pl-tools" }, pointing, zooming, h("label", {}, h("span", {}, "Cover"), cover)),
    scroll,
    extras,
    read,
    h("div", {}, bar, says),
    readout,
  );

  let zoomed = 1;
  /** @type {Seen | null} */
  let shown = null;
  function zoom(factor) {
    zoomed = Math.min(Math.max(zoomed * factor, 1), MOST_ZOOM);
    if (Math.abs(zoomed - 1) < 0.01) zoomed = 1;
    actions.draw();
  }

  /** The patch at a point of the canvas, as a token's number. */
  function patchAt(event) {
    const image = shown && tokensOf(shown.trace, "image");
    if (!image?.grid) return null;
    const [rows, columns] = image.grid;
    const box = canvas.getBoundingClientRect();
    const row = Math.floor(((event.clientY - box.top) / box.height) * rows);
    const column = Math.floor(((event.clientX - box.left) / box.width) * columns);
    if (row < 0 || column < 0 || row >= rows || column >= columns) return null;
    return extraOf(image) + row * columns + column;
  }
  const at = (act) => (event) => {
    const token = patchAt(event);
    if (token !== null) act("image", token);
  };
  canvas.addEventListener("pointermove", at(actions.point));
  canvas.addEventListener("pointerdown", at(actions.point));
  canvas.addEventListener("click", at(actions.choose));
  canvas.addEventListener("keydown", (event) => {
    const image = shown && tokensOf(shown.trace, "image");
    const step = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[event.key];
    if (step && image?.grid) {
      const [rows, columns] = image.grid;
      const extra = extraOf(image);
      const from = actions.asks("image") ? shown.state.token : (shown.state.key ?? extra);
      const [row, column] = from < extra ? [0, 0] : [Math.floor((from - extra) / columns), (from - extra) % columns];
      const to = [row + step[0], column + step[1]].map((x, i) => Math.min(Math.max(x, 0), [rows, columns][i] - 1));
      actions.move("image", extra + to[0] * columns + to[1]);
    } else if (event.key === "Enter" || event.key === " ") {
      actions.choose("image", actions.asks("image") ? shown.state.token : (shown.state.key ?? 0));
    } else if (event.key === "+" || event.key === "-") {
      zoom(event.key === "+" ? 1.5 : 1 / 1.5);
    } else return;
    event.preventDefault();
  });
  scroll.addEventListener(
    "wheel",
    (event) => {
      if (!event.ctrlKey) return;
      event.preventDefault();
      zoom(event.deltaY < 0 ? 1.15 : 1 / 1.15);
    },
    { passive: false },
  );

  /** @param {Seen} seen */
  function update(seen) {
    shown = seen;
    const { trace, state, look, scale } = seen;
    const [first, second] = title(trace, state, look);
    say(headline, first);
    say(circumstances, second);
    for (const button of pointing.querySelectorAll("button")) {
      set(button, "aria-pressed", String(button.dataset.pick === state.pick));
    }
    paint(seen);
    chips(extras, seen, "image", extraOf(tokensOf(trace, "image") ?? { labels: [], grid: null }), actions);
    updateSaid(said, seen, actions);
    chips(read, seen, look.keys.name, look.keys.grid || look.map ? 0 : look.keys.labels.length, actions, "key");
    say(readout, seen.under ? readoutOf(seen) : "");
    updateBar(scale);
    say(says, `Colours: ${scale.says}.`);
    set(bar, "aria-label", `Colour scale, ${scale.says}`);
  }

  /** The scale is drawn when it is another one, or another size or colour of text. */
  let drawn = "";
  function updateBar(scale) {
    const { fontSize, color } = getComputedStyle(bar);
    const how = { width: element.clientWidth || 320, cover: Number(cover.value), size: parseFloat(fontSize) * 0.85 };
    const wanted = JSON.stringify([how, color, scale.says, scale.ticks]);
    if (drawn === wanted) return;
    drawn = wanted;
    drawScale(bar, { ...how, scale, text: color });
  }

  function paint({ trace, state, look, scale, picture }) {
    const image = tokensOf(trace, "image");
    const covered = look.painted.name === "image";
    const room = Math.max(scroll.clientWidth, 120);
    const ratio = trace.image.height / trace.image.width;
    const width = Math.floor(Math.min(room, Math.max(0.62 * window.innerHeight, 320) / ratio) * zoomed);
    canvas.style.touchAction = zoomed > 1 ? "auto" : "pan-y pinch-zoom";
    drawPicture(canvas, picture, {
      width,
      height: Math.round(width * ratio),
      grid: image?.grid ?? null,
      values: covered ? look.values : null,
      extra: image ? extraOf(image) : 0,
      scale,
      cover: Number(cover.value),
      query: state.method === "row" && look.queries.name === "image" ? state.token : null,
      key: look.keys.name === "image" && !look.map ? state.key : null,
      pin: state.pin,
      deleted: look.keys.name === "image" && look.changed && !look.map ? look.changed.deleted : new Set(),
    });
    const patches = image?.grid ? `${image.grid[0]} by ${image.grid[1]} patches` : "no patches";
    set(
      canvas,
      "aria-label",
      `Picture of ${patches}, coloured by weight. Arrow keys choose a patch, Enter pins it, Escape lets it go.`,
    );
  }
  return { element, update };
}

/** Tokens as buttons, coloured by what is painted on them. */
function chips(box, { trace, state, look, scale }, name, count, actions, role) {
  box.hidden = !count;
  const labels = tokensOf(trace, name)?.labels.slice(0, count) ?? [];
  fill(box, labels, name, role, actions);
  labels.forEach((label, i) => {
    const chip = box.children[i];
    const painted = look.painted.name === name;
    const asks = role !== "key" && look.queries.name === name && state.method === "row";
    dress(chip, {
      colours: painted ? [css(scale.share(look.values[i])), ink(scale.share(look.values[i]))] : null,
      number: painted ? short(look.values[i]) : "",
      query: asks && state.token === i,
      pin: asks && state.token === i && state.pin,
      key: look.keys.name === name && state.key === i && !look.map,
      deleted: look.keys.name === name && !look.map && Boolean(look.changed?.deleted.has(i)),
      label: `${label}${painted ? `, weight ${precise(look.values[i])}` : ""}`,
    });
  });
}

/** The words that were said, each with its log-probability; they ask where the layer's queries are words. */
function updateSaid(box, { trace, state, look }, actions) {
  box.hidden = !trace.words.length;
  const words = trace.words.map(([word]) => word);
  fill(box, words, "words", "query", actions);
  const asks = look.queries.name === "words" && (state.method === "row" || look.map?.word !== null);
  trace.words.forEach(([word, logarithm], i) => {
    const chosen = asks ? state.token === i : look.map?.word === i;
    dress(box.children[i], {
      colours: null,
      number: precise(logarithm),
      query: chosen,
      pin: chosen && state.pin,
      key: false,
      deleted: false,
      label: `${word}, log-probability ${precise(logarithm)}`,
    });
  });
}

function fill(box, labels, name, role, actions) {
  if (box.dataset.labels === JSON.stringify(labels)) return;
  box.dataset.labels = JSON.stringify(labels);
  box.replaceChildren(
    ...labels.map((label, i) =>
      h(
        "button",
        {
          type: "button",
          class: "pl-chip",
          "data-token": i,
          pointerenter: () => actions.point(name, i, role),
          focus: () => actions.point(name, i, role),
          click: () => actions.choose(name, i, role),
        },
        h("span", {}, label),
        h("small", {}),
      ),
    ),
  );
}

function dress(chip, { colours, number, query, pin, key, deleted, label }) {
  const [back, front] = colours ?? ["", ""];
  if (chip.style.backgroundColor !== back) Object.assign(chip.style, { backgroundColor: back, color: front });
  say(chip.lastChild, number);
  set(chip, "aria-pressed", String(pin));
  const states = [query && ", the query", pin && ", pinned", deleted && ", deleted"].filter(Boolean);
  set(chip, "aria-label", label + states.join(""));
  for (const [name, on] of Object.entries({ query, pin, key, deleted })) chip.classList.toggle(`pl-${name}`, on);
}

function readoutOf({ trace, state, look, under }) {
  const { name, token } = under;
  const label = tokensOf(trace, name)?.labels[token] ?? "";
  if (look.painted.name !== name || under.role === "query") return "";
  const value = look.values[token];
  const times = look.distribution ? ` = ${(value * look.n).toPrecision(2)} × 1/${look.n}` : "";
  const before = look.before ? `, before ${precise(look.before[token])}` : "";
  const asked = state.method === "row" && !look.map ? `${queryLabel(trace, look.layer, state.token)} → ` : "";
  return `${asked}${label}: ${precise(value)}${times}${before}`;
}
