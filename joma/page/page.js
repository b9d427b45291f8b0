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

// Chips show one verdict only, those that are folded away among them.
for (const chip of document.querySelectorAll("[data-filter]")) {
  chip.addEventListener("click", () => {
    const section = chip.closest("section");
    section.toggleAttribute("data-chosen", chip.dataset.filter !== "");
    for (const other of section.querySelectorAll("[data-filter]")) other.setAttribute("aria-pressed", other === chip);
    for (const row of section.querySelectorAll("[data-outcome]")) row.hidden = chip.dataset.filter !== "" && row.dataset.outcome !== chip.dataset.filter;
  });
}

// A link to a statement opens it.
function openTarget() {
  const target = location.hash && document.getElementById(decodeURIComponent(location.hash.slice(1)));
  if (target instanceof HTMLDetailsElement) target.open = true;
}
addEventListener("hashchange", openTarget);
openTarget();

// Figures are drawn when they come into view, in the colours of the page.
const dark = matchMedia("(prefers-color-scheme: dark)");
const figures = [...document.querySelectorAll(".figure")];
let stepsAxis = null; // as the figure says, until somebody chooses
function themed(figure) {
  const style = getComputedStyle(document.documentElement);
  const color = (name) => style.getPropertyValue(name).trim();
  figure.layout.font.color = color("--ink");
  for (const [name, axis] of Object.entries(figure.layout)) {
    if (/^[xy]axis/.test(name)) Object.assign(axis, { gridcolor: color("--line"), tickcolor: color("--line") });
  }
  figure.layout.modebar = { bgcolor: "rgba(0,0,0,0)", color: color("--soft"), activecolor: color("--ink") };
  for (const trace of figure.data) {
    if (trace.line) trace.line.simplify = false; // else Plotly leaves out points until smooth curves have corners
    if (trace.type === "bar" && trace.error_y) trace.error_y.color = color("--ink");
    paint(trace, trace.meta?.[dark.matches ? "dark" : "light"]);
  }
  return figure;
}
function paint(trace, color) {
  if (Array.isArray(color)) trace.marker.colorscale = color;
  else if (color) {
    const errors = trace.type === "bar" ? null : trace.error_y;
    for (const part of [trace.line, trace.marker, trace.marker?.line, errors]) if (part) part.color = color;
    if (trace.fillcolor) trace.fillcolor = color;
  }
}
function overSteps(place) {
  return place.drawn && place.closest(".panel") && place.drawn.layout.xaxis.type !== "category";
}
// A legend above a figure takes as many rows as the width asks for.
function fitLegend(place, layout) {
  const legend = layout.meta?.legend;
  if (!legend) return;
  const columns = Math.max(1, Math.floor((place.clientWidth - legend.sides) / legend.entry));
  const above = legend.row * Math.ceil(legend.num / columns);
  layout.margin.t = legend.top + above;
  place.style.height = `${legend.height + above}px`;
}
function draw(place) {
  if (place.drawn) return;
  place.drawn = themed(JSON.parse(place.querySelector("script").textContent));
  const { data, layout } = place.drawn;
  fitLegend(place, layout);
  if (stepsAxis && overSteps(place)) layout.xaxis.type = stepsAxis;
  const options = JSON.parse(document.getElementById("plot-options").textContent);
  Plotly.newPlot(place, data, layout, options).then(() => choose(place.closest(".panel")));
}
function choose(panel) {
  const select = panel?.querySelector("[data-choice]");
  const place = panel?.querySelector(".figure");
  if (!select || !place.drawn) return;
  const visible = place.drawn.data.map((trace) => trace.meta.choice === select.value);
  const span = place.drawn.layout.meta?.spans?.[select.value] ?? [];
  Plotly.update(place, { visible }, { "yaxis.autorangeoptions.include": span, "yaxis.autorange": true });
}
if (figures.length) {
  const seen = new IntersectionObserver((entries) => {
    for (const entry of entries) if (entry.isIntersecting) draw(entry.target);
  }, { rootMargin: "50% 0%" });
  for (const place of figures) seen.observe(place);
  addEventListener("beforeprint", () => { for (const place of figures) if (place.offsetParent) draw(place); });
  dark.addEventListener("change", () => {
    for (const place of figures) if (place.drawn) { themed(place.drawn); Plotly.react(place, place.drawn.data, place.drawn.layout); }
  });
}

// Chips choose the quantity of a section; the axis of the steps is one for the whole page.
for (const chip of document.querySelectorAll("[data-panel]")) {
  chip.addEventListener("click", () => {
    for (const other of chip.parentNode.querySelectorAll("[data-panel]")) {
      other.setAttribute("aria-pressed", other === chip);
      document.getElementById(other.dataset.panel).hidden = other !== chip;
    }
  });
}
for (const chip of document.querySelectorAll("[data-steps]")) {
  chip.addEventListener("click", () => {
    stepsAxis = chip.dataset.steps;
    for (const other of document.querySelectorAll("[data-steps]")) other.setAttribute("aria-pressed", other.dataset.steps === stepsAxis);
    for (const place of figures.filter(overSteps)) {
      Plotly.relayout(place, { "xaxis.type": stepsAxis, "xaxis.autorange": true });
    }
  });
}
for (const select of document.querySelectorAll("[data-choice]")) {
  select.addEventListener("change", () => choose(select.closest(".panel")));
}
