"use strict";
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
