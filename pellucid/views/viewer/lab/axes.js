/**
 * Axes: from numbers to places, evenly or by powers of ten, with round numbers along them.
 *
 * @typedef {{low: number, high: number, powers: boolean, floor: number, note: string, ticks: number[],
 *   share: (value: number) => number}} Axis share: 0 at the low end, 1 at the high one; powers: whether the ticks are
 *   powers of ten; floor: where zero is drawn
 */
import { written } from "./parts.js";

/**
 * @param {(number | null)[]} values @param {{log?: boolean, zero?: boolean, room?: number}} how zero: bars begin there;
 *   room: a share, above the highest value
 */
export function makeAxis(values, { log = false, zero = false, room = 0.05 } = {}) {
  const known = values.filter((value) => Number.isFinite(value));
  return log ? logarithmic(known, zero, room) : even(known, zero, room);
}

function even(values, zero, room) {
  const all = zero ? [0, ...values] : values;
  let [low, high] = [Math.min(...all), Math.max(...all)];
  if (!(high > low)) [low, high] = Number.isFinite(low) ? [low - 0.5, low + 0.5] : [0, 1];
  const span = high - low;
  high += high === 0 && zero ? 0 : room * span;
  low -= zero && low >= 0 ? 0 : 0.05 * span;
  const share = (value) => (value - low) / (high - low);
  return { low, high, powers: false, floor: -Infinity, note: "", ticks: round(low, high, 5), share };
}

/** zero: a bar of the least value has a height too. */
function logarithmic(values, zero, room) {
  const positive = values.filter((value) => value > 0);
  const least = positive.length ? Math.min(...positive) : 1;
  const zeros = positive.length < values.length;
  const place = Math.floor(Math.log10(least)) - 1;
  const floor = zeros ? 10 ** place : least;
  const note = zeros ? ` (0 drawn at ${written(floor)})` : "";
  let [low, high] = [Math.log10(floor), Math.log10(Math.max(floor, ...positive))];
  if (high - low < 0.1) [low, high] = [low - 0.1, high + 0.1];
  if (zero && !zeros) low -= 0.5;
  [low, high] = [low - (zero ? 0 : 0.04 * (high - low)), high + room * (high - low)];
  const share = (value) => (Math.log10(value > 0 ? value : floor) - low) / (high - low);
  const step = Math.max(1, Math.ceil((high - low) / 6));
  const between = high - low < 2 ? [1, 2, 5] : [1];
  const ticks = [];
  for (let power = Math.floor(low / step) * step; power <= high + 1e-9; power += step) {
    const near = between.map((times) => Math.log10(times) + power).filter((at) => at > low - 1e-9 && at < high + 1e-9);
    ticks.push(...near.map((at) => Number((10 ** at).toPrecision(6))));
  }
  return { low, high, powers: between.length === 1, floor, note, ticks, share };
}

/** Round numbers from low to high, about `count` of them. */
function round(low, high, count) {
  const rough = (high - low) / count;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((times) => times * power).find((each) => each >= rough * 0.999) ?? 10 * power;
  const [first, last] = [Math.ceil(low / step - 1e-9), Math.floor(high / step + 1e-9)];
  return Array.from({ length: last - first + 1 }, (_, i) => Number(((first + i) * step).toPrecision(12)));
}

const POWERS = "⁰¹²³⁴⁵⁶⁷⁸⁹";

/** A tick's number: powers of ten as such where the axis is made of them. @param {Axis} axis */
export function tickText(value, axis) {
  const power = Math.round(Math.log10(value));
  if (!axis.powers || Math.abs(power) < 3 ) return written(value);
  return `10${power < 0 ? "⁻" : ""}${[...String(Math.abs(power))].map((digit) => POWERS[Number(digit)]).join("")}`;
}
