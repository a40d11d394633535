// The room Lab: every experiment, run by the server as its sliders are moved.

import { makeExperiment } from "/viewer/lab/experiment.js";
import { makeSlider } from "/viewer/lab/parts.js";
import { address, json } from "./api.js";
import { at, make } from "./dom.js";
import { change, value } from "./state.js";

const PAUSE = 150; // milliseconds that a slider must rest

let furnished = false;

export async function enter() {
  if (!furnished) {
    const room = make("div", { className: "pl-lab" }, ...(await json("/api/lab")).map(experiment));
    at("experiments").replaceChildren(make("div", { className: "pellucid" }, room));
    furnished = true;
  }
  const asked = at(`experiment-${value("experiment")}`);
  if (asked) asked.open = true;
}

export function leave() {}

function experiment(about) {
  const values = Object.fromEntries(about.parameters.map(({ name, default: number }) => [name, number]));
  const sliders = about.parameters.map((parameter) => slider(parameter, values, () => later()));
  const above = sliders.length ? [make("div", { className: "pl-live" }, ...sliders)] : [];
  const button = above.length ? "Run it" : "Run it (this one takes a while)";
  const opened = () => change({ experiment: about.name });
  const one = makeExperiment(about, { button, ask: () => run(), opened, above });
  /** @type {number | undefined} */
  let timer;
  let [running, again] = [false, false];

  function later() {
    clearTimeout(timer);
    timer = setTimeout(run, PAUSE);
  }

  // One request at a time: while it runs, only the newest wish is kept.
  async function run() {
    again = running;
    if (running) return;
    running = true;
    if (!one.reveal.hidden) one.tell("Running …");
    one.element.setAttribute("aria-busy", "true");
    try {
      one.show(await json(address(`/api/lab/${about.name}`, values)));
    } catch (error) {
      one.tell(error.message);
    }
    one.element.removeAttribute("aria-busy");
    running = false;
    if (again) run();
  }

  return one.element;
}

/** The slider of one parameter, from its lowest to its highest value. */
function slider({ name, about, default: number, low, high, step }, values, moved) {
  const bounds = { min: step > 1 ? step : low, max: high, step, value: number };
  const made = makeSlider(name.replaceAll("_", " "), bounds, (chosen) => {
    values[name] = chosen;
    made.tell(String(chosen));
    moved();
  });
  made.element.firstChild.append(make("small", {}, ` ${about}`));
  made.tell(String(number));
  return made.element;
}
