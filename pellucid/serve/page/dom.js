// Making elements. Text is only ever set as text.

/** An element with properties (aria-… and data-… as attributes) and children, elements or text. */
export function make(name, properties = {}, ...children) {
  const element = document.createElement(name);
  for (const [key, given] of Object.entries(properties)) {
    if (given === null || given === undefined) continue;
    if (/^(aria|data)-|^(role|for|colspan)$/.test(key)) element.setAttribute(key, given);
    else element[key] = given;
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

/** @returns {any} the element of that id */
export const at = (id) => document.getElementById(id);

/** 0.9126 as 91.3 %; what would read as nothing or as all says so. */
export function percent(share) {
  if (share === null || share === undefined || Number.isNaN(share)) return "–";
  if (share > 0 && share < 0.0005) return "< 0.1 %";
  if (share < 1 && share > 0.9995) return "> 99.9 %";
  return `${(100 * share).toFixed(1)} %`;
}

/** The sentence at the top of the page; none without one. */
export function trouble(error) {
  const place = at("trouble");
  place.textContent = error ? error.message : "";
  place.hidden = !error;
  if (error) place.scrollIntoView({ block: "nearest" });
}
