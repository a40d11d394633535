/** The viewer as a notebook's widget: anywidget calls `render` with a model, which holds the traces' bytes. */
import { mount } from "./viewer.js";

/** @param {{model: {get: (name: string) => any}, el: HTMLElement}} view @returns {() => void} called when it goes */
export function render({ model, el }) {
  const box = document.createElement("div");
  box.dataset.pellucid = model.get("name");
  el.append(box);
  return mount(box, model.get("traces"), { stateInAddress: false }).destroy;
}
