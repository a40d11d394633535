// Curves on a canvas: axes with numbers, a legend with the values under the pointer, the same by keyboard.

import { make } from "./dom.js";

/**
 * A figure with a chart. series: [{name, colour, dashed, xs, ys}], colour a variable of the style sheet.
 * format: how a value is written. range: [low, high] of the y-axis, null where the values decide.
 * @param {{title: string, xLabel: string, format: (value: number) => string, range?: (number | null)[]}} what
 */
export function chart({ title, xLabel, format, range = [null, null] }) {
  const canvas = make("canvas", { tabIndex: 0, role: "img" });
  const readout = make("div", { className: "readout", role: "status" });
  const element = make("figure", { className: "chart" }, make("figcaption", {}, title), canvas, readout);
  /** @type {{series: any[], at: number | null, frame?: any}} */
  const view = { series: [], at: null };

  function draw() {
    const box = canvas.getBoundingClientRect();
    if (!box.width) return;
    const scale = devicePixelRatio || 1;
    canvas.width = Math.round(box.width * scale);
    canvas.height = Math.round(box.height * scale);
    const pen = canvas.getContext("2d");
    pen.scale(scale, scale);
    const style = getComputedStyle(canvas);
    const colour = (name) => style.getPropertyValue(name);
    const size = parseFloat(style.fontSize) * 0.78;
    pen.font = `${size}px ${style.fontFamily}`;
    const frame = framed(pen, box, view.series, range, format, size);
    axes(pen, frame, xLabel, format, size, colour);
    for (const each of view.series) line(pen, frame, each, colour(each.colour), size);
    view.frame = frame;
    if (view.at !== null) cross(pen, frame, view, colour);
    tell(readout, view, xLabel, format);
    canvas.setAttribute("aria-label", summary(title, view.series, format));
  }

  const move = (x) => {
    view.at = x;
    requestAnimationFrame(draw);
  };
  canvas.addEventListener("pointermove", (event) => {
    if (view.frame) move(view.frame.toX(event.clientX - canvas.getBoundingClientRect().left));
  });
  canvas.addEventListener("pointerleave", () => move(null));
  canvas.addEventListener("blur", () => move(null));
  canvas.addEventListener("keydown", (event) => {
    const xs = view.series.reduce((longest, each) => (each.xs.length > longest.length ? each.xs : longest), []);
    const step = { ArrowLeft: -1, ArrowRight: 1, Home: -Infinity, End: Infinity }[event.key];
    if (!step || !xs.length) return;
    event.preventDefault();
    const stride = Math.max(1, Math.round(xs.length / 100));
    const now = view.at === null ? (step > 0 ? -stride : xs.length - 1 + stride) : nearest(xs, view.at);
    move(xs[Math.min(xs.length - 1, Math.max(0, now + step * stride))]);
  });
  const watched = new ResizeObserver(() => draw());
  watched.observe(canvas);
  const dark = matchMedia("(prefers-color-scheme: dark)");
  dark.addEventListener("change", draw);

  return {
    element,
    update(series) {
      view.series = series;
      draw();
    },
    destroy() {
      watched.disconnect();
      dark.removeEventListener("change", draw);
    },
  };
}

/** Round numbers between low and high, about `count` of them. */
export function ticks(low, high, count) {
  const rough = (high - low) / Math.max(1, count);
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((times) => times * power).find((each) => each >= rough * 0.999) ?? 10 * power;
  const found = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + 1e-9 * step; i++) found.push(Number((i * step).toPrecision(12)));
  return found;
}

/** Index of the value nearest to x in ascending xs. */
export function nearest(xs, x) {
  let [low, high] = [0, xs.length - 1];
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (xs[middle] < x) low = middle;
    else high = middle;
  }
  return Math.abs(xs[low] - x) <= Math.abs(xs[high] - x) ? low : high;
}

function framed(pen, box, series, range, format, size) {
  const xs = series.flatMap((each) => (each.xs.length ? [each.xs[0], each.xs[each.xs.length - 1]] : []));
  const ys = series.flatMap((each) => each.ys).filter((y) => y !== null);
  let low = range[0] ?? ys.reduce((a, b) => Math.min(a, b), Infinity);
  let high = range[1] ?? ys.reduce((a, b) => Math.max(a, b), -Infinity) * 1.04;
  if (!(high > low)) [low, high] = [Math.min(low, 0) || 0, Number.isFinite(high) && high > 0 ? high : 1];
  const first = 0;
  const last = Math.max(...xs, first + 1e-6);
  const wide = Math.max(...ticks(low, high, 4).map((y) => pen.measureText(format(y)).width));
  const [left, right, top, bottom] = [wide + 0.9 * size, box.width - 0.9 * size, 0.8 * size, box.height - 3 * size];
  return {
    left, right, top, bottom, low, high, first, last,
    x: (value) => left + ((value - first) / (last - first)) * (right - left),
    y: (value) => bottom - ((value - low) / (high - low)) * (bottom - top),
    toX: (pixel) => first + ((pixel - left) / (right - left)) * (last - first),
  };
}

function axes(pen, frame, xLabel, format, size, colour) {
  pen.strokeStyle = colour("--line");
  pen.fillStyle = colour("--soft");
  pen.lineWidth = 1;
  pen.textBaseline = "middle";
  pen.textAlign = "right";
  for (const y of ticks(frame.low, frame.high, 4)) {
    pen.beginPath();
    pen.moveTo(frame.left, Math.round(frame.y(y)) + 0.5);
    pen.lineTo(frame.right, Math.round(frame.y(y)) + 0.5);
    pen.stroke();
    pen.fillText(format(y).replace(/[.]0 %$/, " %"), frame.left - 0.5 * size, frame.y(y));
  }
  pen.textBaseline = "top";
  pen.textAlign = "center";
  for (const x of ticks(frame.first, frame.last, Math.max(2, Math.floor((frame.right - frame.left) / (6 * size))))) {
    pen.fillText(String(x), frame.x(x), frame.bottom + 0.4 * size);
  }
  pen.fillText(xLabel, (frame.left + frame.right) / 2, frame.bottom + 1.75 * size);
}

function line(pen, frame, { xs, ys, dashed }, colour, size) {
  pen.save();
  pen.beginPath();
  pen.rect(frame.left, frame.top - size, frame.right - frame.left + size, frame.bottom - frame.top + size);
  pen.clip();
  pen.strokeStyle = pen.fillStyle = colour;
  pen.lineWidth = dashed ? 1.3 : 2.2;
  pen.lineJoin = "round";
  pen.setLineDash(dashed ? [5, 3] : []);
  pen.beginPath();
  let down = false;
  xs.forEach((x, i) => {
    if (ys[i] === null) down = false;
    else if (down) pen.lineTo(frame.x(x), frame.y(ys[i]));
    else {
      pen.moveTo(frame.x(x), frame.y(ys[i]));
      down = true;
    }
  });
  pen.stroke();
  if (xs.length <= 12 && !dashed) xs.forEach((x, i) => ys[i] !== null && dot(pen, frame.x(x), frame.y(ys[i]), 3));
  pen.restore();
}

function cross(pen, frame, view, colour) {
  const x = Math.min(frame.last, Math.max(frame.first, view.at));
  pen.strokeStyle = colour("--soft");
  pen.setLineDash([2, 3]);
  pen.beginPath();
  pen.moveTo(frame.x(x), frame.top);
  pen.lineTo(frame.x(x), frame.bottom);
  pen.stroke();
  pen.setLineDash([]);
  for (const { xs, ys, colour: name } of view.series) {
    if (!xs.length) continue;
    const i = nearest(xs, x);
    pen.fillStyle = colour(name);
    if (ys[i] !== null) dot(pen, frame.x(xs[i]), frame.y(ys[i]), 4);
  }
}

function dot(pen, x, y, radius) {
  pen.beginPath();
  pen.arc(x, y, radius, 0, 2 * Math.PI);
  pen.fill();
}

/** The legend: the values under the crosshair or, without one, the last ones. */
function tell(readout, view, xLabel, format) {
  const parts = view.series
    .filter(({ xs }) => xs.length)
    .map(({ name, colour, dashed, xs, ys }) => {
      const i = view.at === null ? xs.length - 1 : nearest(xs, view.at);
      const mark = make("i", { className: dashed ? "dashed" : "" });
      mark.style.borderTopColor = `var(${colour})`;
      const place = view.at === null ? "" : ` at ${xLabel} ${Number(xs[i].toFixed(2))}`;
      return make("span", {}, mark, `${name} ${ys[i] === null ? "–" : format(ys[i])}${place}`);
    });
  readout.replaceChildren(...(parts.length ? parts : [make("span", {}, "Nothing logged yet.")]));
}

function summary(title, series, format) {
  const told = series
    .filter(({ xs }) => xs.length)
    .map(({ name, ys }) => {
      const known = ys.filter((y) => y !== null);
      return known.length ? `${name} from ${format(known[0])} to ${format(known[known.length - 1])}` : `${name}: none`;
    });
  return `${title}: ${told.join("; ") || "nothing yet"}. The arrow keys read single values.`;
}
