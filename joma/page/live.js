// Asks for the state of the run again and again, and shows it; every word from a record is set as text.
const $ = (id) => document.getElementById(id);
const LATER = 5;  // seconds until a server that does not answer is asked again
let run = "", seen = "";

function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

function showCharts(charts) {
  for (const slot of ["curves", "heads"]) {
    const figure = $(slot), chart = charts[slot];
    figure.hidden = !chart;
    if (!chart) continue;
    setText(figure.querySelector("strong"), chart.title);
    setText(figure.querySelector("span"), chart.caption);
    figure.querySelector(".joma-plot").setAttribute("aria-label", chart.title);
    figure.querySelector("script").textContent = JSON.stringify(chart.spec);
    figure.dispatchEvent(new Event("joma-update", { bubbles: true }));
  }
}

function showAlarms(alarms) {
  $("alarms").hidden = !alarms.length;
  $("alarms").querySelector("tbody").replaceChildren(...alarms.map((alarm) => {
    const row = document.createElement("tr");
    for (const [name, label] of [["step", "step"], ["where", "where"], ["what", "what happened"]]) {
      const cell = row.insertCell();
      cell.textContent = alarm[name];
      cell.dataset.label = label;
      if (name === "step") cell.className = "num";
    }
    return row;
  }));
}

function showChoice(runs, name) {
  $("choice").hidden = runs.length < 2;
  const options = [...$("run").options].map((each) => each.value);
  if (options.join("\n") !== runs.join("\n")) $("run").replaceChildren(...runs.map((each) => new Option(each, each)));
  if (document.activeElement !== $("run")) $("run").value = name;
}

let known = {};  // the last answer that had charts
function show(state) {
  if (state.charts) {
    known = state;
    seen = state.version;
    showCharts(state.charts);
    showAlarms(state.listed);
  }
  if (state.name !== undefined) {
    run = state.name;
    setText($("name"), run);
    document.title = `${state.status} · ${run}`;
  }
  showChoice(state.runs, run);
  showStatus(state.status, state.message ?? (known.charts && !known.charts.curves ? "No loss and no entropy is recorded yet." : ""));
  const facts = [known.step == null ? "" : `step ${known.step.toLocaleString("en")}`,
    known.measurements ? `${known.measurements.toLocaleString("en")} measurements` : "",
    state.elapsed ? `elapsed ${state.elapsed}` : "",
    known.alarms ? `${known.alarms} ${known.alarms === 1 ? "alarm" : "alarms"}` : ""];
  setText($("facts"), facts.filter(Boolean).join(" · "));
}

function showStatus(status, message) {
  setText($("status"), status);
  $("status").className = status;
  setText($("message"), message);
  $("message").hidden = !message;
}

let timer;
async function poll() {
  clearTimeout(timer);
  let wait = LATER;
  try {
    const answer = await fetch(`data?${new URLSearchParams({ run, seen })}`);
    if (!answer.ok) throw new Error(answer.status);
    const state = await answer.json();
    show(state);
    wait = state.wait;
  } catch {
    showStatus("not connected", "The server does not answer: it has ended. These are the last values.");
  }
  timer = setTimeout(poll, 1000 * wait);
}
$("run").addEventListener("change", () => { run = $("run").value; seen = ""; $("run").blur(); poll(); });
poll();
