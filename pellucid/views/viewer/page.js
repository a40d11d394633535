/** A page that carries its traces: each in a data block of its own, as base64. */
import { mount } from "./viewer.js";

/** @param {Document} page */
export function showPage(page) {
  const blocks = [...page.querySelectorAll('script[type="application/x-pellucid"]')];
  const traces = blocks.map((block) => bytesOf(block.textContent));
  // A frame inside another page has no address of its own.
  return mount(/** @type {HTMLElement} */ (page.querySelector("main")), traces, { stateInAddress: window === window.parent });
}

function bytesOf(text) {
  const decode = /** @type {any} */ (Uint8Array).fromBase64; // not in every browser yet
  if (decode) return decode.call(Uint8Array, text.trim());
  const binary = atob(text.trim());
  const bytes = new Uint8Array(binary.length);
  for (let i = 0; i < bytes.length; i++) bytes[i] = binary.charCodeAt(i);
  return bytes;
}
