/** One key, moved by noise and made longer: what is measured, and what the first order says. */
import { changedKeys } from "../attention.js";
import { h } from "../dom.js";
import { makeCard, makeReadings, makeSlider, makeWeights, written } from "./parts.js";
import { distance, keyMoved } from "./sums.js";

/** @param {import("./sums.js").Head} head */
export function makeKey(head) {
  const { layer } = head;
  const state = { key: 2, query: 0, length: 1.5, noise: 0 };
  const lengths = { min: 0, max: 3, step: 0.05, value: state.length };
  const sliders = {
    key: makeSlider("Key", { min: 0, max: layer.nKeys - 1, value: state.key }, (key) => change({ key })),
    query: makeSlider("Asked by query", { min: 0, max: layer.nQueries - 1, value: 0 }, (query) => change({ query })),
    length: makeSlider("Elongation α", lengths, (length) => change({ length })),
    noise: makeSlider("Noise σ", { min: 0, max: 1, step: 0.01, value: 0 }, (noise) => change({ noise })),
  };
  const says = h("p", { role: "status" });
  const readings = makeReadings("What the key does");
  const weights = makeWeights("Weights of the keys, and before as lines");
  const about =
    "k becomes α·(k + σ·r·ε), with r the key's root mean square and ε normal. To the first order, with s = β·q·k: " +
    "Δp = p·(1 − p)·Δs and Δoutput = p·(v − output)·Δs.";
  const ranges = Object.values(sliders).map((slider) => slider.element);
  const element = makeCard("A key, moved and made longer", about, ...ranges, says, readings.element, weights.element);

  function change(changes) {
    Object.assign(state, changes);
    const { key, query, length, noise } = state;
    const changed = changedKeys(layer, new Map([[key, { length, noise, deleted: false }]]));
    const moved = keyMoved(head, query, key, changed);
    for (const name of ["key", "query"]) sliders[name].tell(String(state[name]));
    sliders.length.tell(`${length}×`);
    sliders.noise.tell(String(noise));
    const none = moved.out.map(() => 0);
    readings.update([
      ["score β·q·k before", moved.score[0]],
      ["score after", moved.score[1]],
      ["weight before", moved.rows[0][key]],
      ["weight after", moved.rows[1][key]],
      ["change of the weight, measured", moved.weight],
      ["change of the weight, first order", moved.weightFirst],
      ["change of the output, measured", distance(moved.out, none)],
      ["change of the output, first order", distance(moved.outFirst, none)],
      ["missed by the first order", distance(moved.out, moved.outFirst)],
    ]);
    const sign = moved.score[0] > 0 ? "positive: longer, it draws more" : "negative: longer, it draws less";
    says.textContent = `Key ${key}'s score with query ${query} is ${written(moved.score[0])}, ${sign}.`;
    weights.update(moved.rows[1], moved.rows[0], key);
  }

  change({});
  return { element };
}
