// The page: three rooms, one of them open.

import { at, trouble } from "./dom.js";
import { change, value } from "./state.js";
import * as lab from "./lab.js";
import * as look from "./look.js";
import * as runs from "./runs.js";

const ROOMS = { look, runs, lab };
/** @type {NodeListOf<HTMLAnchorElement>} */
const links = document.querySelectorAll("nav a");
let open = null;

async function enter() {
  const asked = value("room") ?? "";
  const name = asked in ROOMS ? asked : "look";
  if (open && open !== name) ROOMS[open].leave();
  open = name;
  for (const room of Object.keys(ROOMS)) at(room).hidden = room !== name;
  for (const link of links) {
    if (link.dataset.room === name) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  document.title = `${name[0].toUpperCase()}${name.slice(1)} · pellucid`;
  trouble(null);
  try {
    await ROOMS[name].enter();
  } catch (error) {
    trouble(error);
  }
}

for (const link of links) {
  link.addEventListener("click", (event) => {
    if (event.metaKey || event.ctrlKey || event.shiftKey || event.button) return;
    event.preventDefault();
    if (link.dataset.room !== open) {
      history.pushState(null, "", "/");
      change({ room: link.dataset.room });
      enter();
    }
  });
}
addEventListener("popstate", () => enter());
enter();
