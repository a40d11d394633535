/** β from 0 to ∞: from the mean of all values to one of them. */
import { attentionRow, entropy } from "../attention.js";
import { h } from "../dom.js";
import { sharp } from "../draw.js";
import { betaAt, timesBeta } from "../state.js";
import { keepDrawn, makeCard, makeReadings, makeSlider, makeWeights, written } from "./parts.js";
import { distance, mixture } from "./sums.js";

/** @param {import("./sums.js").Head} head */
export function makeBeta({ layer, values }) {
  const state = { place: 50, query: 0 };
  const slider = makeSlider("Inverse temperature β", { min: 0, max: 100, value: 50 }, (place) => change({ place }));
  const queries = { min: 0, max: layer.nQueries - 1, value: 0 };
  const query = makeSlider("Query", queries, (chosen) => change({ query: chosen }));
  const readings = makeReadings("What β does");
  const weights = makeWeights("Weights of the keys");
  const canvas = h("canvas", { role: "img" });
  const plane = h("div", { class: "pl-plane" }, canvas);
  const about =
    `One query, ${layer.nKeys} keys of width ${layer.width}, values of two numbers: each is a point. ` +
    "The line is the way of the output, from the mean (+) to the best key's value.";
  const pictures = h("div", { class: "pl-two" }, weights.element, plane);
  const element = makeCard("β from 0 to ∞", about, slider.element, query.element, readings.element, pictures);

  const betaOf = (place) => timesBeta(betaAt(place), layer.beta);
  const outAt = (place) => mixture(attentionRow(layer, 0, state.query, betaOf(place)), values);

  function change(changes) {
    Object.assign(state, changes);
    const beta = betaOf(state.place);
    const row = attentionRow(layer, 0, state.query, beta);
    const [out, mean, best] = [state.place, 0, 100].map(outAt);
    slider.tell(beta === layer.beta ? `${written(beta)} = 1/√d` : written(beta));
    query.tell(String(state.query));
    readings.update([
      ["β", beta],
      ["entropy (nats)", entropy(row)],
      ["effective number of keys", Math.exp(entropy(row))],
      ["distance to the mean", distance(out, mean)],
      ["distance to the nearest value", distance(out, best)],
      ["sum of the weights", row.reduce((a, b) => a + b, 0)],
    ]);
    weights.update(row);
    draw();
  }

  function draw() {
    const row = attentionRow(layer, 0, state.query, betaOf(state.place));
    const way = Array.from({ length: 101 }, (_, place) => outAt(place));
    drawPlane(canvas, { width: plane.clientWidth, values, row, way, out: outAt(state.place) });
    canvas.setAttribute("aria-label", `Values as points; the output at ${outAt(state.place).map(written).join(", ")}`);
  }

  keepDrawn(plane, draw);
  change({});
  return { element };
}

function drawPlane(canvas, { width, values, row, way, out }) {
  if (!width) return;
  const size = Math.min(width, 420);
  const pen = sharp(canvas, size, size);
  const { color, fontSize, fontFamily } = getComputedStyle(canvas);
  const all = values.flat();
  const [low, high] = [Math.min(...all), Math.max(...all)];
  const at = (x) => 0.08 * size + (0.84 * size * (x - low)) / (high - low);
  const place = ([x, y]) => [at(x), size - at(y)];
  pen.clearRect(0, 0, size, size);
  pen.font = `${0.85 * parseFloat(fontSize)}px ${fontFamily}`;
  pen.strokeStyle = pen.fillStyle = color;
  pen.globalAlpha = 0.25;
  pen.strokeRect(0.5, 0.5, size - 1, size - 1);
  pen.globalAlpha = 1;
  values.forEach((value, key) => {
    const [x, y] = place(value);
    disc(pen, x, y, 3 + 0.06 * size * Math.sqrt(row[key]), "#0072b2");
    pen.fillStyle = color;
    pen.fillText(`v${key}`, x + 7, y - 7);
  });
  pen.beginPath();
  way.map(place).forEach(([left, top], i) => pen[i ? "lineTo" : "moveTo"](left, top));
  pen.lineWidth = 1.5;
  pen.strokeStyle = "#d55e00";
  pen.stroke();
  const [x, y] = place(way[0]);
  pen.strokeStyle = color;
  pen.beginPath();
  pen.moveTo(x - 7, y);
  pen.lineTo(x + 7, y);
  pen.moveTo(x, y - 7);
  pen.lineTo(x, y + 7);
  pen.stroke();
  disc(pen, ...place(out), 7, "#d55e00");
  pen.strokeStyle = color;
  pen.stroke();
}

function disc(pen, x, y, radius, style) {
  pen.beginPath();
  pen.arc(x, y, radius, 0, 2 * Math.PI);
  pen.fillStyle = style;
  pen.fill();
}
