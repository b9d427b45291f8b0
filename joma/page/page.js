// Tables sort by the header that is clicked, or reached by the keyboard; numbers sort as numbers.
const all = (selector, place = document) => [...place.querySelectorAll(selector)];
function key(cell) {
  const raw = cell.textContent.trim();
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
for (const header of all("table.sortable th")) {
  header.tabIndex = 0;
  header.addEventListener("click", () => sortBy(header));
  header.addEventListener("keydown", (event) => { if (event.key === "Enter") sortBy(header); });
}

// The address holds what is shown: `outcome` of claims, and `q`, words that rows and sections of the index must have.
const search = document.getElementById("search"), state = document.querySelector("main > [role=status]");
const asked = (name) => new URLSearchParams(location.search).get(name)?.trim() ?? "";
function show() {
  const outcome = asked("outcome"), words = state ? asked("q").toLowerCase().split(/\s+/).filter(Boolean) : [];
  const has = (text) => words.every((word) => text.toLowerCase().includes(word));
  for (const chip of all("[data-filter]")) chip.setAttribute("aria-pressed", chip.dataset.filter === outcome);
  for (const each of all("[data-outcome]")) each.hidden = Boolean(outcome) && each.dataset.outcome !== outcome || !has(each.textContent);
  if (!state) return;
  let claims = 0, sections = 0;
  for (const section of all("main section")) {
    const rows = all("tr[data-outcome]", section), found = rows.filter((row) => has(row.textContent)).length;
    const texts = all("h2, h3, p, figcaption, td", section).map((each) => each.textContent);
    section.hidden = rows.length ? !found : !has([section.id, ...texts].join(" "));
    claims += found;
    sections += !rows.length && !section.hidden;
  }
  const counted = (count, noun) => `${count} ${noun}${count === 1 ? "" : "s"}`;
  state.textContent = words.length ? `${counted(claims, "claim")}, ${counted(sections, "section")}` : "";
}
function ask(name, value) {
  const address = new URL(location.href);
  value ? address.searchParams.set(name, value) : address.searchParams.delete(name);
  history.replaceState(null, "", address);
  show();
}
for (const chip of all("[data-filter]")) chip.addEventListener("click", () => ask("outcome", chip.dataset.filter));
if (state) {  // elsewhere the search leads to the index
  search.value = asked("q");
  search.addEventListener("input", () => ask("q", search.value.trim()));
  search.addEventListener("keydown", (event) => { if (event.key === "Escape") ask("q", search.value = ""); });
  search.form.addEventListener("submit", (event) => event.preventDefault());
}
show();
