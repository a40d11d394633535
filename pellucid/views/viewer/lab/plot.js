/** The plots of panels: axes with numbers and names, then what was measured. Sizes are in CSS pixels. */
import { css, ink, short } from "../colour.js";
import { makeAxis, tickText } from "./axes.js";
import { written } from "./parts.js";

const MOST_NUMBERS = 16; // more cells than this on a side, and numbers in them are too small to read
const FEW_POINTS = 24; // where no line has more, each point is marked
const FEW_BARS = 12;
const QUIET = 0.18;

/** @param {CanvasRenderingContext2D} pen @param {import("./panels.js").Curves} panel */
export function plotCurves(pen, panel, look) {
  const x = makeAxis(panel.lines.flatMap((line) => line.x), { log: panel.log.includes("x"), room: 0.02 });
  const y = makeAxis(panel.lines.flatMap((line) => line.y), { log: panel.log.includes("y") });
  const frame = framed(pen, x, y, look, panel.x + x.note, panel.y + y.note);
  const few = Math.max(...panel.lines.map((line) => line.x.length)) <= FEW_POINTS;
  panel.lines.forEach((line, i) => {
    const { colour, mark } = look.series[i];
    pen.strokeStyle = pen.fillStyle = colour;
    // Where lines lie on each other, those below are wider.
    pen.lineWidth = line.dashed ? 1.3 : Math.max(1.4, 2.6 - 0.4 * i);
    pen.setLineDash(line.dashed ? [5, 3] : []);
    pen.beginPath();
    let down = false;
    line.x.forEach((at, j) => {
      if (line.y[j] === null) down = false;
      else {
        pen[down ? "lineTo" : "moveTo"](frame.x(at), frame.y(line.y[j]));
        down = true;
      }
    });
    pen.stroke();
    pen.setLineDash([]);
    if (line.dashed || !few) return;
    centred(pen);
    line.x.forEach((at, j) => line.y[j] !== null && pen.fillText(mark, frame.x(at), frame.y(line.y[j])));
  });
  if (look.at === null) return;
  pen.strokeStyle = look.ink;
  pen.setLineDash([2, 3]);
  stroke(pen, frame.x(look.at), frame.top, frame.x(look.at), frame.bottom);
  pen.setLineDash([]);
}

/** @param {import("./panels.js").Bars} panel */
export function plotBars(pen, panel, look) {
  const level = panel.line ? [panel.line[1]] : [];
  const values = [...panel.series.flatMap(([, each]) => each), ...level];
  const y = makeAxis(values, { log: panel.log, zero: true, room: 0.1 });
  pen.font = look.font;
  const slot = (look.width - 5 * look.size) / panel.names.length;
  const widest = Math.max(...panel.names.map((name) => pen.measureText(name).width));
  const slanted = widest > slot * 0.95;
  const below = slanted ? Math.min(0.6 * widest + look.size, 0.42 * look.height) : 1.4 * look.size;
  const frame = framed(pen, null, y, look, "", panel.y + y.note, below);
  const [each, wide] = [(frame.right - frame.left) / panel.names.length, 0.8 / panel.series.length];
  const zero = panel.log ? frame.bottom : frame.y(0);
  const room = panel.names.length * panel.series.length <= FEW_BARS;
  panel.series.forEach(([, heights], i) => {
    heights.forEach((value, j) => {
      if (value === null) return;
      const left = frame.left + (j + 0.1 + i * wide) * each;
      const [from, to] = [zero, frame.y(value)];
      pen.fillStyle = look.series[i].colour;
      pen.fillRect(left, Math.min(from, to), 0.92 * wide * each, Math.abs(from - to));
      if (!room) return;
      pen.fillStyle = look.ink;
      pen.textAlign = "center";
      pen.textBaseline = value < 0 ? "top" : "bottom";
      pen.fillText(written(Number(value.toPrecision(3))), left + 0.46 * wide * each, to + (value < 0 ? 2 : -2));
    });
  });
  pen.fillStyle = look.ink;
  const middle = (j) => frame.left + (j + 0.5) * each;
  panel.names.forEach((name, j) => named(pen, name, middle(j), frame.bottom, slanted, below, look.size));
  if (!panel.line) return;
  pen.strokeStyle = look.series.at(-1).colour;
  pen.setLineDash([5, 3]);
  pen.lineWidth = 1.4;
  stroke(pen, frame.left, frame.y(panel.line[1]), frame.right, frame.y(panel.line[1]));
  pen.setLineDash([]);
}

/** A bar's name below it, slanted where there is no room. */
function named(pen, name, x, bottom, slanted, below, size) {
  pen.save();
  pen.translate(x, bottom + 0.4 * size);
  pen.textBaseline = "top";
  pen.textAlign = slanted ? "right" : "center";
  if (slanted) pen.rotate(-Math.PI / 6);
  const most = slanted ? Math.min(below / 0.5, x / 0.87) : Infinity;
  let text = name;
  while (text.length > 4 && pen.measureText(text).width > most) text = `${text.slice(0, -2).trimEnd()}…`;
  pen.fillText(text, 0, 0);
  pen.restore();
}

/** @param {import("./panels.js").Matrix} panel */
export function plotMatrix(pen, panel, look) {
  const { size, width, height } = look;
  const [rows, columns] = [panel.values.length, panel.values[0].length];
  pen.font = look.font;
  const marks = [0, 0.5, 1].map((share) => Number((panel.low + share * (panel.high - panel.low)).toPrecision(3)));
  const beside = Math.max(...marks.map((mark) => pen.measureText(written(mark)).width)) + 2.4 * size;
  const [left, top, right, bottom] = [3.6 * size, 0.6 * size, width - beside, height - 3 * size];
  const [w, h] = [(right - left) / columns, (bottom - top) / rows];
  const span = panel.high - panel.low || 1;
  centred(pen);
  const fits = Math.max(rows, columns) <= MOST_NUMBERS && w > 2.1 * size && h > size;
  panel.values.forEach((values, i) =>
    values.forEach((value, j) => {
      const share = value === null ? 0 : (value - panel.low) / span;
      pen.fillStyle = value === null ? "#808080" : css(share);
      pen.fillRect(left + j * w, top + i * h, w + 0.5, h + 0.5);
      if (!fits) return;
      pen.fillStyle = ink(share);
      const text = value === null ? "NaN" : short(Math.abs(value) < 0.0005 * span ? 0 : value);
      pen.fillText(text, left + (j + 0.5) * w, top + (i + 0.5) * h);
    }),
  );
  pen.fillStyle = look.ink;
  const every = (count, room) => Math.max(1, Math.ceil(count / room));
  const [skipX, skipY] = [every(columns, (right - left) / (2.2 * size)), every(rows, (bottom - top) / (1.2 * size))];
  for (let j = 0; j < columns; j += skipX) pen.fillText(String(j), left + (j + 0.5) * w, bottom + 0.8 * size);
  pen.fillText(panel.columns, (left + right) / 2, bottom + 2.2 * size);
  pen.textAlign = "right";
  for (let i = 0; i < rows; i += skipY) pen.fillText(String(i), left - 0.4 * size, top + (i + 0.5) * h);
  sideways(pen, panel.rows, 0.8 * size, (top + bottom) / 2);
  colourBar(pen, marks, right + size, top, bottom, look);
}

function colourBar(pen, marks, x, top, bottom, { size, ink: text }) {
  for (let y = top; y < bottom; y++) {
    pen.fillStyle = css(1 - (y - top) / (bottom - top));
    pen.fillRect(x, y, 0.8 * size, 1.5);
  }
  pen.fillStyle = text;
  pen.textAlign = "left";
  pen.textBaseline = "middle";
  const places = [bottom - 0.4 * size, (top + bottom) / 2, top + 0.5 * size];
  marks.forEach((mark, i) => pen.fillText(written(mark), x + 1.1 * size, places[i]));
}

/** The frame with its grid, numbers and names. x null: names of their own stand below, `below` high. */
function framed(pen, x, y, { width, height, size, font, ink: text }, nameX, nameY, below = 3 * size) {
  pen.font = font;
  const wide = Math.max(...y.ticks.map((tick) => pen.measureText(tickText(tick, y)).width));
  const [left, right, top, bottom] = [wide + 0.9 * size, width - 0.8 * size, 2 * size, height - below];
  const frame = {
    left, right, top, bottom,
    x: (value) => left + x.share(value) * (right - left),
    y: (value) => bottom - y.share(value) * (bottom - top),
  };
  pen.strokeStyle = pen.fillStyle = text;
  pen.lineWidth = 1;
  pen.textAlign = "left";
  pen.textBaseline = "top";
  pen.fillText(nameY, 0, 0.2 * size, width);
  pen.textBaseline = "middle";
  pen.textAlign = "right";
  for (const tick of y.ticks) {
    const at = Math.round(frame.y(tick)) + 0.5;
    pen.globalAlpha = QUIET;
    stroke(pen, left, at, right, at);
    pen.globalAlpha = 1;
    pen.fillText(tickText(tick, y), left - 0.5 * size, at);
  }
  pen.globalAlpha = 0.6;
  stroke(pen, left, top, left, bottom);
  stroke(pen, left, bottom, right, bottom);
  pen.globalAlpha = 1;
  if (!x) return frame;
  pen.textAlign = "center";
  pen.textBaseline = "top";
  let end = -Infinity;
  for (const tick of x.ticks) {
    const label = tickText(tick, x);
    const half = pen.measureText(label).width / 2;
    if (frame.x(tick) - half < end + 0.5 * size) continue;
    pen.fillText(label, frame.x(tick), bottom + 0.4 * size);
    end = frame.x(tick) + half;
  }
  pen.fillText(nameX, (left + right) / 2, bottom + 1.8 * size, right - left);
  return frame;
}

function sideways(pen, text, x, y) {
  pen.save();
  pen.translate(x, y);
  pen.rotate(-Math.PI / 2);
  centred(pen);
  pen.fillText(text, 0, 0);
  pen.restore();
}

function centred(pen) {
  pen.textAlign = "center";
  pen.textBaseline = "middle";
}

function stroke(pen, x1, y1, x2, y2) {
  pen.beginPath();
  pen.moveTo(x1, y1);
  pen.lineTo(x2, y2);
  pen.stroke();
}
