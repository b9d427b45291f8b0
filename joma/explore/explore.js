// The explorer: asks for curves when a slider moves, feeds them to charts that are drawn already, and plays films.
(() => {
const $ = (id) => document.getElementById(id);
const SECONDS = 4;  // of a film that is played once
const form = $("controls");
const fields = [...form.querySelectorAll("[name]")];
let embedded = null;  // answers of a page without a server

// ---- asking ---------------------------------------------------------------------------------------------------------
const values = (field) => JSON.parse(field.dataset.values);
const count = (field) => field.options?.length ?? values(field).length;
const place = (field) => field.options ? field.selectedIndex : Number(field.value);
const valueOf = (field) => field.options ? field.value : values(field)[field.value];

async function unpack() {
  if (!$("data")) return;
  const packed = Uint8Array.from(atob($("data").textContent), (letter) => letter.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  embedded = await new Response(stream).json();
}

async function ask(what, asked) {
  if (embedded && what === "film") return embedded.film;
  if (embedded) return embedded.grid.answers[embedded.grid.index[fields.reduce((sum, each) => sum * count(each) + place(each), 0)]];
  try {
    return await (await fetch(`${what}?${new URLSearchParams(asked)}`)).json();
  } catch {
    return { error: "The server does not answer: it has ended. Start `joma explore` again." };
  }
}

// ---- charts ---------------------------------------------------------------------------------------------------------
// A chart is compiled once. Moves replace its rows, and the ends of its axes, which are signals: rows may be missing.
const ends = (axis, more) => ({ domain: [0, 1].map((end) => ({ expr: `${axis}_ends[${end}]` })), nice: false, ...more });
const axis = (axis, format = "~g") => ({ tickCount: 5, format, minExtent: axis === "y" ? 38 : 18, labelFlush: axis === "x" });
const along = (name, field, title = null, more = {}) =>
  ({ [name]: { field, type: "quantitative", title, scale: ends(name), axis: axis(name), ...more } });
const colour = { field: "target", type: "quantitative", legend: null, scale: ends("c", { range: "ramp" }) };
const law = { field: "law", type: "nominal", title: null, scale: { domain: ["corrected", "printed"] } };
const layer = (name, mark, encoding) => ({ data: { name }, mark, encoding });
const chart = (layers, height = 220) => ({ height, autosize: { type: "fit", contains: "padding" }, layer: layers,
  params: ["x", "y", "c"].map((name) => ({ name: `${name}_ends`, value: [1, 2] })) });

function specs(log) {
  const t = along("x", "t", "time t, in units of 1/η_w", { scale: ends("x", { type: log ? "log" : "linear" }) });
  const line = { type: "line", strokeWidth: 1.8 };
  const moment = [
    layer("cursor", { type: "rule", style: "guide" }, t),
    layer("stop", { type: "rule", style: "alert" }, t),
  ];
  const H = along("y", "entropy", "nats"), v = along("y", "v", "weight v");
  const plane = (first, second) => ({ ...along("x", first, "weight v"), ...along("y", second, "logit z") });
  const laws = { detail: { field: "token" }, color: law, strokeDash: { ...law, scale: { ...law.scale, range: [[1, 0], [5, 3]] } } };
  const arrow = { style: "guide", strokeDash: [1, 0], opacity: 0.7 };
  return {
    entropy: chart([
      layer("uniform", { type: "rule", style: "guide" }, H),
      layer("uniform", { type: "text", style: "guide-text", align: "left", x: 4, dy: 9, text: "uniform attention" }, H),
      layer("curve", line, { ...t, ...H }), ...moment,
      layer("dip", { type: "point", filled: true, size: 70, style: "alert" }, { ...t, ...H }),
      layer("dip", { type: "text", style: "alert-text", align: "right", dx: -9 }, { ...t, ...H, text: { field: "label" } }),
      layer("rise", { type: "rule", strokeWidth: 3, style: "alert" }, { ...t, ...H, y2: { field: "end" } }),
      layer("rise", { type: "text", style: "alert-text", align: "right", dx: -6 },
        { ...t, ...along("y", "middle", "nats"), text: { field: "label" } }),
    ]),
    attention: chart([layer("now", { type: "bar" }, { ...along("x", "attention", "share of attention"), color: colour,
      y: { field: "name", type: "ordinal", sort: null, title: null,
        axis: { labelOverlap: true, labelSeparation: 0, labelFontSize: 10, minExtent: 52 } } })]),
    weights: chart([
      layer("limits", { type: "rule", strokeDash: [2, 3], opacity: 0.7 }, { ...v, color: colour }),
      layer("paths", line, { ...t, ...v, detail: { field: "token" }, color: colour }), ...moment,
    ]),
    phase: chart([
      layer("arrows", { type: "rule", strokeWidth: 1, ...arrow }, { ...plane("v", "z"), x2: { field: "v2" }, y2: { field: "z2" } }),
      layer("arrows", { type: "point", filled: true, size: 7, ...arrow }, plane("v2", "z2")),
      layer("paths", line, { ...plane("v", "z"), detail: { field: "token" }, color: colour, order: { field: "t" } }),
      layer("now", { type: "point", filled: true, size: 60, opacity: 1 }, { ...plane("v", "z"), color: colour }),
    ]),
    conserved: chart([layer("drift", line, { ...t, ...laws,
      ...along("y", "drift", "largest change", { scale: ends("y", { type: "log" }), axis: axis("y", "~e") }) }), ...moment]),
    law: chart([layer("laws", line, { ...t, ...along("y", "value"), ...laws }), ...moment]),
  };
}

function setSpec(id, spec) {
  const figure = $(id);
  figure.version = (figure.version ?? 0) + 1;
  figure.querySelector("script").textContent = JSON.stringify({ ...spec, usermeta: { version: figure.version } });
  figure.dispatchEvent(new Event("joma-update", { bubbles: true }));
}

const fed = {};  // rows and ends of axes by chart, for a chart that is drawn later or again
function feed(id, rows, axes = {}) {
  fed[id] = { rows: { ...fed[id]?.rows, ...rows }, axes: { ...fed[id]?.axes, ...axes } };
  const { view: embed, version } = $(id);
  if (embed?.spec.usermeta?.version !== version) return null;
  for (const [name, each] of Object.entries(rows)) embed.view.data(name, each);
  for (const [name, each] of Object.entries(axes)) embed.view.signal(`${name}_ends`, each);
  return embed.view.runAsync();
}
document.addEventListener("joma-drawn", ({ target: figure }) => {
  if (fed[figure.id]) feed(figure.id, fed[figure.id].rows, fed[figure.id].axes);
});

function span(values, margin = 0.04) {  // ends of an axis with some room, or a range around a single value
  const known = values.filter((each) => each != null);
  const low = Math.min(...known), high = Math.max(...known);
  const room = high > low ? margin * (high - low) : 0.05 * Math.abs(high) || 0.1;
  return [low - room, high + room];
}
const column = (rows, name) => rows.map((row) => row[name]);
const decades = (values) => [10 ** Math.floor(Math.log10(Math.min(...values))), 10 ** Math.ceil(Math.log10(Math.max(...values) * 1.0001))];

// ---- flows ----------------------------------------------------------------------------------------------------------
let now = null, isLog = null;

function say(id, text) {
  $(id).textContent = text ?? "";
  $(id).hidden = !text;
}

const shortly = (value) => String(Number(value.toPrecision(3)));

function showMoment(index) {
  const t = now.t[index], cursor = [{ t }];
  const tokens = now.names.map((name, k) => ({ name, target: now.targets[k], v: now.v[k][index], z: now.z[k][index],
    attention: now.attention[k][index] }));
  $("time-value").textContent = shortly(t);
  $("time").setAttribute("aria-valuetext", shortly(t));
  const copies = () => tokens.map((each) => ({ ...each }));
  const ids = ["entropy", "weights", "conserved", "law"].filter((id) => !$(id).hidden);
  return Promise.all([...ids.map((id) => feed(id, { cursor })), feed("attention", { now: copies() }), feed("phase", { now: copies() })]);
}

async function show(answer) {
  say("error", answer.error);
  document.body.classList.toggle("stale", Boolean(answer.error));
  if (answer.error) return;
  now = answer;
  const { t, entropy, dip } = now, last = t.at(-1);
  const lines = (columns, name, more = () => ({})) =>
    columns.flatMap((column, token) => t.map((time, row) => ({ t: time, [name]: column[row], token, ...more(token, row) })));
  const target = (token) => ({ target: now.targets[token] });
  const paths = lines(now.v, "v", (token, row) => ({ z: now.z[token][row], ...target(token) }));
  const stop = now.blow_up == null ? [] : [{ t: now.blow_up }];
  const laws = (found, name) => ["corrected", "printed"].filter((each) => found?.[each])
    .flatMap((each) => lines(found[each], name, () => ({ law: each })));
  const drift = Object.fromEntries(Object.entries(now.drift).map(([name, each]) => [name, [each]]));
  if (now.log !== isLog) {
    isLog = now.log;
    for (const [id, spec] of Object.entries(specs(isLog))) setSpec(id, spec);
  }
  $("title").textContent = now.title;
  say("note", now.obstacle && `Closed form alone, so that no drift is measured: ${now.obstacle}.`);
  $("weights").querySelector("span").textContent = `One line for each token; dashed: where the theory says that v ends${
    now.blow_up == null ? "" : `; red: blow-up at t = ${shortly(now.blow_up)}`}.`;
  $("conserved").hidden = !drift.corrected;
  $("conserved").querySelector("span").textContent =
    `Change of ${now.conserved} since the start${drift.printed ? "; dashed: Theorem 1 as printed, without T and rates" : ""}.`;
  $("law").hidden = !now.law;
  $("law").querySelector("span").textContent = now.law?.about ?? "";
  $("call").textContent = now.call;
  $("facts").replaceChildren(...now.facts.flatMap((pair) => pair.map((text, index) => {
    const cell = document.createElement(index ? "dd" : "dt");
    cell.textContent = text;
    return cell;
  })));
  const x = [t[0], Math.max(last, now.blow_up ?? last)], c = span(now.targets, 0);
  const curve = t.map((time, row) => ({ t: time, entropy: entropy[row] }));
  const limits = now.limits.flatMap((v, token) => v == null ? [] : [{ v, ...target(token) }]);
  const arrows = now.arrows.map(([v, z, v2, z2]) => ({ v, z, v2, z2 }));
  const changes = laws(drift, "drift"), values = laws(now.law, "value");
  feed("entropy", {
    curve, stop, uniform: [{ entropy: now.uniform }],
    dip: dip ? [{ t: dip.time, entropy: dip.lowest, label: `dip, −${shortly(dip.drop)}` }] : [],
    rise: dip ? [{ t: last, entropy: dip.lowest, end: dip.lowest + dip.rise, middle: dip.lowest + dip.rise / 2,
      label: `rise ${shortly(dip.rise)}` }] : [],
  }, { x, y: span([...entropy, now.uniform, dip?.lowest]) });
  feed("weights", { paths, stop, limits }, { x, c, y: span(column([...paths, ...limits], "v")) });
  feed("attention", {}, { c, x: [0, Math.max(...now.attention.flat())] });
  feed("phase", { paths, arrows }, { c, x: span(now.v.flat()), y: span(now.z.flat()) });
  if (changes.length) feed("conserved", { drift: changes, stop }, { x, y: decades(column(changes, "drift")) });
  if (values.length) feed("law", { laws: values, stop }, { x, y: span(column(values, "value")) });
  if (Number($("time").max) !== t.length - 1) {
    $("time").max = t.length - 1;
    $("time").value = Math.round(0.7 * t.length);
  }
  await showMoment(Number($("time").value));
}

let busy = false, again = false;
async function refresh() {  // one question at a time; the last one counts
  for (const field of fields.filter((each) => !each.options)) {
    const text = String(valueOf(field));
    field.setAttribute("aria-valuetext", text);
    field.parentElement.querySelector("output").textContent = text;
  }
  again = true;
  if (busy) return;
  busy = true;
  while (again) {
    again = false;
    await show(await ask("curves", fields.map((each) => [each.name, valueOf(each)])));
  }
  busy = false;
  document.dispatchEvent(new Event("explore-drawn"));
}

function setField(name, value) {
  const field = fields.find((each) => each.name === name);
  if (!field) return;
  const known = field.options ? [...field.options].map((each) => each.value) : values(field).map(String);
  const index = known.indexOf(String(value));
  if (index >= 0) field.options ? field.selectedIndex = index : field.value = index;
}

function chooseFlow(name) {
  const starts = { attention: "", activation: "", ...JSON.parse(form.dataset.starts)[name] };
  for (const [field, value] of Object.entries(starts)) setField(field, value);
}
form.addEventListener("input", ({ target: field }) => {
  if (field.name === "flow") chooseFlow(field.value);
  refresh();
});
form.addEventListener("reset", () => setTimeout(refresh));
form.addEventListener("submit", (event) => event.preventDefault());

function player(id, showAt) {
  const range = $(id), button = $(`${id}-play`);
  let since = null;  // start of the film, in milliseconds
  const stop = () => { since = null; button.textContent = "Play"; button.setAttribute("aria-pressed", false); };
  async function turn() {
    if (since == null) return;
    const share = Math.min(1, (performance.now() - since) / (1000 * SECONDS));
    range.value = Math.round(share * range.max);
    await showAt(Number(range.value));
    share < 1 ? requestAnimationFrame(turn) : stop();
  }
  range.addEventListener("input", () => { stop(); showAt(Number(range.value)); });
  button.addEventListener("click", () => {
    if (since != null) return stop();
    const share = Number(range.value) / range.max;
    since = performance.now() - (share < 1 ? 1000 * SECONDS * share : 0);
    button.textContent = "Pause";
    button.setAttribute("aria-pressed", true);
    turn();
  });
}
player("time", (index) => now && showMoment(index));

// ---- playback -------------------------------------------------------------------------------------------------------
let film = null;

function showFrame(index) {
  const step = film.steps[index], cursor = [{ step }];
  $("frame-value").textContent = step.toLocaleString("en");
  $("frame").setAttribute("aria-valuetext", step);
  const cells = film.cells.map(([layer, head], cell) => ({ layer, head, value: film.values[index][cell] }));
  return Promise.all([feed("heads", { cells }), feed("layers", { cursor }), feed("loss", { cursor })]);
}

async function showFilm() {
  if (!$("film-shown")) return;
  const answer = await ask("film", { run: $("run").value });
  $("film-choice").hidden = answer.runs.length < 2 || Boolean(embedded);
  if ($("run").options.length !== answer.runs.length) $("run").replaceChildren(...answer.runs.map((each) => new Option(each, each)));
  if (answer.name) $("run").value = answer.name;
  say("film-error", answer.error);
  $("film-shown").hidden = Boolean(answer.error);
  if (answer.error) return;
  film = answer;
  const step = along("x", "step", "training step", { axis: axis("x", ",d") });
  const cursor = layer("cursor", { type: "rule", style: "guide", strokeWidth: 2 }, step);
  const line = (y, title, more) =>
    [layer("lines", { type: "line", strokeWidth: 1.8 }, { ...step, ...along("y", y, title), ...more }), cursor];
  const names = { type: "ordinal", sort: null, axis: { labelAngle: 0, labelOverlap: true, minExtent: 18 } };
  const height = Math.min(460, Math.max(220, 26 * film.layers.length + 110));
  const legend = film.layers.length > 12 ? null : { title: "layer", columns: 12 };
  const shade = { field: "value", type: "quantitative", title: film.label, legend: { gradientLength: 140 },
    scale: { domain: [film.lowest, film.highest] } };
  const colours = { color: { field: "layer", type: "ordinal", legend, scale: { domain: film.layers } } };
  setSpec("heads", chart([layer("cells", { type: "rect", tooltip: true },
    { x: { field: "head", title: "head", ...names }, y: { field: "layer", title: "layer", ...names }, color: shade })], height));
  setSpec("layers", chart(line("value", film.label, colours), height));
  setSpec("loss", chart(line("loss", "loss")));
  const means = film.means.flatMap((curve, row) => curve.map((value, at) => ({ step: film.steps[at], value, layer: film.layers[row] })));
  $("loss").hidden = !film.loss.length;
  $("frame").max = film.steps.length - 1;
  $("frame").value = 0;
  const x = span(film.steps, 0), losses = film.loss.map((loss, at) => ({ step: film.steps[at], loss }));
  feed("layers", { lines: means }, { x, y: span(column(means, "value")) });
  if (losses.length) feed("loss", { lines: losses }, { x, y: span(film.loss) });
  await showFrame(0);
}
if ($("film-shown")) {
  player("frame", (index) => film && showFrame(index));
  $("run").addEventListener("change", showFilm);
}

// ---- views: #flows?flow=model, #theory/thm2, #film ------------------------------------------------------------------
const statement = $("statement");
function route() {
  const [path, query] = decodeURIComponent(location.hash.slice(1)).split("?");
  const [name, id] = path.split("/");
  const view = ["flows", "theory", "film"].includes(name) ? name : "flows";
  for (const section of document.querySelectorAll("main > section")) section.hidden = section.id !== view;
  for (const link of document.querySelectorAll("nav a")) {
    link.hash === `#${view}` ? link.setAttribute("aria-current", "page") : link.removeAttribute("aria-current");
  }
  if (view === "theory") {
    if ([...statement.options].some((each) => each.value === id)) statement.value = id;
    for (const article of document.querySelectorAll("#theory article")) article.hidden = article.id !== `theory/${statement.value}`;
  }
  if (view === "film" && !film) showFilm();
  if (query) {
    const asked = new URLSearchParams(query);
    if (asked.has("flow")) chooseFlow(asked.get("flow"));
    for (const [field, value] of asked) setField(field, value);
    refresh();
  }
}
const turnTo = (id) => { location.hash = `theory/${id}`; };
const step = (by) => turnTo(statement.options[(statement.selectedIndex + by + statement.length) % statement.length].value);
statement.addEventListener("change", () => turnTo(statement.value));
$("previous").addEventListener("click", () => step(-1));
$("next").addEventListener("click", () => step(1));
addEventListener("hashchange", route);
for (const [id, spec] of Object.entries(specs(isLog = true))) setSpec(id, spec);
route();
unpack().then(refresh);
})();
