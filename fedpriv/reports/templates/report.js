"use strict";
// On paper nothing is folded; a link into a folded part unfolds it. Without this script the page stays as it is.
addEventListener("beforeprint", () => document.querySelectorAll("details").forEach((part) => { part.open = true; }));
const unfold = () => {
  const name = decodeURIComponent(location.hash.slice(1));
  const found = name && document.getElementById(name);
  if (!found) return;
  for (let at = found; at; at = at.parentElement) if (at.tagName === "DETAILS") at.open = true;
  found.scrollIntoView();
};
addEventListener("hashchange", unfold);
unfold();
