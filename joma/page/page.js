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

// Chips show one outcome only; the search box of the index shows rows and sections that have every word. Its words stand in the address.
const search = document.getElementById("search");
function show() {
  const words = (search?.value ?? "").toLowerCase().split(/\s+/).filter(Boolean);
  const has = (text) => words.every((word) => text.toLowerCase().includes(word));
  for (const row of document.querySelectorAll("[data-outcome]")) {
    const chosen = (row.closest("section") ?? document).querySelector('[data-filter][aria-pressed="true"]')?.dataset.filter;
    const cells = [...(row.cells ?? [])].map((cell) => cell.textContent).join(" ");
    row.hidden = Boolean(chosen && row.dataset.outcome !== chosen) || !has(cells);
  }
  if (!search) return;
  let claims = 0, figures = 0;
  for (const section of document.querySelectorAll("main section")) {
    const rows = [...section.querySelectorAll("tr[data-outcome]")];
    const found = rows.filter((row) => has([...row.cells].map((cell) => cell.textContent).join(" "))).length;
    const texts = [...section.querySelectorAll("h2, .question, .facts, figcaption, td")].map((each) => each.textContent);
    section.hidden = rows.length ? !found : !has([section.id, ...texts].join(" "));
    claims += found;
    figures += !rows.length && !section.hidden;
  }
  const counted = (count, noun) => `${count} ${noun}${count === 1 ? "" : "s"}`;
  const state = search.closest(".search").querySelector("[role=status]");
  state.textContent = words.length ? `${counted(claims, "claim")}, ${counted(figures, "section")}` : "";
}
for (const chip of document.querySelectorAll("[data-filter]")) {
  chip.addEventListener("click", () => {
    const section = chip.closest("section") ?? document;
    for (const other of section.querySelectorAll("[data-filter]")) other.setAttribute("aria-pressed", other === chip);
    show();
  });
}
if (search) {
  search.value = new URLSearchParams(location.search).get("q") ?? "";
  show();
  search.addEventListener("input", () => {
    show();
    const address = new URL(location.href);
    if (search.value.trim()) address.searchParams.set("q", search.value.trim());
    else address.searchParams.delete("q");
    history.replaceState(null, "", address);
  });
  search.addEventListener("keydown", (event) => {
    if (event.key !== "Escape" || !search.value) return;
    event.preventDefault();
    search.value = "";
    search.dispatchEvent(new Event("input"));
  });
}

// A link to something folded opens it.
function openTarget() {
  const target = location.hash && document.getElementById(decodeURIComponent(location.hash.slice(1)));
  if (target instanceof HTMLDetailsElement) target.open = true;
}
addEventListener("hashchange", openTarget);
openTarget();
