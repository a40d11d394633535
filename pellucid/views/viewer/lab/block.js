/**
 * One block from its tokens to its output: every intermediate with its equation, its shape and its numbers, computed
 * anew whenever something is moved.
 *
 * @typedef {number[][]} Matrix tokens as rows
 * @typedef {{x: Matrix, q: Matrix, k: Matrix, v: Matrix, out: Matrix, inner: Matrix, outer: Matrix}} Weights
 * @typedef {{times: number, norms: boolean, residuals: boolean, attention: boolean}} How times: of 1/√d
 * @typedef {{name: string, equation: string, shape: number[], rows: Matrix}} Step the rows of all heads side by side
 */
import { gaussian } from "../attention.js";
import { h, say, set } from "../dom.js";
import { makeCard, makeReadings, makeSegments, makeSlider, written } from "./parts.js";

const TOKENS = ["the", "cat", "sat", "on", "it"];
const [WIDTH, HEADS, HIDDEN] = [8, 2, 16];
const EPSILON = 1e-5;

/** A small block with random numbers, the same each time. @returns {Weights} */
export function exampleBlock() {
  const random = gaussian(7);
  const made = (rows, columns, size) => Array.from({ length: rows }, () => Array.from({ length: columns }, () => size * random()));
  const square = () => made(WIDTH, WIDTH, 1.3 / Math.sqrt(WIDTH));
  const x = made(TOKENS.length, WIDTH, 1);
  const [q, k, v, out] = [square(), square(), square(), square()];
  return { x, q, k, v, out, inner: made(WIDTH, HIDDEN, 1 / Math.sqrt(WIDTH)), outer: made(HIDDEN, WIDTH, 1 / Math.sqrt(HIDDEN)) };
}

/** Every intermediate, in the order in which they are computed. @param {Weights} weights @param {How} how @returns {Step[]} */
export function runBlock(weights, { times, norms, residuals, attention }) {
  const [n, d] = [weights.x.length, WIDTH / HEADS];
  const heads = Array.from({ length: HEADS }, (_, head) => head);
  const norm = (rows) => (norms ? rows.map(normalised) : rows);
  const part = (rows, head) => rows.map((row) => row.slice(head * d, (head + 1) * d));
  const beside = (each) => Array.from({ length: n }, (_, i) => each.flatMap((rows) => rows[i]));
  const x = weights.x;
  const first = norm(x);
  const [q, k, v] = [weights.q, weights.k, weights.v].map((matrix) => product(first, matrix));
  const scores = heads.map((head) => scaled(product(part(q, head), transposed(part(k, head))), times / Math.sqrt(d)));
  const maps = scores.map((rows) => rows.map(softmax));
  const mixed = beside(heads.map((head) => product(maps[head], part(v, head))));
  const output = attention ? product(mixed, weights.out) : scaled(mixed, 0);
  const middle = residuals ? added(x, output) : output;
  const second = norm(middle);
  const hidden = product(second, weights.inner).map((row) => row.map((value) => Math.max(0, value)));
  const fed = product(hidden, weights.outer);
  const step = (name, equation, shape, rows) => ({ name, equation, shape, rows });
  const [wide, map] = [[n, WIDTH], [HEADS, n, n]];
  return [
    step("tokens", "X", wide, x),
    step("normalised", norms ? "N = norm(X)" : "N = X", wide, first),
    step("queries", "Q = N·W_q", wide, q),
    step("keys", "K = N·W_k", wide, k),
    step("values", "V = N·W_v", wide, v),
    step("scores", "S_h = β·Q_h·K_hᵀ", map, beside(scores)),
    step("attention", "A_h = softmax(S_h)", map, beside(maps)),
    step("mixed heads", "Z = [A_1·V_1, A_2·V_2]", wide, mixed),
    step("output of attention", attention ? "Y = Z·W_o" : "Y = 0: switched off", wide, output),
    step("after attention", residuals ? "X' = X + Y" : "X' = Y", wide, middle),
    step("normalised again", norms ? "N' = norm(X')" : "N' = X'", wide, second),
    step("hidden", "H = max(0, N'·W_1)", [n, HIDDEN], hidden),
    step("output of the feed-forward part", "F = H·W_2", wide, fed),
    step("after the block", residuals ? "X″ = X' + F" : "X″ = F", wide, residuals ? added(middle, fed) : fed),
  ];
}

/** The card of the page. */
export function makeBlock() {
  const weights = exampleBlock();
  const how = { times: 1, norms: true, residuals: true, attention: true };
  let token = 1;
  const beta = makeSlider("β, times 1/√d", { min: 0, max: 10, step: 0.1, value: 1 }, (times) => change({ times }));
  const row = makeSlider("Token", { min: 0, max: TOKENS.length - 1, value: token }, (chosen) => ((token = chosen), change({})));
  const switches = ["norms", "residuals", "attention"].map((name) => {
    const change_ = (value) => change({ [name]: value === "on" });
    return { name, ...makeSegments(name, [["on", `${name} on`], ["off", "off"]], change_) };
  });
  const readings = makeReadings("What the block does to the token");
  const list = h("ol", { class: "pl-block" });
  const about =
    `A block of ${WIDTH} features and ${HEADS} heads on ${TOKENS.length} tokens, with random weights. Each line is an intermediate: ` +
    "a row of cells for each token, blue below zero and orange above, and the chosen token's numbers.";
  const buttons = h("div", { class: "pl-row" }, ...switches.map(({ element }) => element));
  const element = makeCard("A block, number by number", about, beta.element, row.element, buttons, readings.element, list);
  element.classList.add("pl-whole");

  function change(changes) {
    Object.assign(how, changes);
    for (const { name, mark } of switches) mark(how[name] ? "on" : "off");
    beta.tell(written(how.times));
    row.tell(TOKENS[token]);
    const steps = runBlock(weights, how);
    if (!list.children.length) list.append(...steps.map(makeLine));
    steps.forEach((step, i) => tell(list.children[i], step, token));
    const [before, after] = [weights.x[token], steps[steps.length - 1].rows[token]];
    readings.update([
      ["length of X", Math.hypot(...before)],
      ["length of X″", Math.hypot(...after)],
      ["cosine of X and X″", sum(before, after) / Math.hypot(...before) / Math.hypot(...after) || 0],
    ]);
  }
  change({});
  return { element };
}

function makeLine() {
  const canvas = h("canvas", { role: "img" });
  return h("li", {}, h("b", {}), h("span", {}), h("small", {}), canvas, h("p", { class: "pl-number" }));
}

function tell(line, { name, equation, shape, rows }, token) {
  const [title, formula, size, canvas, numbers] = line.children;
  say(title, name);
  say(formula, equation);
  say(size, `[${shape.join(", ")}]`);
  say(numbers, rows[token].map((value) => value.toFixed(2).replace("-", "−")).join("  "));
  const most = Math.max(...rows.flat().map(Math.abs), 1e-9);
  Object.assign(canvas, { width: rows[0].length, height: rows.length });
  const image = new ImageData(rows[0].length, rows.length);
  rows.flat().forEach((value, i) => {
    const [share, full] = [Math.abs(value) / most, value > 0 ? [230, 120, 20] : [40, 110, 220]];
    image.data.set([...full.map((x) => 245 + share * (x - 245)), 255], 4 * i);
  });
  canvas.getContext("2d").putImageData(image, 0, 0);
  set(canvas, "aria-label", `${name}, ${rows.length} by ${rows[0].length}, the largest ${written(most)}`);
}

const sum = (a, b) => a.reduce((total, value, i) => total + value * b[i], 0);
const transposed = (rows) => rows[0].map((_, j) => rows.map((row) => row[j]));
const scaled = (rows, by) => rows.map((row) => row.map((value) => by * value));
const added = (a, b) => a.map((row, i) => row.map((value, j) => value + b[i][j]));

function product(a, b) {
  const columns = transposed(b);
  return a.map((row) => columns.map((column) => sum(row, column)));
}

function softmax(row) {
  const most = Math.max(...row);
  const exponentials = row.map((value) => Math.exp(value - most));
  const total = exponentials.reduce((a, b) => a + b, 0);
  return exponentials.map((value) => value / total);
}

function normalised(row) {
  const mean = row.reduce((a, b) => a + b, 0) / row.length;
  const spread = row.reduce((a, value) => a + (value - mean) ** 2, 0) / row.length;
  return row.map((value) => (value - mean) / Math.sqrt(spread + EPSILON));
}
