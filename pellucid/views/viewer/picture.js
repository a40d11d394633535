/**
 * The picture under its colours: where one points, how near one is.
 *
 * @typedef {import("./viewer.js").Seen} Seen
 * @typedef {import("./viewer.js").Actions} Actions
 */
import { h, set } from "./dom.js";
import { drawPicture } from "./draw.js";
import { isPatch, isPictured } from "./streams.js";

const MOST_ZOOM = 8;
const STEPS = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };

/** @param {Actions} actions */
export function makePicture(actions) {
  const zooming = h("div", { class: "pl-segments", role: "group", "aria-label": "Zoom" });
  for (const { factor, text, name } of [
    { factor: 1 / 1.5, text: "−", name: "Zoom out" },
    { factor: 1.5, text: "+", name: "Zoom in" },
  ]) {
    zooming.append(h("button", { type: "button", "aria-label": name, click: () => zoom(factor) }, text));
  }
  const cover = h("input", { type: "range", min: 0, max: 1, step: 0.05, value: 1, input: () => actions.draw() });
  const covering = h("label", {}, h("span", {}, "Cover"), cover);
  const canvas = h("canvas", { class: "pl-picture", tabindex: 0, role: "application" });
  const scroll = h("div", { class: "pl-scroll" }, canvas);

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
    const stream = shown && picturedStream(shown);
    if (!stream?.grid) return null;
    const [rows, columns] = stream.grid;
    const box = canvas.getBoundingClientRect();
    const row = Math.floor(((event.clientY - box.top) / box.height) * rows);
    const column = Math.floor(((event.clientX - box.left) / box.width) * columns);
    if (row < 0 || column < 0 || row >= rows || column >= columns) return null;
    return { name: stream.name, token: stream.first + row * columns + column };
  }
  const at = (act) => (event) => {
    const place = patchAt(event);
    if (place) act(place.name, place.token);
  };
  canvas.addEventListener("pointermove", at(actions.point));
  canvas.addEventListener("pointerdown", at(actions.point));
  canvas.addEventListener("click", at(actions.choose));
  canvas.addEventListener("keydown", (event) => {
    const stream = shown && picturedStream(shown);
    if (event.key === "+" || event.key === "-") zoom(event.key === "+" ? 1.5 : 1 / 1.5);
    else if (shown && stream && !steered(event.key, stream, shown)) return;
    event.preventDefault();
  });

  /** The arrows choose a patch, Enter takes it. */
  function steered(key, stream, { state, look }) {
    const from = actions.asks(stream.name) ? state.token : look.keys === stream ? (state.key ?? stream.first) : null;
    if (from === null) return false;
    if (key === "Enter" || key === " ") actions.choose(stream.name, from);
    else if (STEPS[key]) actions.move(stream.name, neighbour(stream, from, STEPS[key]));
    else return false;
    return true;
  }
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
    const { state, look, scale, picture } = seen;
    for (const each of [scroll, zooming, covering]) each.hidden = !picture;
    if (!picture) return;
    const stream = picturedStream(seen);
    const covered = stream && look.painted === stream;
    const room = Math.max(scroll.clientWidth, 120);
    const ratio = picture.own.height / picture.own.width;
    const width = Math.floor(Math.min(room, Math.max(0.62 * window.innerHeight, 320) / ratio) * zoomed);
    canvas.style.touchAction = zoomed > 1 ? "auto" : "pan-y pinch-zoom";
    const onGrid = (token) => (stream && token !== null && isPatch(stream, token) ? token - stream.first : null);
    const answers = look.keys === stream && !look.map;
    drawPicture(canvas, picture, {
      width,
      height: Math.round(width * ratio),
      grid: stream?.grid ?? null,
      values: covered ? look.values : null,
      first: stream?.first ?? 0,
      scale,
      cover: Number(cover.value),
      query: state.method === "row" && look.queries === stream ? onGrid(state.token) : null,
      key: answers ? onGrid(state.key) : null,
      pin: state.pin,
      deleted: answers && look.changed ? [...look.changed.deleted].map(onGrid) : [],
    });
    const patches = stream?.grid ? `${stream.grid[0]} by ${stream.grid[1]} patches` : "no patches";
    const keys = "Arrow keys choose a patch, Enter pins it, Escape lets it go";
    set(canvas, "aria-label", `Picture of ${patches}, coloured by weight. ${keys}.`);
  }
  return { element: scroll, tools: [zooming, covering], update };
}

/** The row of tokens that lies on the picture: what is painted, or who asks, or any. @param {Seen} seen */
function picturedStream({ trace, look }) {
  return [look.painted, look.keys, look.queries, ...trace.streams].find(isPictured) ?? null;
}

/** The patch beside this one; the first for a token that is none. */
function neighbour(stream, token, [down, across]) {
  const [rows, columns] = stream.grid;
  const at = isPatch(stream, token) ? token - stream.first : 0;
  const row = Math.min(Math.max(Math.floor(at / columns) + down, 0), rows - 1);
  const column = Math.min(Math.max((at % columns) + across, 0), columns - 1);
  return stream.first + row * columns + column;
}
