/**
 * Two columns of tokens, who asks and who is asked, with a line for each weight: a colour for each head. Only what is
 * in sight is drawn, so that thousands of tokens can be scrolled through.
 *
 * @typedef {import("./viewer.js").Seen} Seen
 * @typedef {import("./viewer.js").Actions} Actions
 */
import { headRow, seenKeys } from "./attention.js";
import { precise } from "./colour.js";
import { h, say, set } from "./dom.js";
import { sharp } from "./draw.js";
import { queryLabel, visible } from "./streams.js";

const FAINT = 0.02; // weights below it have no line
const MOST_ROWS = 22; // rows in sight
const MOST_WORK = 5e7; // multiplications for the lines of the queries that aren't chosen

/** A head's colour, of `count`: as light as each other. */
export const headColour = (head, count) => `oklch(0.66 0.17 ${Math.round((360 * head) / count + 20)})`;

/** @param {Actions} actions */
export function makeColumns(actions) {
  const canvas = h("canvas", { tabindex: 0, role: "application", keydown: keys });
  const room = h("div", { class: "pl-room" });
  const scroll = h("div", { class: "pl-columns", scroll: () => shown && draw(shown) }, canvas, room);
  const every = h("input", { type: "checkbox", change: () => actions.draw() });
  const label = h("label", { class: "pl-check" }, every, h("span", {}, "Lines of every query in sight"));
  const readout = h("p", { class: "pl-quiet pl-told" });
  const element = h("div", {}, h("div", { class: "pl-row" }, label), scroll, readout);
  /** @type {Seen | null} */
  let shown = null;
  let [row, followed] = [20, -1];

  function placeAt(event) {
    if (!shown) return null;
    const box = canvas.getBoundingClientRect();
    const at = Math.floor((event.clientY - box.top + scroll.scrollTop) / row);
    const asks = event.clientX - box.left < box.width / 2;
    const stream = asks ? shown.look.queries : shown.look.keys;
    return at < 0 || at >= stream.labels.length ? null : { name: stream.name, token: at, role: asks ? "query" : "key" };
  }
  canvas.addEventListener("pointermove", (event) => {
    const place = placeAt(event);
    if (!place) return;
    followed = place.token;
    actions.point(place.name, place.token, place.role);
  });
  canvas.addEventListener("click", (event) => {
    const place = placeAt(event);
    if (place) actions.choose(place.name, place.token, place.role);
  });

  function keys(event) {
    if (!shown) return;
    const { state, look } = shown;
    const to = { ArrowDown: state.token + 1, ArrowUp: state.token - 1, Home: 0, End: look.layer.nQueries - 1 }[event.key];
    if (to !== undefined && to >= 0 && to < look.layer.nQueries) actions.change({ token: to, pin: true });
    else if (event.key === "Enter" || event.key === " ") actions.choose(look.queries.name, state.token, "query");
    else return;
    event.preventDefault();
  }

  /** @param {Seen} seen */
  function update(seen) {
    shown = seen;
    const { state, look } = seen;
    const most = Math.max(look.layer.nQueries, look.layer.nKeys);
    row = Math.round(parseFloat(getComputedStyle(scroll).fontSize) * 1.6);
    const height = Math.min(most, MOST_ROWS) * row;
    scroll.style.height = `${height + 2}px`;
    canvas.style.height = `${height}px`;
    room.style.height = `${most * row}px`;
    room.style.marginTop = `${-height}px`;
    const top = state.token * row;
    const hidden = top < scroll.scrollTop || top + row > scroll.scrollTop + scroll.clientHeight;
    if (hidden && followed !== state.token) scroll.scrollTop = top - scroll.clientHeight / 2;
    followed = state.token;
    draw(seen);
    const strongest = readoutOf(seen);
    say(readout, strongest);
    set(canvas, "aria-label", `Who asks and who is asked, in two columns. ${strongest} Up and down choose who asks.`);
  }

  function draw(seen) {
    const { state, look } = seen;
    const [width, height] = [Math.max(scroll.clientWidth, 200), scroll.clientHeight];
    const context = sharp(canvas, width, height);
    context.clearRect(0, 0, width, height);
    const [from, until] = [Math.floor(scroll.scrollTop / row), Math.ceil((scroll.scrollTop + height) / row)];
    const y = (token) => (token + 0.5) * row - scroll.scrollTop;
    const [left, right] = [0.36 * width, 0.64 * width];
    const line = (query, key, colour, weight) => {
      context.globalAlpha = Math.min(1, 0.08 + weight);
      context.strokeStyle = colour;
      context.lineWidth = 0.6 + 3.2 * weight;
      context.beginPath();
      context.moveTo(left, y(query));
      context.bezierCurveTo((left + right) / 2, y(query), (left + right) / 2, y(key), right, y(key));
      context.stroke();
    };
    const ink = getComputedStyle(canvas).color;
    const each = seenKeys(look.layer) * look.layer.width * (typeof state.head === "number" ? 1 : look.layer.heads);
    if (every.checked && (until - from) * each < MOST_WORK) {
      for (let query = from; query < Math.min(until, look.layer.nQueries); query++) {
        if (query === state.token) continue;
        const weights = headRow(look.layer, state.head, query, look.beta, look.changed);
        weights.forEach((weight, key) => weight >= FAINT && line(query, key, ink, weight / 4));
      }
    }
    for (const [head, weights] of headsShown(seen)) {
      const colour = headColour(head, look.layer.heads);
      weights.forEach((weight, key) => weight >= FAINT && line(state.token, key, colour, weight));
    }
    context.globalAlpha = 1;
    const marks = [state.token, state.key];
    names(context, look.queries, from, until, [0, left, "right"], y, ink, marks[0]);
    names(context, look.keys, from, until, [right, width, "left"], y, ink, look.map ? null : marks[1]);
  }

  function names(context, stream, from, until, [start, end, align], y, ink, marked) {
    const size = row / 1.6;
    context.textAlign = align;
    context.textBaseline = "middle";
    for (let i = Math.max(from, 0); i < Math.min(until, stream.labels.length); i++) {
      context.font = `${i === marked ? "700 " : ""}${size * 0.95}px system-ui, sans-serif`;
      context.fillStyle = ink;
      context.globalAlpha = stream.special.has(i) ? 0.72 : 1;
      const at = align === "right" ? end - 6 : start + 6;
      context.fillText(visible(stream.labels[i]), at, y(i), end - start - 8);
      if (i !== marked) continue;
      context.strokeStyle = ink;
      context.lineWidth = 2;
      context.strokeRect(start + 1, y(i) - row / 2 + 1, end - start - 2, row - 2);
    }
    context.globalAlpha = 1;
  }
  return { element, update };
}

/** The heads whose lines are drawn: the chosen one, or all that are on. @returns {[number, Float64Array][]} */
function headsShown({ state, look }) {
  if (typeof state.head === "number") return [[state.head, look.rows[state.head]]];
  return look.rows.flatMap((weights, head) => (look.off.has(head) ? [] : [[head, weights]]));
}

function readoutOf({ trace, state, look, under }) {
  const asks = queryLabel(trace, look.layer, state.token);
  if (under?.role === "key" && under.name === look.keys.name && look.painted === look.keys && look.values[under.token] !== undefined) {
    return `${asks} → ${visible(look.keys.labels[under.token])}: ${precise(look.values[under.token])}`;
  }
  let [weight, head, key] = [-1, 0, 0];
  for (const [i, weights] of headsShown({ state, look })) {
    weights.forEach((value, j) => value > weight && ([weight, head, key] = [value, i, j]));
  }
  return `${asks}: the thickest line is head ${head}'s, to ${visible(look.keys.labels[key])}, ${precise(weight)}.`;
}
