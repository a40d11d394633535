/** Half-precision numbers, widened. */

/** @type {Float32Array | null} every half-precision number, by its bits */
let halves = null;

/** @param {Uint16Array} bits @param {number} scale @returns {Float32Array} */
export function widened(bits, scale) {
  halves ??= Float32Array.from({ length: 65536 }, (_, i) => half(i));
  const wide = new Float32Array(bits.length);
  for (let i = 0; i < bits.length; i++) wide[i] = halves[bits[i]] * scale;
  return wide;
}

/** @param {number} bits of a half-precision number @returns {number} */
export function half(bits) {
  const sign = bits & 0x8000 ? -1 : 1;
  const exponent = (bits >> 10) & 31;
  const fraction = bits & 1023;
  if (exponent === 0) return sign * fraction * 2 ** -24;
  if (exponent === 31) return fraction ? NaN : sign * Infinity;
  return sign * (1 + fraction / 1024) * 2 ** (exponent - 15);
}
