// Where one is, kept in the address, so that it can be reloaded, bookmarked and left by the back button.
// The part after # belongs to the viewer.

/** One value of the address. */
export const value = (name) => new URLSearchParams(location.search).get(name);

/** Change values of the address; null takes one out. push: the back button undoes it. */
export function change(values, { push = false } = {}) {
  const search = new URLSearchParams(location.search);
  for (const [name, given] of Object.entries(values)) {
    if (given === null || given === undefined) search.delete(name);
    else search.set(name, given);
  }
  const text = search.toString();
  const url = location.pathname + (text ? `?${text}` : "") + location.hash;
  history[push ? "pushState" : "replaceState"](null, "", url);
}

/** Put another viewer's part into the address. */
export function changeView(hash) {
  history.replaceState(null, "", location.pathname + location.search + (hash ? `#${hash}` : ""));
}
