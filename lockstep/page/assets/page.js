"use strict";
/* Asks for the state of the run and shows it. Foreign text (names, reasons) enters the page as text
   nodes only. Times are the coordinator's: the visitor's clock says nothing here. */

/* Pauses between two looks at the run. */
const PAUSE_MS = { seen: 2000, hidden: 20000 };

const OLD_S = 90;
const ROWS = 15;
const SHORTEST_ID = 4;

/* Seconds between two questions for a document; a long list is asked for less often. */
const DUE_S = { curve: 20, contributors: 20 };
const ROWS_A_SECOND = 25;

const state = { run: null, curve: null, contributors: null, asked: {}, rows: ROWS, answered: null,
  renewed: null, problems: [] };
const extras = [];  // what the operator's page adds: functions that ask and show
const me = (new URLSearchParams(location.search).get("me") || "").toLowerCase();
const chart = lineChart(document.getElementById("loss-chart"), [
  { label: "training", color: "--accent" },
  { label: "each point", color: "--faint", width: 1 },
  { label: "validation", color: "--wait", points: true },
]);

const element = (id) => document.getElementById(id);

function put(id, text, kind) {
  element(id).textContent = text;
  if (kind !== undefined) element(id).className = kind;
}

function show(id, on) {
  element(id).hidden = !on;
}

function number(value, digits = 3) {
  return Number.isFinite(value) ? value.toFixed(digits) : "–";
}

function count(value) {
  return Number.isFinite(value) ? value.toLocaleString("en-US") : "–";
}

function things(value, noun) {
  return `${count(value)} ${noun}${value === 1 ? "" : "s"}`;
}

function scaled(value, units, unit = 0) {
  while (value >= 1000 && unit < units.length - 1) { value /= 1000; unit += 1; }
  return `${unit ? value.toPrecision(3) : Math.round(value)} ${units[unit]}`;
}

function bytes(value) {
  return Number.isFinite(value) ? scaled(value, ["B", "kB", "MB", "GB", "TB"]) : "–";
}

function parameters(value) {
  return value < 1e6 ? count(value) : scaled(value, ["", "thousand", "million", "billion"]);
}

function duration(seconds) {
  if (!Number.isFinite(seconds)) return "–";
  const units = [[86400, "day"], [3600, "hour"], [60, "minute"]];
  for (const [size, name] of units) {
    const rounded = Number((seconds / size).toFixed(seconds >= 10 * size ? 0 : 1));
    if (seconds >= size) return `${count(rounded)} ${name}${rounded === 1 ? "" : "s"}`;
  }
  return seconds < 10 ? `${+seconds.toPrecision(2)} s` : `${Math.round(seconds)} s`;
}

function percent(part) {
  if (!Number.isFinite(part)) return "–";
  return `${100 * part >= 10 ? (100 * part).toFixed(0) : +(100 * part).toPrecision(2)} %`;
}

function cell(row, text, kind, label) {
  const made = row.insertCell();
  made.textContent = text;
  if (kind) made.className = kind;
  if (label) made.dataset.label = label;
  return made;
}

function nameIn(made, name, id) {
  const short = id.slice(0, 8);
  const words = document.createElement("bdi");  // a name that is written from the right moves nothing
  words.textContent = name;
  if (name && name !== short) made.append(words, " ");
  const link = document.createElement("a");
  link.className = "id";
  link.textContent = short;
  link.href = `?me=${id}`;
  link.title = "Show this computer's own figures";
  made.append(link);
}

function rows(id) {
  const body = document.createElement("tbody");
  document.querySelector(`#${id} tbody`).replaceWith(body);
  return body;
}

/* Bars of the rounds that counted; the newest part is not over, and is shown by its rounds so far. */
function trend(parts) {
  const { trend_rounds: whole, newest_rounds: newest } = state.contributors;
  const space = "http://www.w3.org/2000/svg";
  const picture = document.createElementNS(space, "svg");
  picture.setAttribute("class", "trend");
  picture.setAttribute("viewBox", `0 0 ${6 * parts.length} 18`);
  picture.setAttribute("role", "img");
  picture.setAttribute("aria-label", `rounds counted: ${parts.join(", ")}`);
  parts.forEach((each, place) => {
    const bar = document.createElementNS(space, "rect");
    const most = place === parts.length - 1 ? newest : whole;
    const height = each ? Math.max(2, (18 * Math.min(each, most)) / most) : 1;
    for (const [name, value] of Object.entries(
      { x: 6 * place, y: 18 - height, width: 4, height })) bar.setAttribute(name, value);
    if (!each) bar.setAttribute("class", "none");
    picture.append(bar);
  });
  return picture;
}

async function ask(path) {
  const reply = await fetch(path, { cache: "no-store" });
  if (!reply.ok) throw new Error(`${path}: ${reply.status}`);
  const found = await reply.json();
  const age_s = Date.parse(reply.headers.get("Date")) / 1000 - found.written_s;
  found.age_s = Number.isFinite(age_s) ? age_s : 0;
  return found;
}

/* ---- the state in colours: badge, title, icon, bar */

const COLOURS = { training: "#2a6f97", finished: "#2e7d4f", bad: "#b3402e" };

function mark(word, kind, problems) {
  put("phase", word, `badge ${kind}`);
  element("icon").href = "data:image/svg+xml," + encodeURIComponent(
    `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 16 16"><rect width="16" height="16"` +
    ` rx="3" fill="${COLOURS[kind] || "#9a6b00"}"/><path d="${kind === "bad"
      ? "M8 3v6M8 11v2" : "M3 5h10M3 8h10M3 11h10"}" stroke="#fff" stroke-width="${
      kind === "bad" ? 2 : 1.6}"/></svg>`);
  const run = state.run;
  const done = run && run.steps.total ? percent(run.steps.committed / run.steps.total) : "";
  const first = kind === "bad" ? "⚠" : kind === "away" ? "away" : done;
  document.title = [first, run ? run.name : "", "Lockstep"].filter(Boolean).join(" · ");
  const said = problems.map((each) => `${each.kind}: ${each.text}`).join("\n");
  if (element("problems").dataset.said === said) return;  // a reader is told once
  element("problems").dataset.said = said;
  element("problems").replaceChildren(...problems.map((each) => {
    const item = document.createElement("li");
    item.className = each.kind;
    item.textContent = each.text;
    return item;
  }));
}

/* Whether the run was written long ago. What was written anew while one looked on is not old, whatever
   the clock of its writer says. */
function isOld(run) {
  const seen_s = (performance.now() - state.renewed) / 1000;
  return run.age_s > OLD_S && !(state.renewed !== null && seen_s < OLD_S);
}

function showState(run) {
  const problems = [...run.problems, ...state.problems];
  const bad = problems.some((each) => each.kind === "bad");
  const old = isOld(run) && run.phase !== "finished";
  if (old) problems.push({ kind: "wait", text: `This page is ${duration(run.age_s)} old: its coordinator may be away.` });
  const word = bad ? "problem" : old ? "old" : run.phase;
  mark(word, bad ? "bad" : old ? "away" : run.phase, problems);
  document.body.className = old ? "away" : run.phase;
  put("written", isOld(run) ? `Written ${duration(run.age_s)} ago.` : "");
}

function showAway() {
  const since = state.answered === null ? "" : ` What you see is ${duration((performance.now() - state.answered) / 1000)} old.`;
  mark("away", "away", [{ kind: "wait", text: `The coordinator does not answer.${since} This page asks again by itself.` }]);
  document.body.className = "away";
}

/* ---- the run */

function fact(id, text, small, kind) {
  put(id, text, kind || "");
  if (!small) return;
  const line = document.createElement("small");
  line.textContent = small;
  element(id).append(line);
}

function showRun(run) {
  const size = run.parameters ? `${parameters(run.parameters)} parameters` : "";
  put("name", run.name);
  put("about", [[run.model_type, size].filter(Boolean).join(", "), run.run_id.slice(0, 8)].join(" · "));
  put("doing", run.doing);
  const { committed, skipped, total } = run.steps;
  element("progress").value = total ? Math.min(1, committed / total) : 0;
  put("steps", `${count(committed)} of ${things(total, "step")} (${percent(total ? committed / total : 0)})`);
  put("eta", run.seconds_left === null ? "" : `about ${duration(run.seconds_left)} left`);
  if (run.loss === null && committed) fact("loss", "no number", "in the newest round", "bad");
  else fact("loss", number(run.loss), run.loss === null ? "" : "nats per token");
  fact("validation", run.validation ? number(run.validation.loss) : "–",
    run.validation ? `after round ${count(run.validation.round)}` : "not measured yet");
  fact("members-count", count(run.members));
  fact("contributors-count", count(run.contributors), `${scaled(run.samples, ["", "thousand", "million", "billion"])} samples`);
  fact("round-time", duration(run.round_seconds), skipped ? `${things(skipped, "round")} skipped` : "");
  showReplicas(run.replicas);
  showJoin(run);
  showModel(run.model, run.phase);
  show("hero", true);
  document.querySelector("#hero .facts").hidden = !committed && !skipped;
  showState(run);
}

function showReplicas(replicas) {
  if (!replicas.equal_by_design) fact("replicas", "own ones", "nodes mix parameters");
  else if (!replicas.checked) fact("replicas", "–", "not compared yet");
  else if (replicas.agreed) fact("replicas", "equal", `in ${things(replicas.checked, "round")}`, "good");
  else fact("replicas", "not equal", "in the newest round", "bad");
}

const ADMISSION = {
  open: "",
  token: "",
  list: "The operator puts computers on a list: ask to be let in.",
};

function showJoin(run) {
  const over = run.phase === "finished";
  show("joins", !over);
  show("join-line", Boolean(run.join));
  put("join", run.join);
  const lead = run.join ? "" : "Ask the operator of this run for its link.";
  show("token-note", run.admission === "token");
  put("join-note", [lead, run.join_note, ADMISSION[run.admission]].filter(Boolean).join(" "));
  const { work_seconds: work, counts_seconds: counts } = run.newcomer;
  const first = work === null
    ? "A computer that joins now works in the first round that opens."
    : `A computer that joins now works in about ${duration(work)}, once it has caught up.`;
  const full = counts === null ? "" : ` Its word counts in full after some ${duration(counts)} of work.`;
  put("wait", `It takes one line and no open ports; you choose what it may use. ${first}${full}`);
}

/* An item of a list: a link, and quietly what there is to say of it. */
function pair(link, words) {
  const item = document.createElement("li");
  const small = document.createElement("span");
  small.className = "quiet";
  small.textContent = words;
  item.append(link, small);
  return item;
}

function showModel(model, phase) {
  show("models", Boolean(model) || phase !== "waiting");
  const newest = model && model.newest;
  const addresses = model ? model.addresses : [];
  const confirmed = newest && newest.confirmed ? "Two members computed the same." : "";
  put("model", newest
    ? `After round ${count(newest.round)}, ${bytes(newest.bytes)}. ${confirmed}`
    : model ? "Members have published it:" : "Nothing is published yet: a member writes the model now and then, and at the end.");
  element("files").replaceChildren(...(newest ? newest.files : []).map(({ name, bytes: size }) => {
    const link = document.createElement("a");
    link.textContent = name;
    link.href = `model/${newest.name}/${name}`;
    link.download = name;
    return pair(link, bytes(size));
  }));
  show("elsewhere", Boolean(newest) && addresses.length > 0);
  element("addresses").replaceChildren(...addresses.map((each) => {
    const web = /^https?:/.test(each.url);
    const place = document.createElement(web ? "a" : "code");
    place.textContent = each.url;
    if (web) { place.href = each.url; place.rel = "noreferrer nofollow"; }
    return pair(place, `round ${count(each.round)}`);
  }));
  show("digests", Boolean(newest));
  put("sha256", newest ? newest.sha256 : "");
  put("state-digest", newest ? newest.state_digest : "");
}

/* ---- the curve */

function smoothed(values) {
  const keep = 1 - 1 / Math.max(2, values.length / 40);
  let mean = null;
  return values.map((each) => {
    if (each === null) return null;
    mean = mean === null ? each : keep * mean + (1 - keep) * each;
    return mean;
  });
}

function showCurve() {
  const { rounds, losses, validation_rounds: when, validation_losses: what, rounds_a_point: wide } = state.curve;
  show("curve", rounds.length + when.length > 0);
  if (!rounds.length && !when.length) return;
  const trained = new Map(rounds.map((each, place) => [each, losses[place]]));
  const measured = new Map(when.map((each, place) => [each, what[place]]));
  const all = [...new Set([...rounds, ...when])].sort((a, b) => a - b);
  const points = all.map((each) => trained.get(each) ?? null);
  const smooth = element("smooth").checked;
  chart.draw([all, smooth ? smoothed(points) : points, smooth ? points : all.map(() => null),
    all.map((each) => measured.get(each) ?? null)]);
  put("curve-note", wide > 1 ? `The whole run; each point is the mean of ${count(wide)} rounds.` : "");
}

/* ---- contributors */

const STANDING = {
  "": ["full", "good"], counted: ["full", "good"], vouched: ["vouched for", "good"],
  demoted: ["lost", "bad"],
};

function standing([, , , , word, left]) {
  return word === "fresh" ? [`new, ${count(left)} to go`, "wait"] : STANDING[word];
}

function isMine(id) {
  return me.length >= SHORTEST_ID && (id.startsWith(me) || me.startsWith(id));
}

function contributor(body, each, place, part) {
  const [id, name, samples, counted, , , now, parts] = each;
  const row = body.insertRow();
  if (isMine(id)) row.className = "mine";
  cell(row, count(place + 1), "number place");
  nameIn(cell(row, "", "name"), name, id);
  cell(row, count(samples), "number", "samples");
  cell(row, percent(part), "number", "part");
  cell(row, count(counted), "number", "rounds");
  const [word, kind] = standing(each);
  cell(row, word, `word ${kind}`, "standing");
  cell(row, now || "not here", now ? "word" : "word quiet", "now");
  cell(row, "", "", "lately").append(trend(parts));
}

function showContributors() {
  const found = state.contributors;
  show("people", found.rows.length > 0);
  put("people-count", found.in_all > 1 ? `${count(found.in_all)}, most work first` : "");
  const lately = `last ${count(found.trend_rounds * (found.rows[0] || [[]]).at(-1).length)} rounds`;
  put("trend-title", lately);
  put("me-trend-title", lately);
  const body = rows("contributors");
  const part = (each) => found.samples ? each[2] / found.samples : NaN;
  found.rows.slice(0, state.rows).forEach((each, place) => contributor(body, each, place, part(each)));
  const mine = found.rows.findIndex(([id]) => isMine(id));
  if (mine >= state.rows) contributor(body, found.rows[mine], mine, part(found.rows[mine]));
  show("more", found.rows.length > state.rows);
  put("more", `Show more of ${count(found.rows.length)}`);
  if (me) showMe(mine, mine < 0 ? NaN : part(found.rows[mine]));
}

function showMe(place, part) {
  show("me", true);
  document.querySelector("#me .facts").hidden = place < 0;
  if (place < 0) {
    put("me-says", `No computer of this run, or none of its first ${count(state.contributors.rows.length)}, has an id that begins with ${me.slice(0, 32)}. It stands here after its first contact.`);
    return;
  }
  const mine = state.contributors.rows[place];
  const [id, name, samples, counted, word, left, now, parts] = mine;
  put("me-rank", `${count(place + 1)} of ${count(state.contributors.in_all)}`);
  put("me-part", percent(part));
  put("me-samples", count(samples));
  put("me-rounds", count(counted));
  put("me-standing", ...standing(mine));
  element("me-trend").replaceChildren(trend(parts));
  put("me-says", [`${name || id.slice(0, 8)} ${now ? `is here: ${now}` : "is not here now"}.`,
    word === "fresh" ? whenCounted(left, parts) : ""].filter(Boolean).join(" "));
}

/* When a new key will count: by the rounds of its that counted lately. */
function whenCounted(left, parts) {
  const { trend_rounds: whole, newest_rounds: newest } = state.contributors;
  const since = parts.slice(-4).findIndex(Boolean);
  const lately = since < 0 ? [] : parts.slice(-4).slice(since);
  const sum = lately.reduce((total, each) => total + each, 0);
  const round_s = state.run && state.run.round_seconds;
  const said = `Its word counts in full after ${things(left, "more counted round")}`;
  if (!sum || !round_s) return `${said}.`;
  const possible = (lately.length - 1) * whole + newest;
  return `${said}, in about ${duration((left * round_s * Math.max(1, possible / sum)))}.`;
}

/* ---- asking */

function due(part) {
  const rows = part === "contributors" && state.contributors ? state.contributors.rows.length : 0;
  return Math.max(DUE_S[part], DUE_S[part] && rows / ROWS_A_SECOND);
}

async function update() {
  const run = await ask("run.json");
  if (state.run && state.run.run_id !== run.run_id) state.asked = {};
  if (state.run && state.run.written_s !== run.written_s) state.renewed = performance.now();
  state.run = run;
  state.answered = performance.now();
  for (const each of extras) await each(run);
  showRun(run);
  for (const part of Object.keys(DUE_S)) {
    const now = performance.now();
    if (state.asked[part] !== undefined && now - state.asked[part] < 1000 * due(part)) continue;
    state[part] = await ask(`${part}.json`);
    state.asked[part] = now;
    if (part === "curve") showCurve();
    else showContributors();
  }
}

async function live() {
  try {
    await update();
  } catch (error) {
    showAway();
  }
  setTimeout(live, document.hidden ? PAUSE_MS.hidden : PAUSE_MS.seen);
}

element("smooth").addEventListener("change", showCurve);
element("log").addEventListener("change", () => chart.log(element("log").checked));
element("more").addEventListener("click", () => {
  state.rows += 200;
  showContributors();
});
element("copy").addEventListener("click", async () => {
  try {
    await navigator.clipboard.writeText(element("join").textContent);
    put("copy", "Copied");
  } catch {
    getSelection().selectAllChildren(element("join"));
    put("copy", "Selected");
  }
  setTimeout(() => put("copy", "Copy"), 1500);
});

addEventListener("DOMContentLoaded", live);
