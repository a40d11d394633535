/** Sinusoidal positions: a step is a rotation, wherever one stands. */
import { h } from "../dom.js";
import { sharp } from "../draw.js";
import { makePanel } from "./panels.js";
import { figure, keepDrawn, makeCard, makeReadings, makeSlider, written } from "./parts.js";
import { distance, dot, encoding, frequencies, rotation, rotationError, turned } from "./sums.js";

/** @param {import("./sums.js").Positions} positions */
export function makeOffset(positions) {
  const state = { offset: 3, position: 10, pair: 2 };
  const omega = frequencies(positions);
  const last = positions.count - 1;
  const pairs = { min: 0, max: omega.length - 1, value: state.pair };
  const sliders = {
    offset: makeSlider("Offset k", { min: 0, max: last, value: state.offset }, (offset) => change({ offset })),
    position: makeSlider("Position t", { min: 0, max: last, value: state.position }, (at) => change({ position: at })),
    pair: makeSlider("Pair of features i", pairs, (pair) => change({ pair })),
  };
  const readings = makeReadings("What the offset does");
  const matrix = h("table", { class: "pl-matrix", "aria-label": "Rotation of this pair" });
  const canvas = h("canvas", { role: "img" });
  const circle = h("div", { class: "pl-plane" }, canvas);
  const offsets = Array.from({ length: positions.count }, (_, k) => k);
  const dots = offsets.map((k) => dot(encoding(0, positions), encoding(k, positions)));
  const curve = makePanel({
    kind: "curves",
    title: "dot product over the offset",
    x: "offset k",
    y: "PE(t)·PE(t + k)",
    lines: [{ name: "", x: offsets, y: dots, dashed: false }],
    log: "",
  });
  const about =
    `PE(t) has ${omega.length} pairs (sin ωᵢt, cos ωᵢt), ωᵢ = ${written(positions.base)}^(−2i/${positions.width}). ` +
    "One rotation by ωᵢk takes a pair at any position t to the pair at t + k.";
  const ranges = Object.values(sliders).map((slider) => slider.element);
  const turn = h("div", { class: "pl-turn" }, h("span", {}, "PE(t + k) ="), matrix, h("span", {}, "· PE(t)"));
  const pictures = h("div", { class: "pl-two" }, curve.element, circle);
  const element = makeCard("Offsets are rotations", about, ...ranges, turn, readings.element, pictures);

  function change(changes) {
    Object.assign(state, changes);
    const { offset, position, pair } = state;
    const turning = rotation(offset, pair, positions);
    const [here, there] = [position, position + offset].map((at) => encoding(at, positions));
    const [from, to] = [here, there].map((all) => all.slice(2 * pair, 2 * pair + 2));
    for (const [name, slider] of Object.entries(sliders)) slider.tell(String(state[name]));
    const cell = (x) => h("td", {}, figure(x, written(Number(x.toFixed(4)))));
    matrix.replaceChildren(...turning.map((row) => h("tr", {}, ...row.map(cell))));
    readings.update([
      ["dot product PE(t)·PE(t + k)", dot(here, there)],
      ["by the formula, Σ cos ωᵢk", omega.reduce((sum, w) => sum + Math.cos(w * offset), 0)],
      ["angle ωᵢk, in turns", (omega[pair] * offset) / (2 * Math.PI)],
      ["wavelength 2π/ωᵢ", (2 * Math.PI) / omega[pair]],
      ["error of this rotation", distance(turned(turning, from), to)],
      ["largest error, all pairs and positions", rotationError(offset, positions)],
    ]);
    curve.mark(offset);
    draw();
  }

  function draw() {
    const pairAt = (at) => encoding(at, positions).slice(2 * state.pair, 2 * state.pair + 2);
    drawCircle(canvas, circle.clientWidth, pairAt(state.position), pairAt(state.position + state.offset), state);
    canvas.setAttribute("aria-label", `The pair at position ${state.position}, and turned by offset ${state.offset}`);
  }

  keepDrawn(circle, draw);
  change({});
  return { element };
}

/** Two points of the unit circle: sin upwards, cos to the right. */
function drawCircle(canvas, width, from, to, { position, offset }) {
  if (!width) return;
  const size = Math.min(width, 300);
  const pen = sharp(canvas, size, size);
  const { color, fontSize, fontFamily } = getComputedStyle(canvas);
  const [middle, radius] = [size / 2, 0.34 * size];
  pen.clearRect(0, 0, size, size);
  pen.font = `${0.85 * parseFloat(fontSize)}px ${fontFamily}`;
  pen.textAlign = "center";
  pen.textBaseline = "middle";
  pen.strokeStyle = color;
  pen.globalAlpha = 0.35;
  pen.beginPath();
  pen.arc(middle, middle, radius, 0, 2 * Math.PI);
  pen.stroke();
  pen.globalAlpha = 1;
  const hands = [[from, "#0072b2", `t = ${position}`], [to, "#d55e00", `t + k = ${position + offset}`]];
  for (const [[sin, cos], style, name] of hands) {
    const [x, y] = [middle + radius * cos, middle - radius * sin];
    pen.strokeStyle = pen.fillStyle = style;
    pen.lineWidth = 2;
    pen.beginPath();
    pen.moveTo(middle, middle);
    pen.lineTo(x, y);
    pen.stroke();
    pen.beginPath();
    pen.arc(x, y, 5, 0, 2 * Math.PI);
    pen.fill();
    pen.fillStyle = color;
    const half = pen.measureText(name).width / 2;
    const left = Math.min(Math.max(middle + 1.22 * radius * cos, half), size - half);
    pen.fillText(name, left, middle - 1.3 * radius * sin);
  }
}
