/**
 * An element: attributes as they are written in HTML, listeners as functions, children as elements or text.
 * @param {string} tag @param {Record<string, any>} attributes @param {...(Node | string | null | false)} children
 * @returns {any}
 */
export function h(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") element.addEventListener(name, value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) element.setAttribute(name, String(value));
  }
  for (const child of children) if (child !== null && child !== false) element.append(child);
  return element;
}

/**
 * Set an attribute only when it changes: a listener of the page, as a screen reader is, hears of changes alone.
 * @param {Element} element @param {string} name @param {unknown} value
 */
export function set(element, name, value) {
  if (element.getAttribute(name) !== String(value)) element.setAttribute(name, String(value));
}

/** Set text only when it changes. @param {Node | null} element @param {string} text */
export function say(element, text) {
  if (element && element.textContent !== text) element.textContent = text;
}
