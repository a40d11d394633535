// What the theme leaves without a name, or names twice, for those who hear a page instead of seeing it.
document.querySelector(".md-search")?.setAttribute("aria-label", "Search");
for (const inner of document.querySelectorAll(".md-nav .md-nav[aria-labelledby]")) {
  inner.removeAttribute("aria-labelledby"); // a part of what lies around it, no landmark of its own
  inner.removeAttribute("aria-expanded");
  inner.setAttribute("role", "none");
}
function reachTables() { // one that scrolls can be scrolled by keys
  for (const each of document.querySelectorAll(".md-typeset__scrollwrap")) {
    if (each.scrollWidth > each.clientWidth) each.tabIndex = 0;
    else each.removeAttribute("tabindex");
  }
}
addEventListener("load", reachTables);
addEventListener("resize", reachTables);
