/** Long work in small pieces, so that a hand never waits for it. */

const PIECE = 9; // milliseconds
const TOLD = 100; // milliseconds between what is told

/**
 * Runs one generator at a time, a piece after the other; another one takes its place.
 * @param {() => void} told now and then, and at the end
 */
export function makeWork(told) {
  let [timer, last] = [0, 0];
  /** @param {Iterator<unknown>} steps */
  function start(steps) {
    clearTimeout(timer);
    const piece = () => {
      const until = performance.now() + PIECE;
      let done = false;
      while (!done && performance.now() < until) done = Boolean(steps.next().done);
      if (!done) timer = setTimeout(piece, 0);
      if (!done && until - last < TOLD) return;
      last = until;
      told();
    };
    timer = setTimeout(piece, 0);
  }
  return { start, stop: () => clearTimeout(timer) };
}
