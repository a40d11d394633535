/**
 * Weights as colours: cividis, the same order of lightness for every kind of colour vision, on a scale with numbers.
 *
 * @typedef {{
 *   share: (value: number) => number, ticks: number[], mark: number | null, n: number, rescaled: boolean, says: string,
 * }} Scale share: the place of a value on the scale, 0 to 1; mark: the weight 1/n, of n keys all alike
 * @typedef {"absolute" | "linear" | "rescaled"} ScaleKind
 */

const ANCHORS = (
  "00224e 00285b 002e6a 053371 1a386f 273e6e 32436d 3b496c 434e6c 4b546c 535a6d 5a5f6e 61656f 686a71 6f7073 767676 " +
  "7d7c78 848279 8c8878 938e78 9b9476 a39a74 aba072 b4a76f bcae6c c4b468 cdbb63 d5c25e " +
  "dec958 e7d150 f0d846 f9e03a fee838"
)
  .split(" ")
  .map((hex) => [0, 2, 4].map((i) => parseInt(hex.slice(i, i + 2), 16)));

/** Red, green and blue of 1,024 steps, from the least to the most. */
const STEPS = 1024;
const TABLE = new Uint8ClampedArray(3 * STEPS).map((_, i) => {
  const place = (Math.floor(i / 3) / (STEPS - 1)) * (ANCHORS.length - 1);
  const low = Math.min(Math.floor(place), ANCHORS.length - 2);
  const [from, to] = [ANCHORS[low][i % 3], ANCHORS[low + 1][i % 3]];
  return from + (place - low) * (to - from);
});

/**
 * Over a picture weight is a glow: the picture recedes to a dark grey of little contrast, so that its own light and dark
 * aren't taken for weight, and the more a patch is attended to the more it is covered by the brightest colour.
 */
export const UNDER = { contrast: 0.6, brightness: 0.6 };
const GLOW = [254, 232, 56];
const MOST_COVER = 0.9;

/**
 * Values as pixels of the glow, to be laid over the grey.
 * @param {Uint8ClampedArray} pixels @param {ArrayLike<number>} values @param {number} from @param {number} count
 * @param {Scale} scale @param {number} cover 0 to 1
 */
export function paintGlow(pixels, values, from, count, scale, cover) {
  for (let i = 0; i < count; i++) {
    pixels.set([...GLOW, 255 * glowOf(scale.share(values[from + i]), cover)], 4 * i);
  }
}

/** @param {number} share @param {number} cover */
const glowOf = (share, cover) => MOST_COVER * cover * Math.min(Math.max(share, 0), 1);

/** The glow over middle grey, for a scale. @param {number} share */
export function glowCss(share, cover = 1) {
  const [grey, glow] = [127.5 * UNDER.brightness, glowOf(share, cover)];
  return `rgb(${GLOW.map((x) => Math.round(glow * x + (1 - glow) * grey)).join(", ")})`;
}

/** Black or white, whichever is read better on the glow. @param {number} share @param {number} cover */
export const glowInk = (share, cover) => (glowOf(share, cover) > 0.35 ? "#000" : "#fff");

/** @param {number} share */
const stepOf = (share) => 3 * Math.round(Math.min(Math.max(share, 0), 1) * (STEPS - 1));

/** @param {number} share 0 to 1 @returns {number[]} red, green and blue, 0 to 255 */
export const colour = (share) => [...TABLE.subarray(stepOf(share), stepOf(share) + 3)];

/**
 * Values as pixels, in their colours: red, green, blue and opacity, from pixel `start` on.
 * @param {Uint8ClampedArray} pixels @param {ArrayLike<number>} values @param {number} from @param {number} count
 * @param {Scale} scale
 */
export function paint(pixels, values, from, count, scale, start = 0) {
  for (let i = 0; i < count; i++) {
    const step = stepOf(scale.share(values[from + i]));
    const at = 4 * (start + i);
    pixels[at] = TABLE[step];
    pixels[at + 1] = TABLE[step + 1];
    pixels[at + 2] = TABLE[step + 2];
    pixels[at + 3] = 255;
  }
}

/** @type {Map<number, {css: string, ink: string}>} by step: thousands of tokens are coloured at each move of a hand */
const written = new Map();

/** The colour in words, and black or white, whichever is read better on it. @param {number} share */
function inWords(share) {
  const step = stepOf(share);
  let found = written.get(step);
  if (!found) {
    const [red, green, blue] = colour(share);
    const light = [red, green, blue].map((x) => (x / 255) ** 2.2);
    const dark = 0.2126 * light[0] + 0.7152 * light[1] + 0.0722 * light[2] > 0.18;
    written.set(step, (found = { css: `rgb(${red}, ${green}, ${blue})`, ink: dark ? "#000" : "#fff" }));
  }
  return found;
}

/** @param {number} share */
export const css = (share) => inWords(share).css;

/** Black or white, whichever is read better on this colour. @param {number} share */
export const ink = (share) => inWords(share).ink;

/**
 * The scale of a map over n tokens. Absolute ones don't depend on the map, so that colours can be compared.
 * @param {ScaleKind} kind @param {number} n @param {ArrayLike<number>} values @param {boolean} distribution
 * @param {boolean} onPicture @returns {Scale}
 */
export function makeScale(kind, n, values, distribution, onPicture = false) {
  const mark = distribution ? 1 / n : null;
  if (kind === "rescaled" || !distribution) {
    let [low, high] = [0, 0];
    for (let i = 0; i < values.length; i++) {
      low = Math.min(low, values[i]);
      high = Math.max(high, values[i]);
    }
    const span = high - low || 1;
    const says = distribution
      ? "rescaled to this map's largest value: colours can't be compared with another map's"
      : "in units of its own, rescaled to its largest value: colours can't be compared with another map's";
    const ticks = [low, low + span / 4, low + span / 2, low + (3 * span) / 4, low + span];
    return { share: (value) => (value - low) / span, ticks, mark, n, rescaled: true, says };
  }
  if (kind === "linear") {
    const says = "absolute and linear, 0 to 1, the same for every map";
    return { share: (value) => value, ticks: [0, 0.25, 0.5, 0.75, 1], mark, n, rescaled: false, says };
  }
  if (onPicture) return steps(n);
  // Even below 1/n, logarithmic above it: weights near 1/n can be told apart, and 0 to 1 is all there.
  const whole = Math.asinh(4 * n);
  const says = `absolute, 0 to 1, the same for every map over ${n} keys; logarithmic above 1/${n}`;
  const ticks = [0, 0.001, 0.01, 0.03, 0.1, 0.3, 1];
  return { share: (value) => Math.asinh(4 * n * value) / whole, ticks, mark, n, rescaled: false, says };
}

/** Steps that double, around 1/n, where the weights of many patches lie. @param {number} n @returns {Scale} */
function steps(n) {
  const ticks = [0.5, 1, 2, 4, 8, 16].map((times) => times / n);
  const says = `absolute, the same for every map over ${n} keys: each step doubles, from 1/${2 * n} or less to 16/${n} or more`;
  const share = (/** @type {number} */ value) => Math.min(Math.max((Math.log2(Math.max(value * n, 1e-9)) + 1) / 5, 0), 1);
  return { share, ticks, mark: 1 / n, n, rescaled: false, says };
}

/** A weight in a few letters, for a cell. @param {number} value */
export function short(value) {
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size < 0.00005) return "≈0";
  if (size >= 9.95) return value.toPrecision(2).replace("e+", "e");
  const digits = size < 0.00095 ? 4 : size < 0.0095 ? 3 : size < 0.995 ? 2 : 1;
  return value.toFixed(digits).replace(/^(-?)0\./, "$1.").replace(/\.0$/, "").replace("-", "−");
}

/** A weight in three digits. @param {number} value */
export function precise(value) {
  if (value === 0) return "0";
  return (Math.abs(value) < 0.0001 ? value.toExponential(1) : value.toPrecision(3)).replaceAll("-", "−");
}
