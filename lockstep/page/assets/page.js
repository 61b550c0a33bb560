"use strict";
/* Asks the coordinator for its state and shows it. Foreign text (names, reasons) enters the page as
   text nodes only. */

const EVERY_MS = 1000;
const SELDOM = 5;
const ROUNDS_KEPT = 5000;
const BARS = 120;
const SKIPS = 5;

const state = { run: null, rounds: [], newest: -1, asked: 0, validation: [] };
const charts = {
  loss: lineChart(document.getElementById("loss-chart"), [
    { label: "training", color: "--accent" },
    { label: "validation", color: "--wait", points: true },
  ]),
  time: lineChart(document.getElementById("time-chart"), [
    { label: "measured", color: "--accent" },
    { label: "slot", color: "--wait", dash: [4, 4] },
  ]),
};

function put(id, text, kind) {
  const element = document.getElementById(id);
  element.textContent = text;
  if (kind !== undefined) element.className = kind;
}

function number(value, digits = 3) {
  return value === null || value === undefined ? "–" : value.toFixed(digits);
}

function count(value) {
  return value === null || value === undefined ? "–" : value.toLocaleString("en-US");
}

function bytes(value) {
  if (value === null || value === undefined) return "–";
  const units = ["B", "kB", "MB", "GB", "TB"];
  let unit = 0;
  while (value >= 1000 && unit < units.length - 1) { value /= 1000; unit += 1; }
  return `${unit ? value.toPrecision(3) : Math.round(value)} ${units[unit]}`;
}

function duration(seconds) {
  if (seconds === null || !isFinite(seconds)) return "–";
  const units = [[86400, "d"], [3600, "h"], [60, "min"]];
  for (const [size, name] of units) {
    if (seconds >= size) return `${(seconds / size).toFixed(seconds >= 10 * size ? 0 : 1)} ${name}`;
  }
  return `${Math.round(seconds)} s`;
}

function median(values) {
  if (!values.length) return null;
  const sorted = [...values].sort((a, b) => a - b);
  return sorted[Math.floor(sorted.length / 2)];
}

function cell(row, text, kind) {
  const element = row.insertCell();
  element.textContent = text;
  if (kind) element.className = kind;
  return element;
}

function node(row, name, peer) {
  const element = row.insertCell();
  const short = peer.slice(0, 8);
  if (name && name !== short) element.append(`${name} `);
  const id = document.createElement("span");
  id.className = "id";
  id.textContent = short;
  element.append(id);
}

function rows(id) {
  const body = document.createElement("tbody");
  document.querySelector(`#${id} tbody`).replaceWith(body);
  return body;
}

async function ask(path) {
  const reply = await fetch(path, { cache: "no-store" });
  if (!reply.ok) throw new Error(`${path}: ${reply.status}`);
  return reply.json();
}

function showRun(run) {
  document.title = `${run.name} · Lockstep`;
  put("name", run.name);
  put("run-id", run.run_id.slice(0, 8));
  put("size", run.parameters ? `${run.model}, ${count(run.parameters)} parameters` : run.model);
  put("join", run.join);
}

const PHASES = { computing: "training", exchanging: "training" };

const ADMISSION = {
  token: "This run takes nodes with a token: ask its operator for one, and add --token TOKEN.",
  list: "This run takes only nodes on its operator's list: ask the operator to allow yours.",
};

function showJoinNote(status) {
  const alone = state.run.only_this_machine
    ? "Only this machine can reach that address: start the coordinator with --listen 0.0.0.0:50700 for others."
    : state.run.own_address
      ? "That is this machine's own address: if others reach it by another, start the coordinator with --advertise HOST."
      : "";
  const over = status.finished ? "This run is finished: whoever joins now is told where its model is." : "";
  put("join-note", [over, alone, ADMISSION[status.operator.admission]].filter(Boolean).join(" "));
}

function showWords(id, words) {
  document.getElementById(id).replaceChildren(...[...words].reverse().map((each) => {
    const item = document.createElement("li");
    item.textContent = `${new Date(1000 * each.given_s).toLocaleString()}: ${each.text}`;
    return item;
  }));
  document.getElementById(id).parentElement.hidden = !words.length;
}

function showStatus(status) {
  put("phase", PHASES[status.phase] || status.phase, `phase ${status.phase}`);
  const where = status.round < 0 ? "" : `Round ${count(status.round)}: `;
  put("reason", where + (status.reason || status.phase));
  const empty = status.round < 0;
  for (const section of document.querySelectorAll(".of-rounds")) section.hidden = empty;
  document.querySelector("main").className = status.phase === "waiting" ? "waiting" : "";
  const steps = status.steps;
  put("steps", `${count(steps.committed)} of ${count(steps.total)}, ${count(steps.skipped)} skipped`);
  document.getElementById("progress").value = steps.total ? steps.committed / steps.total : 0;
  put("loss", number(status.loss));
  const measured = status.validation;
  put("validation", measured.loss === null
    ? "not measured yet"
    : `${number(measured.loss)} after round ${count(measured.round)}`);
  put("validation-next", measured.next);
  put("members-count", count(status.members.length));
  const digests = status.digests;
  const own = status.consensus;
  if (own) {
    const apart = own.distance === null ? "not compared yet" : `${own.distance.toPrecision(3)} from their mean`;
    put("replicas", `own parameters, ${apart}`, own.distance === null ? "wait" : "good");
  } else if (!digests.rounds_checked) put("replicas", "not compared yet", "wait");
  else if (digests.agreed) put("replicas", `equal in ${count(digests.rounds_checked)} rounds`, "good");
  else put("replicas", `DIFFERENT in ${count(digests.rounds_disputed)} rounds`, "bad");
  const traffic = status.traffic;
  const dense = state.run && state.run.dense_bytes;
  const mean = traffic.payloads ? traffic.payload_bytes / traffic.payloads : null;
  put("traffic", mean && dense
    ? `${bytes(mean)} each; a dense gradient: ${bytes(dense)}`
    : bytes(traffic.payload_bytes));
  put("samples", `${count(status.data.samples_trained)} used, ${count(status.data.samples_lost)} not used`);
  put("pace", [status.pace.reason, status.pace.round].filter(Boolean).join("; "));
  showMembers(status.members, status.steps.committed);
  showJoinNote(status);
  showWords("notices", status.operator.notices);
  showWords("acts", status.operator.newest);
  showAudit(status.audit, new Map(status.members.map((member) => [member.peer_id, member.name])));
  showCheckpoints(status.checkpoint);
}

function showCheckpoints(checkpoint) {
  put("model", checkpoint.where || "No checkpoint is published yet.");
  put("model-next", checkpoint.next);
  const body = rows("checkpoints");
  for (const made of checkpoint.made) {
    const row = body.insertRow();
    cell(row, count(made.round), "number");
    cell(row, made.state_digest, "id");
    cell(row, bytes(made.bytes), "number");
    node(row, made.writer_name, made.writer);
    cell(row, made.confirmed_by ? made.confirmed_by.slice(0, 8) : "nobody else was there", "id");
  }
  document.getElementById("checkpoints").hidden = !checkpoint.made.length;
}

function showMembers(members, committed) {
  const body = rows("members");
  const speed = members.reduce((sum, member) => sum + member.samples_per_second, 0);
  for (const member of members) {
    const row = body.insertRow();
    node(row, member.name, member.peer_id);
    const bad = ["away", "held"].includes(member.state);
    const good = ["training", "announced", "ready"].includes(member.state);
    cell(row, member.state, bad ? "bad" : good ? "good" : "wait");
    cell(row, member.reason, "reason");
    cell(row, speed ? `${Math.round((100 * member.samples_per_second) / speed)} %` : "–", "number");
    cell(row, number(member.samples_per_second, 1), "number");
    cell(row, count(member.rounds_counted), "number");
    cell(row, count(member.strikes), "number");
    cell(row, number(member.loss), "number");
    cell(row, duration(member.member_seconds), "number");
  }
  document.getElementById("no-members").hidden = members.length > 0;
  put("no-members", committed ? "No member is here now." : "Nobody has joined yet.");
}

function showAudit(audit, names) {
  document.getElementById("audit").hidden = !audit.auditors.length && !audit.demoted.length;
  put("audit-alarm", audit.alarm, "bad");
  put("auditors", audit.auditors.map((each) => {
    const said = each.round === null ? "has not spoken yet" : `replayed up to round ${count(each.round)}`;
    return `Auditor ${each.peer_id.slice(0, 8)} ${said}${each.connected ? "" : ", is away"}.`;
  }).join(" "));
  const body = rows("demoted");
  for (const each of audit.demoted) {
    const row = body.insertRow();
    node(row, names.get(each.peer_id) || "", each.peer_id);
    cell(row, each.finding, "bad");
    cell(row, each.reason, "reason");
    cell(row, each.auditor.slice(0, 8), "id");
  }
  document.getElementById("demoted").hidden = !audit.demoted.length;
}

function showRounds(status) {
  const rounds = state.rounds;
  showLosses(rounds);
  const timed = rounds.filter((round) => round.seconds !== null);
  charts.time.draw([timed.map((each) => each.round), timed.map((each) => each.seconds),
    timed.map((each) => each.slot_seconds)]);
  const recent = timed.slice(-50);
  const measured = median(recent.map((each) => each.seconds));
  const slot = median(recent.map((each) => each.slot_seconds));
  put("round-time", measured === null ? "–" : `${number(measured, 1)} s of ${number(slot, 1)} s`);
  showEta(status, recent);
  showTimeline(rounds.slice(-BARS));
}

function showLosses(rounds) {
  const training = new Map(rounds.filter((each) => each.loss !== null)
    .map((each) => [each.round, each.loss]));
  const first = rounds.length ? rounds[0].round : 0;
  const validation = new Map(state.validation.filter((each) => each.round >= first)
    .map((each) => [each.round, each.loss]));
  const all = [...new Set([...training.keys(), ...validation.keys()])].sort((a, b) => a - b);
  const column = (losses) => all.map((round) => losses.get(round) ?? null);
  charts.loss.draw([all, column(training), column(validation)]);
}

function showEta(status, recent) {
  const committed = recent.filter((each) => each.outcome === "committed");
  const left = status.steps.total - status.steps.committed;
  if (status.finished) put("eta", "finished", "good");
  else if (["waiting", "paused"].includes(status.phase)) put("eta", status.phase, "wait");
  else if (committed.length < 2) put("eta", "–", "");
  else {
    const span = committed[committed.length - 1].decided_at - committed[0].decided_at;
    put("eta", duration((left * span) / (committed.length - 1)), "");
  }
}

function showTimeline(rounds) {
  const line = document.getElementById("timeline");
  const longest = Math.max(...rounds.map((round) => round.seconds || 0), 0.001);
  line.replaceChildren(...rounds.map((round) => {
    const bar = document.createElement("div");
    bar.className = `bar ${round.outcome}`;
    bar.style.height = `${Math.max(6, (100 * (round.seconds || 0)) / longest)}%`;
    const time = round.seconds === null ? "" : `, ${number(round.seconds, 1)} s`;
    const what = round.outcome === "committed" ? `${round.contributors} contributors` : round.reason;
    bar.title = `round ${round.round}: ${round.outcome}${time}; ${what}`;
    return bar;
  }));
  const skipped = rounds.filter((round) => round.outcome === "skipped").slice(-SKIPS).reverse();
  document.getElementById("skips").replaceChildren(...skipped.map((round) => {
    const item = document.createElement("li");
    item.textContent = round.reason;
    return item;
  }));
}

function showCredit(credit) {
  const body = rows("credit");
  for (const author of credit.authors) {
    const row = body.insertRow();
    node(row, author.name, author.peer_id);
    cell(row, count(author.samples), "number");
    cell(row, count(author.rounds), "number");
    cell(row, bytes(author.payload_bytes), "number");
  }
}

async function fetchRounds() {
  for (;;) {
    const { rounds } = await ask(`rounds.json?after=${state.newest}`);
    if (!rounds.length) return;
    state.rounds.push(...rounds);
    state.rounds = state.rounds.slice(-ROUNDS_KEPT);
    state.newest = rounds[rounds.length - 1].round;
  }
}

async function update() {
  const status = await ask("status.json");
  if (!state.run || state.run.run_id !== status.run_id) {
    state.run = await ask("run.json");
    state.rounds = [];
    state.newest = -1;
    state.validation = [];
    showRun(state.run);
  }
  await fetchRounds();
  const known = state.validation.at(-1);
  if (status.validation.round !== (known ? known.round : null)) {
    state.validation = (await ask("validation.json")).points;
  }
  showStatus(status);
  showRounds(status);
  if (state.asked % SELDOM === 0) showCredit(await ask("credit.json"));
  state.asked += 1;
}

async function live() {
  const away = document.getElementById("away");
  try {
    await update();
    away.hidden = true;
  } catch (error) {
    put("phase", "away", "phase away");
    away.textContent = "The coordinator does not answer; this page asks again every second.";
    away.hidden = false;
  }
  setTimeout(live, document.hidden ? 10 * EVERY_MS : EVERY_MS);
}

document.getElementById("copy").addEventListener("click", async () => {
  const text = document.getElementById("join").textContent;
  try {
    await navigator.clipboard.writeText(text);
    put("copy", "Copied");
  } catch {
    getSelection().selectAllChildren(document.getElementById("join"));
    put("copy", "Selected");
  }
  setTimeout(() => put("copy", "Copy"), 1500);
});

live();
