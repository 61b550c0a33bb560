"use strict";
/* What the operator's page has besides: members and why they count or not, times of rounds, audit,
   the operator's own words. */

const ROUNDS_KEPT = 5000;
const BARS = 120;
const SKIPS = 5;
const MEMBERS = 200;

const own = { facts: null, run_id: null, rounds: [], newest: -1 };
const times = lineChart(element("time-chart"), [
  { label: "measured", color: "--accent" },
  { label: "slot", color: "--wait", dash: [4, 4] },
]);

async function fetchRounds() {
  for (;;) {
    const { rounds } = await ask(`rounds.json?after=${own.newest}`);
    if (!rounds.length) return;
    own.rounds = [...own.rounds, ...rounds].slice(-ROUNDS_KEPT);
    own.newest = rounds.at(-1).round;
  }
}

async function operate(run) {
  if (own.run_id !== run.run_id) {
    Object.assign(own, { facts: await ask("operator.json"), run_id: run.run_id, rounds: [], newest: -1 });
  }
  const status = await ask("status.json");
  await fetchRounds();
  run.join = own.facts.join;
  run.join_note = own.facts.only_this_machine
    ? "Only this machine can reach that address: start the coordinator with --listen 0.0.0.0:50700 for others."
    : own.facts.own_address
      ? "That is this machine's own address: if others reach it by another, start the coordinator with --advertise HOST."
      : "";
  const named = run.phase !== "training" || status.reason.includes(`round ${run.round}`);
  if (status.reason) run.doing = `${named ? "" : `Round ${count(run.round)}: `}${sentence(status.reason)}`;
  if (status.audit.alarm) state.problems = [{ kind: "bad", text: sentence(status.audit.alarm) }];
  else state.problems = [];
  put("pace", [status.pace.reason, status.pace.round].filter(Boolean).join("; "));
  showMembers(status.members, run.steps.committed);
  showAudit(status.audit, new Map(status.members.map((member) => [member.peer_id, member.name])));
  showWords("notices", status.operator.notices);
  showWords("acts", status.operator.newest);
  put("validation-next", status.validation.next);
  put("model-where", status.checkpoint.where);
  put("model-next", status.checkpoint.next);
  const { notices, newest } = status.operator;
  show("own", [status.validation.next, status.checkpoint.where, status.checkpoint.next, ...notices, ...newest].some(Boolean));
  showSums(status);
  showRounds();
}

function sentence(text) {
  return `${text.charAt(0).toUpperCase()}${text.slice(1)}${/[.!?]$/.test(text) ? "" : "."}`;
}

function showSums({ data, traffic }) {
  const back = data.samples_left_out - data.samples_lost;
  put("samples", ["Samples:", [`${count(data.samples_trained)} used`, back && `${count(back)} given back`,
    data.samples_lost && `${count(data.samples_lost)} lost`].filter(Boolean).join(", ")].join(" "));
  const mean = traffic.payloads ? traffic.payload_bytes / traffic.payloads : null;
  const dense = own.facts.dense_bytes;
  put("traffic", mean === null ? "" :
    `Payloads: ${bytes(traffic.payload_bytes)}, ${bytes(mean)} each${dense ? `; a dense gradient has ${bytes(dense)}` : ""}.`);
}

function showWords(id, words) {
  element(id).replaceChildren(...[...words].reverse().map((each) => {
    const item = document.createElement("li");
    item.textContent = `${new Date(1000 * each.given_s).toLocaleString()}: ${each.text}`;
    return item;
  }));
  element(id).parentElement.hidden = !words.length;
}

const URGENCY = ["away", "held", "muted", "catching up"];

function showMembers(members, committed) {
  const body = rows("members");
  const speed = members.reduce((sum, member) => sum + member.samples_per_second, 0);
  const rank = (member) => (URGENCY.indexOf(member.state) + 1) || URGENCY.length + 1;
  const sorted = [...members].sort((a, b) => rank(a) - rank(b) || b.rounds_counted - a.rounds_counted);
  for (const member of sorted.slice(0, MEMBERS)) {
    const row = body.insertRow();
    nameIn(cell(row, "", "name"), member.name, member.peer_id);
    const bad = ["away", "held"].includes(member.state);
    const good = ["training", "announced", "ready"].includes(member.state);
    cell(row, member.state, bad ? "bad" : good ? "good" : "wait", "state");
    cell(row, member.remark || member.reason, "reason");
    cell(row, member.standing || "–", "", "standing");
    cell(row, speed ? percent(member.samples_per_second / speed) : "–", "number", "share");
    cell(row, number(member.samples_per_second, 1), "number", "samples/s");
    cell(row, count(member.rounds_counted), "number", "counted");
    cell(row, count(member.strikes), "number", "strikes");
    cell(row, number(member.loss), "number", "loss");
    cell(row, duration(member.member_seconds), "number", "online");
  }
  const rest = members.length - MEMBERS;
  show("members", members.length > 0);
  show("no-members", rest > 0 || !members.length);
  put("no-members", rest > 0 ? `${things(rest, "further member")}: see lockstep run members.`
    : committed ? "No member is here now." : "Nobody has joined yet.");
}

function showAudit(audit, names) {
  show("audit", audit.auditors.length + audit.demoted.length > 0);
  put("auditors", audit.auditors.map((each) => {
    const said = each.round === null ? "has not spoken yet" : `replayed up to round ${count(each.round)}`;
    return `Auditor ${each.peer_id.slice(0, 8)} ${said}${each.connected ? "" : ", is away"}.`;
  }).join(" "));
  const body = rows("demoted");
  for (const each of audit.demoted) {
    const row = body.insertRow();
    nameIn(cell(row, "", "name"), names.get(each.peer_id) || "", each.peer_id);
    cell(row, each.finding, "bad", "found");
    cell(row, each.reason, "reason");
    cell(row, each.auditor.slice(0, 8), "id", "by auditor");
  }
  show("demoted", audit.demoted.length > 0);
}

function showRounds() {
  for (const section of document.querySelectorAll(".of-rounds")) section.hidden = !own.rounds.length;
  const timed = own.rounds.filter((round) => round.seconds !== null);
  times.draw([timed.map((each) => each.round), timed.map((each) => each.seconds),
    timed.map((each) => each.slot_seconds)]);
  showTimeline(own.rounds.slice(-BARS));
}

function showTimeline(rounds) {
  const longest = Math.max(...rounds.map((round) => round.seconds || 0), 0.001);
  element("timeline").replaceChildren(...rounds.map((round) => {
    const bar = document.createElement("div");
    bar.className = `bar ${round.outcome}`;
    bar.style.height = `${Math.max(6, (100 * (round.seconds || 0)) / longest)}%`;
    const time = round.seconds === null ? "" : `, ${number(round.seconds, 1)} s`;
    const what = round.outcome === "committed" ? things(round.contributors, "contributor") : round.reason;
    bar.title = `round ${round.round}: ${round.outcome}${time}; ${what}`;
    return bar;
  }));
  const skipped = rounds.filter((round) => round.outcome === "skipped").slice(-SKIPS).reverse();
  element("skips").replaceChildren(...skipped.map((round) => {
    const item = document.createElement("li");
    item.textContent = round.reason;
    return item;
  }));
}

extras.push(operate);
