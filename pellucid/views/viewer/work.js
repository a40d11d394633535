/** Long work in small pieces, so that a hand never waits for it. */

const PIECE = 9; // milliseconds

/**
 * Runs one generator at a time, a piece after the other; another one takes its place.
 * @param {() => void} told after each piece
 */
export function makeWork(told) {
  let timer = 0;
  /** @param {Iterator<unknown>} steps */
  function start(steps) {
    clearTimeout(timer);
    const piece = () => {
      const until = performance.now() + PIECE;
      let done = false;
      while (!done && performance.now() < until) done = Boolean(steps.next().done);
      if (!done) timer = setTimeout(piece, 0);
      told();
    };
    timer = setTimeout(piece, 0);
  }
  return { start, stop: () => clearTimeout(timer) };
}
