"use strict";
// Without this script the page stays as it is: tables scroll instead of being cards on a narrow screen, and no tools appear.
// Makes the header cells of table.sortable into buttons that order its rows. Without this script tables stay as they are.
for (const table of document.querySelectorAll("table.sortable")) {
  const heads = [...table.tHead.rows[0].cells];
  const status = document.createElement("p");
  status.className = "hidden";
  status.setAttribute("role", "status");
  table.parentElement.after(status);
  heads.forEach((head, column) => {
    if (!head.dataset.sort) return;
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const numeric = head.dataset.sort === "number";
      const now = head.getAttribute("aria-sort");
      const down = now ? now === "ascending" : numeric;
      for (const other of heads) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      const key = (row) => {
        const cell = row.cells[column];
        const text = cell.dataset.value ?? cell.textContent.trim();
        return numeric ? (text === "" || isNaN(text) ? -Infinity : Number(text)) : text;
      };
      const body = table.tBodies[0];
      const rows = [...body.rows].map((row) => [key(row), row]);
      rows.sort(([a], [b]) => (down ? -1 : 1) * (numeric ? (a === b ? 0 : a < b ? -1 : 1) : a.localeCompare(b, "en")));
      body.append(...rows.map(([, row]) => row));
      status.textContent = `Sorted by ${button.textContent.trim()}, ${down ? "descending" : "ascending"}.`;
    });
  });
}
addEventListener("beforeprint", () => document.querySelectorAll("details").forEach((part) => { part.open = true; }));
// On a narrow screen the rows of a table become cards, in which each value carries its heading.
for (const table of document.querySelectorAll("table:not(.pictures)")) {
  const heads = table.tHead && table.tHead.rows.length === 1 ? [...table.tHead.rows[0].cells] : [];
  if (!heads.length || heads.some((head) => head.colSpan > 1)) continue;
  const names = heads.map((head) => head.textContent.trim());
  table.classList.add("stacks");
  table.setAttribute("role", "table");
  for (const body of table.tBodies) {
    body.setAttribute("role", "rowgroup");
    for (const row of body.rows) {
      row.setAttribute("role", "row");
      [...row.cells].forEach((cell, column) => {
        cell.setAttribute("role", cell.tagName === "TH" ? "rowheader" : "cell");
        if (names[column] && row.cells.length === names.length) cell.dataset.label = names[column];
      });
    }
  }
}
// A link into a folded part unfolds it.
const unfold = () => {
  const name = decodeURIComponent(location.hash.slice(1));
  const found = name && document.getElementById(name);
  if (!found) return;
  for (let at = found; at; at = at.parentElement) if (at.tagName === "DETAILS") at.open = true;
  const own = found.querySelector(":scope > details.part");
  if (own) own.open = true;
  found.scrollIntoView();
};
addEventListener("hashchange", unfold);
unfold();
// Attacks by upload, finding, or any word of their rows.
const rows = [...document.querySelectorAll("table.attacks tbody tr")];
if (rows.length > 5) {
  const bar = document.createElement("div");
  const words = document.createElement("input");
  const choice = document.createElement("select");
  const told = document.createElement("span");
  bar.className = "tools";
  words.type = "search";
  words.placeholder = "attack, upload, seed …";
  words.setAttribute("aria-label", "Show attacks with these words");
  choice.setAttribute("aria-label", "Show attacks with this finding");
  told.setAttribute("role", "status");
  told.className = "soft";
  for (const text of ["any finding", ...new Set(rows.map((row) => row.querySelector(".badge").textContent))]) choice.append(new Option(text));
  const apply = () => {
    const wanted = words.value.toLowerCase().split(/\s+/).filter(Boolean);
    let count = 0;
    for (const row of rows) {
      const text = row.textContent.toLowerCase();
      const shown = wanted.every((word) => text.includes(word)) && (!choice.selectedIndex || row.querySelector(".badge").textContent === choice.value);
      const section = document.getElementById(row.querySelector("a").hash.slice(1));
      row.hidden = section.hidden = !shown;
      count += shown;
    }
    told.textContent = `${count} of ${rows.length} attacks`;
  };
  words.addEventListener("input", apply);
  choice.addEventListener("change", apply);
  bar.append(words, choice, told);
  rows[0].closest("section").before(bar);
}
// A picture opens large, with what is known of it.
const large = document.createElement("dialog");
const picture = document.createElement("img");
const caption = document.createElement("p");
const close = document.createElement("button");
close.textContent = "Close";
close.addEventListener("click", () => large.close());
large.addEventListener("close", () => large.remove());
large.setAttribute("aria-label", "Picture");
large.append(picture, caption, close);
for (const image of document.querySelectorAll("table.pictures img")) {
  const open = () => {
    [picture.src, picture.alt, caption.textContent] = [image.src, image.alt, image.alt];
    document.body.append(large);
    large.showModal();
  };
  image.classList.add("opens");
  image.tabIndex = 0;
  image.setAttribute("role", "button");
  image.setAttribute("aria-label", `${image.alt}; larger`);
  image.addEventListener("click", open);
  image.addEventListener("keydown", (event) => {
    if (event.key === "Enter" || event.key === " ") { event.preventDefault(); open(); }
  });
}
