// Pictures to choose from: samples, and one's own, which are kept in this browser alone so that a reload finds them.

import { make } from "./dom.js";

const KEPT = 12;

/** A button for each sample; choose is told its name. */
export function sampleButtons(samples, choose) {
  return samples.map(({ name, title, kind }) => {
    const label = `${kind}: ${title}`;
    const picture = make("img", { src: `/api/samples/${name}`, alt: "", loading: "lazy" });
    const button = make("button", { type: "button", title: label, "aria-label": label, "data-name": name }, picture);
    button.addEventListener("click", () => choose(name));
    return button;
  });
}

/** Keep a picture; the name it can be found under. */
export async function keep(file) {
  const name = Array.from(crypto.getRandomValues(new Uint8Array(8)), (byte) => byte.toString(16).padStart(2, "0")).join("");
  const store = await opened("readwrite");
  await done(store.put({ name, file, at: Date.now() }));
  const all = await done(store.getAll());
  all.sort((one, other) => other.at - one.at);
  for (const old of all.slice(KEPT)) store.delete(old.name);
  return name;
}

/** A picture that was kept; null if it wasn't, or not here. */
export async function find(name) {
  const store = await opened("readonly");
  return (await done(store.get(name)))?.file ?? null;
}

async function opened(mode) {
  const request = indexedDB.open("pellucid", 1);
  request.onupgradeneeded = () => request.result.createObjectStore("pictures", { keyPath: "name" });
  const base = await done(request);
  return base.transaction("pictures", mode).objectStore("pictures");
}

function done(request) {
  return new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(new Error("This browser keeps no pictures; a reload will not find this one."));
  });
}
