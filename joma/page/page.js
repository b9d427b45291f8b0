// Tables sort by the header that is clicked, or reached by the keyboard; numbers sort as numbers.
function key(cell) {
  const raw = cell.dataset.value ?? cell.textContent.trim();
  const value = Number(raw);
  return raw === "" ? null : Number.isNaN(value) ? raw : value;
}
function compare(a, b) {
  if (a === null || b === null) return (a === null) - (b === null);
  return typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b), undefined, { numeric: true });
}
function sortBy(header) {
  const table = header.closest("table");
  const column = [...header.parentNode.children].indexOf(header);
  const direction = header.getAttribute("aria-sort") === "ascending" ? "descending" : "ascending";
  for (const other of header.parentNode.children) other.removeAttribute("aria-sort");
  header.setAttribute("aria-sort", direction);
  const sign = direction === "ascending" ? 1 : -1;
  const rows = [...table.tBodies[0].rows].sort((a, b) => sign * compare(key(a.cells[column]), key(b.cells[column])));
  table.tBodies[0].append(...rows);
}
for (const header of document.querySelectorAll("table.sortable th")) {
  header.tabIndex = 0;
  header.addEventListener("click", () => sortBy(header));
  header.addEventListener("keydown", (event) => { if (event.key === "Enter") sortBy(header); });
}

// Chips show one outcome only; the choice stands in the address.
for (const chip of document.querySelectorAll("[data-filter]")) {
  chip.addEventListener("click", () => {
    const section = chip.closest("section") ?? document;
    for (const other of section.querySelectorAll("[data-filter]")) other.setAttribute("aria-pressed", other === chip);
    for (const row of section.querySelectorAll("[data-outcome]")) row.hidden = chip.dataset.filter !== "" && row.dataset.outcome !== chip.dataset.filter;
  });
}

// A link to something folded opens it.
function openTarget() {
  const target = location.hash && document.getElementById(decodeURIComponent(location.hash.slice(1)));
  if (target instanceof HTMLDetailsElement) target.open = true;
}
addEventListener("hashchange", openTarget);
openTarget();
