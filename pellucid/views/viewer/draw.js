/** Canvases: the picture under its colours, the matrix, small maps, the scale. Sizes are in CSS pixels. */
import { UNDER, css, glowCss, glowInk, ink, paint, paintGlow, precise, short } from "./colour.js";

export const CHANCE = "#d1495b";
const KEY = "#ff9f1c";
const LEAST_CELL = 26; // pixels that a number needs

/** A canvas made as sharp as the screen. @returns {CanvasRenderingContext2D} */
export function sharp(canvas, width, height) {
  const ratio = Math.min(window.devicePixelRatio || 1, 8192 / Math.max(width, height, 1));
  const [w, h] = [Math.max(1, Math.round(width * ratio)), Math.max(1, Math.round(height * ratio))];
  if (canvas.width !== w) canvas.width = w;
  if (canvas.height !== h) canvas.height = h;
  canvas.style.width = `${width}px`;
  canvas.style.height = `${height}px`;
  const context = canvas.getContext("2d");
  context.setTransform(w / width, 0, 0, h / height, 0, 0);
  return context;
}

/** The picture as the model saw it, in its colours and in the grey that lies under a map. */
export function prepared({ channels, height, width, pixels }) {
  const [own, grey] = [0, 1].map(() => Object.assign(document.createElement("canvas"), { width, height }));
  const [a, b] = [new ImageData(width, height), new ImageData(width, height)];
  const plane = height * width;
  for (let i = 0; i < plane; i++) {
    const at = (c) => pixels[(channels === 3 ? c : 0) * plane + i];
    const mean = UNDER.brightness * (127.5 + UNDER.contrast * ((at(0) + at(1) + at(2)) / 3 - 127.5));
    a.data.set([at(0), at(1), at(2), 255], 4 * i);
    b.data.set([mean, mean, mean, 255], 4 * i);
  }
  own.getContext("2d")?.putImageData(a, 0, 0);
  grey.getContext("2d")?.putImageData(b, 0, 0);
  return { own, grey };
}

/**
 * The picture with one colour for each patch, numbers where there is room, the query ringed and the key dashed.
 * @param {HTMLCanvasElement} canvas @param {{own: any, grey: any}} picture
 * @param {{width: number, height: number, grid: [number, number] | null, values: ArrayLike<number> | null,
 *   first: number, scale: any, cover: number, query: number | null, key: number | null, pin: boolean,
 *   deleted: (number | null)[]}} what values of all tokens; the patches begin at `first`
 */
export function drawPicture(canvas, picture, what) {
  const { width, height, grid, values, first, scale, cover, query, key, pin, deleted } = what;
  const context = sharp(canvas, width, height);
  context.imageSmoothingEnabled = width < 4 * picture.own.width;
  context.drawImage(values && cover ? picture.grey : picture.own, 0, 0, width, height);
  if (!grid) return;
  const [rows, columns] = grid;
  const [x, y] = [(column) => Math.round((column * width) / columns), (row) => Math.round((row * height) / rows)];
  const box = (i) => {
    const [row, column] = [Math.floor(i / columns), i % columns];
    return [x(column), y(row), x(column + 1) - x(column), y(row + 1) - y(row)];
  };
  if (values && cover) {
    context.imageSmoothingEnabled = false;
    context.drawImage(glow(values, rows, columns, scale, first, cover), 0, 0, width, height);
  }
  const inkOf = (value) => glowInk(scale.share(value), cover);
  if (values) drawNumbers(context, values, first, rows * columns, box, inkOf);
  for (const patch of deleted) if (patch !== null) cross(context, box(patch));
  if (key !== null) ring(context, box(key), KEY, true, Math.max(2, width / 220));
  if (query !== null) ring(context, box(query), "#fff", !pin, Math.max(2.5, width / 160));
}

/** @param {(value: number) => string} inkOf */
function drawNumbers(context, values, first, count, box, inkOf) {
  const [, , wide, high] = box(0);
  if (Math.min(wide, high) < LEAST_CELL) return;
  context.font = `${Math.round(Math.min(wide / 3.4, Math.max(22, wide / 6)))}px system-ui, sans-serif`;
  context.textAlign = "center";
  context.textBaseline = "middle";
  for (let i = 0; i < count; i++) {
    const [left, top, w, h] = box(i);
    const dark = inkOf(values[first + i]) === "#000";
    context.fillStyle = dark ? "#000" : "#fff";
    context.strokeStyle = dark ? "rgba(255, 255, 255, 0.35)" : "rgba(0, 0, 0, 0.55)";
    context.lineWidth = 2.5;
    context.strokeText(short(values[first + i]), left + w / 2, top + h / 2 + 1);
    context.fillText(short(values[first + i]), left + w / 2, top + h / 2 + 1);
  }
}

/** @param {CanvasRenderingContext2D} context @param {number[]} box @param {string} style */
function ring(context, [left, top, w, h], style, dashed, line) {
  context.setLineDash([]);
  context.lineWidth = line + 3;
  context.strokeStyle = "rgba(0, 0, 0, 0.85)";
  context.strokeRect(left, top, w, h);
  context.setLineDash(dashed ? [Math.max(4, w / 6), Math.max(3, w / 10)] : []);
  context.lineWidth = line;
  context.strokeStyle = style;
  context.strokeRect(left, top, w, h);
  context.setLineDash([]);
}

/** @param {CanvasRenderingContext2D} context @param {number[]} box */
function cross(context, [left, top, w, h]) {
  context.strokeStyle = KEY;
  context.lineWidth = 2.5;
  context.beginPath();
  context.moveTo(left + 3, top + 3);
  context.lineTo(left + w - 3, top + h - 3);
  context.moveTo(left + w - 3, top + 3);
  context.lineTo(left + 3, top + h - 3);
  context.stroke();
}

/** The glow of patches, one pixel each, to be laid over the grey picture. @returns {HTMLCanvasElement} */
function glow(values, rows, columns, scale, first, cover) {
  const image = new ImageData(columns, rows);
  paintGlow(image.data, values, first, rows * columns, scale, cover);
  const canvas = Object.assign(document.createElement("canvas"), { width: columns, height: rows });
  canvas.getContext("2d")?.putImageData(image, 0, 0);
  return canvas;
}

/** Values as an image of one pixel each, to be scaled up. @returns {HTMLCanvasElement} */
export function cells(values, rows, columns, scale, from = 0) {
  const image = new ImageData(columns, rows);
  paint(image.data, values, from, rows * columns, scale);
  const canvas = Object.assign(document.createElement("canvas"), { width: columns, height: rows });
  canvas.getContext("2d")?.putImageData(image, 0, 0);
  return canvas;
}

/** The whole map, with the query's row framed and the key's column marked; numbers where there is room. */
export function drawMatrix(canvas, { width, height, image, map, nQueries, nKeys, scale, query, key }) {
  const context = sharp(canvas, width, height);
  context.imageSmoothingEnabled = false;
  context.drawImage(image, 0, 0, width, height);
  const [w, h] = [width / nKeys, height / nQueries];
  if (map && nQueries * nKeys <= 4096) {
    const box = (i) => [(i % nKeys) * w, Math.floor(i / nKeys) * h, w, h];
    drawNumbers(context, map, 0, nQueries * nKeys, box, (value) => ink(scale.share(value)));
  }
  if (key !== null) ring(context, [key * w, 0, w, height], KEY, true, width / 250);
  if (query !== null) ring(context, [0, query * h, width, h], "#fff", false, width / 250);
}

/**
 * One row as a small map, a pixel for each token: patches as a grid, the others in a line above it; words as a strip.
 * @returns {number} its width over its height
 */
export function drawSmallMap(canvas, values, tokens, scale) {
  const n = tokens.labels.length;
  const [rows, columns] = tokens.grid ?? folded(n);
  const first = tokens.grid ? tokens.first : 0;
  const above = Math.ceil(first / columns);
  const image = new ImageData(columns, rows + above);
  paint(image.data, values, 0, first, scale);
  paint(image.data, values, first, Math.min(rows * columns, n - first), scale, above * columns);
  if (canvas.width !== columns) canvas.width = columns;
  if (canvas.height !== rows + above) canvas.height = rows + above;
  canvas.getContext("2d")?.putImageData(image, 0, 0);
  return tokens.grid ? columns / (rows + above) : 2;
}

/** Rows and columns for a line of tokens: in lines of their own, as text is, if there are many. */
function folded(n) {
  if (n <= 64) return [1, n];
  const columns = Math.ceil(Math.sqrt(2 * n));
  return [Math.ceil(n / columns), columns];
}

/** Layers as rows, heads as columns, a small map for each; the chosen one framed. @returns {number} a map's height */
export function drawAllHeads(canvas, { cell, gap, heads, layers, tokens, scaleOf, chosen, head }) {
  const small = document.createElement("canvas");
  const high = cell / drawSmallMap(small, layers[0].rows[0], tokens, scaleOf(layers[0].rows[0]));
  const context = sharp(canvas, gap + heads * (cell + gap), layers.length * (high + gap) + gap);
  context.imageSmoothingEnabled = false;
  layers.forEach(({ rows, index }, y) => {
    rows.forEach((row, x) => {
      const place = [gap + x * (cell + gap), gap + y * (high + gap), cell, high];
      drawSmallMap(small, row, tokens, scaleOf(row));
      context.drawImage(small, place[0], place[1], cell, high);
      if (index === chosen && (head === x || typeof head === "string")) ring(context, place, "#fff", false, 1.5);
    });
  });
  return high;
}

/** Layers as rows, heads as columns, every whole map small; the chosen one framed. */
export function drawGlance(canvas, { cell, gap, heads, places, found, scaleOf, chosen, head }) {
  const context = sharp(canvas, gap + heads * (cell + gap), places.length * (cell + gap) + gap);
  context.imageSmoothingEnabled = false;
  for (const each of found) {
    const place = [gap + each.head * (cell + gap), gap + places.indexOf(each.layer) * (cell + gap), cell, cell];
    context.drawImage(cells(each.small, each.rows, each.columns, scaleOf(each)), place[0], place[1], cell, cell);
    if (each.layer === chosen && (head === each.head || typeof head === "string")) ring(context, place, "#fff", false, 1.5);
  }
}

/** The scale, over a picture as it is seen over middle grey: numbers below it, 1/n above it. */
export function drawScale(canvas, { width, scale, onPicture, size, text }) {
  const bar = Math.round(size * 0.9);
  const [above, below] = [scale.mark === null ? 2 : Math.round(size * 1.25), Math.round(size * 1.6)];
  const context = sharp(canvas, width, above + bar + below);
  context.clearRect(0, 0, width, above + bar + below);
  context.font = `${Math.round(size * 0.82)}px system-ui, sans-serif`;
  const [left, right] = [context.measureText(number(scale.ticks[0])).width / 2 + 2, width - size * 1.6];
  const span = (share) => left + Math.min(Math.max(share, 0), 1) * (right - left);
  for (let x = left; x < right; x++) {
    context.fillStyle = (onPicture ? glowCss : css)((x - left) / (right - left));
    context.fillRect(x, above, Math.min(1.5, right - x), bar);
  }
  context.textAlign = "center";
  context.textBaseline = "top";
  context.fillStyle = text;
  let end = -Infinity;
  const numbers = [...new Set(scale.ticks)].map((value) => ({ x: span(scale.share(value)), label: number(value) }));
  const last = numbers[numbers.length - 1];
  for (const { x, label } of numbers) {
    const half = context.measureText(label).width / 2;
    const room = label === last.label || x + half + size < last.x - context.measureText(last.label).width / 2;
    if (x - half < end + size * 0.5 || !room) continue;
    context.fillRect(x - 0.5, above + bar, 1, size * 0.25);
    context.fillText(label, x, above + bar + size * 0.35);
    end = x + half;
  }
  if (scale.mark === null) return;
  const x = span(scale.share(scale.mark));
  context.fillStyle = CHANCE;
  context.fillRect(x - 1.25, above - 3, 2.5, bar + 6);
  context.fillStyle = text;
  const name = `1/${scale.n} = ${precise(scale.mark)}`;
  const half = context.measureText(name).width / 2;
  context.fillText(name, Math.min(Math.max(x, half), width - half), 0);
}

const number = (value) => String(Number(value.toPrecision(2)));
