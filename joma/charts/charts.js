// Draws every chart of a page when it comes into view, in the width and the colours of the page.
const { light, dark, layout } = settings;
const scheme = matchMedia("(prefers-color-scheme: dark)");
const theme = () => {
  const chosen = document.documentElement.dataset.theme;
  return (chosen ? chosen === "dark" : scheme.matches) ? dark : light;
};

function legends(spec) {
  if (!spec || typeof spec !== "object") return [];
  const below = Object.entries(spec).filter(([key]) => key !== "data" && key !== "datasets");
  return [...(spec.legend?.columns ? [spec.legend] : []), ...below.flatMap(([, each]) => legends(each))];
}

function inflate(view) {  // rows from columns
  const columns = view.data?.columns && Object.entries(view.data.columns);
  if (columns) view.data = { values: columns[0][1].map((_, row) => Object.fromEntries(columns.map(([name, each]) => [name, each[row]]))) };
  for (const child of [...(view.concat ?? []), ...(view.layer ?? [])]) inflate(child);
}

function fit(view, width, compact, withLegends = true) {  // as `fit` of chart.py
  const shared = view.resolve?.scale?.color === "shared";
  if (withLegends && (shared || !view.concat))
    for (const each of legends(view)) each.columns = Math.max(1, Math.floor(each.columns * width / layout.legendRoom));
  if (view.concat) {
    const most = Math.max(1, Math.floor((width + layout.gap) / (layout.minPanel + layout.gap)));
    view.columns = Math.min(compact ? most : view.columns, view.concat.length, most);
    view.spacing = layout.gap;
    const each = (width - layout.gap * (view.columns - 1)) / view.columns;
    for (const child of view.concat) fit(child, each, compact, withLegends && !shared);
  } else {
    view.width = Math.round(Math.max(width - layout.axis, 60));
    view.height ??= Math.round((compact || 1) * Math.min(Math.max(view.width * layout.aspect, layout.heights[0]), layout.heights[1]));
  }
}

// Shift and the wheel zoom, shift and the pointer move, so that a page still scrolls.
const zoom = { type: "interval", zoom: "wheel![event.shiftKey]", clear: "dblclick",
  translate: "[pointerdown[event.shiftKey], window:pointerup] > window:pointermove!" };

function addZoom(view, path = "zoom") {
  view.concat?.forEach((child, index) => addZoom(child, `${path}_${index}`));
  const first = view.layer?.[0];
  const encodings = ["x", "y"].filter((channel) => first?.encoding?.[channel]?.type === "quantitative");
  if (encodings.length) first.params = [{ name: path, select: { ...zoom, encodings }, bind: "scales" }];
}

const kept = /^(zoom(_\d+)?_[xy]|choose_\w+)$/;  // what a reader has set
const settingsOf = (view) => view.getState({ data: () => false, signals: (name) => kept.test(name) }).signals;

// A chart is drawn out of sight and then takes the place of the one before it, so that an update does not flicker.
async function render(figure, width) {
  const place = figure.querySelector(".joma-plot");
  const spec = JSON.parse(figure.querySelector("script").textContent);
  inflate(spec);
  fit(spec, width, Number(getComputedStyle(figure).getPropertyValue("--chart-compact")));  // low, and many in a row
  addZoom(spec);
  const stage = document.createElement("div");
  stage.className = "joma-stage";
  place.append(stage);
  const colours = theme();
  const stacked = { layout: { top: { anchor: "start", direction: "vertical" } } };  // legends, where there is little room
  const config = width < layout.legendRoom / 2 ? { ...colours, legend: { ...colours.legend, ...stacked } } : colours;
  const drawn = await vegaEmbed(stage, spec, {
    config,
    mode: "vega-lite",
    renderer: "canvas",
    ast: true,  // without eval, which the policy of a page may forbid
    actions: { export: true, source: false, compiled: false, editor: false },
    tooltip: { theme: colours === dark ? "dark" : "light" },  // which escapes what it shows
  });
  const excess = stage.querySelector("canvas").getBoundingClientRect().width - place.clientWidth;
  return { drawn, stage, excess };
}

async function drawNow(figure) {
  const place = figure.querySelector(".joma-plot");
  figure.width = place.clientWidth;
  if (!figure.width) return;
  let { drawn, stage, excess } = await render(figure, figure.width - (figure.excess ?? 0));
  for (let again = 0; again < 3 && Math.abs(excess) > 2; again++) {  // the width of axes is known only once they are drawn
    drawn.finalize();
    stage.remove();
    figure.excess = (figure.excess ?? 0) + excess;
    ({ drawn, stage, excess } = await render(figure, figure.width - figure.excess));
  }
  if (figure.view) {
    const before = settingsOf(figure.view.view), now = settingsOf(drawn.view);
    for (const [name, value] of Object.entries(before)) if (value && name in now) drawn.view.signal(name, value);
    await drawn.view.runAsync();
    figure.view.finalize();
  }
  figure.view = drawn;
  place.replaceChildren(stage);
  stage.classList.remove("joma-stage");
  place.style.minHeight = 0;
  figure.dispatchEvent(new Event("joma-drawn", { bubbles: true }));  // for pages that feed it data
}

function draw(figure) {  // one drawing at a time
  const next = () => drawNow(figure);
  figure.queue = Promise.resolve(figure.queue).then(next, next);
}

const figures = [...document.querySelectorAll(".joma-chart")];
const seen = new IntersectionObserver((entries) => {
  for (const { target, isIntersecting } of entries) if (isIntersecting && !target.view) draw(target);
}, { rootMargin: "400px" });
const sized = new ResizeObserver((entries) => {
  for (const { target } of entries) {
    const figure = target.closest(".joma-chart");
    if (figure.view && Math.abs(target.clientWidth - figure.width) > 8) draw(figure);
  }
});
for (const figure of figures) {
  seen.observe(figure);
  sized.observe(figure.querySelector(".joma-plot"));
}
const redraw = () => figures.filter((figure) => figure.view).forEach(draw);
scheme.addEventListener("change", redraw);
addEventListener("joma-theme", redraw);
document.addEventListener("joma-update", ({ target }) => { if (target.view) draw(target); });  // it has another spec
addEventListener("beforeprint", () => figures.filter((figure) => !figure.view).forEach(draw));
// Those further down wait until the page is idle, so that they are there when it is printed.
(window.requestIdleCallback ?? setTimeout)(() => figures.filter((figure) => !figure.view).forEach(draw));
