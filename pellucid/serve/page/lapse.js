// The same picture through the checkpoints of a run, side by side in the viewer.

import { mount } from "/viewer/viewer.js";
import { address, ask, json } from "./api.js";
import { make } from "./dom.js";
import { sampleButtons } from "./pictures.js";

/** Fill the place with a choice of pictures and, when one is chosen, with what each checkpoint makes of it. */
export async function timeLapse(run, checkpoints, place) {
  const samples = await json("/api/samples");
  const said = make("p", { className: "caption", role: "status" }, "What each checkpoint makes of it is shown side by side.");
  const stage = make("div", { className: "viewer" });
  let viewer = null;

  async function show(blob) {
    said.textContent = "Looking …";
    try {
      const frames = [];
      for (const { name } of checkpoints) {
        const path = address(`/api/runs/${encodeURIComponent(run)}/trace`, { checkpoint: name });
        frames.push(await (await ask(path, { method: "POST", body: blob })).arrayBuffer());
      }
      viewer?.destroy();
      viewer = mount(stage, frames, { stateInAddress: false });
      said.textContent = `From left to right: ${checkpoints.map(({ name, step }) => `step ${step.toLocaleString("en")} (${name})`).join(", ")}.`;
    } catch (error) {
      said.textContent = error.message;
    }
  }

  const choices = sampleButtons(samples, async (chosen) => {
    for (const button of choices) button.setAttribute("aria-pressed", button.dataset.name === chosen);
    show(await (await ask(`/api/samples/${chosen}`)).blob());
  });
  const file = make("input", { type: "file", id: "lapse-file", accept: "image/*", className: "unseen" });
  file.addEventListener("change", () => file.files.length && show(file.files[0]));
  place.replaceChildren(
    make("h2", {}, "One picture through training"),
    make("div", { className: "samples few", role: "group", "aria-label": "Pictures for the time-lapse" }, ...choices),
    make("div", { className: "choose" }, file, make("label", { className: "button", for: file.id }, "Choose a picture")),
    said,
    stage,
  );
  return { destroy: () => viewer?.destroy() };
}
