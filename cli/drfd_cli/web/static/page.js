// The views: machine and shares, queue, history, one job. The address after # says which
// is shown.
"use strict";

const VIEWS = ["machine", "queue", "history"];

let snapshot = null;
// The tables of the queue.
let queue = null;
let shown = "";
let jobTimer = 0;
// The last request of the views of a job and of history: an answer to an earlier one is dropped.
let asked = 0;
// What drf why tells of the job that is shown, and when it told it.
let explained = null;
let explainedAt = -Infinity;
let after = null;
let ended = [];

async function ask(path) {
  const reply = await fetch(path, { cache: "no-store" });
  const answer = await reply.text().then(read).catch(() => ({ error: "no entry: open the link that drf web printed" }));
  if (!reply.ok) throw new Error(answer.error ?? `the server answers ${reply.status}`);
  return answer;
}

function say(text, isBad) {
  setText(byId("state"), text);
  byId("state").className = isBad ? "bad" : "";
}

// -- the machine ----------------------------------------------------------------------------------

function bar(parent, key, name, told, parts) {
  let made = [...parent.children].find((each) => each.dataset.key === key);
  if (!made) {
    made = element("div", undefined, "bar");
    made.dataset.key = key;
    const picture = svg("svg", { viewBox: "0 0 100 10", preserveAspectRatio: "none", "aria-hidden": "true" });
    for (const className of ["outside-fill", "held-fill", "used-fill"]) picture.append(svg("rect", { class: className, y: 0, height: 10 }));
    made.append(element("b", name), element("span"), picture);
    parent.append(made);
  }
  setText(made.querySelector("span"), clean(told));
  const [outside, held, used] = parts.map((part) => Math.max(0, Math.min(1, part || 0)) * 100);
  const rects = made.querySelectorAll("rect");
  const place = (rect, x, width) => (rect.setAttribute("x", x), rect.setAttribute("width", width));
  place(rects[1], 0, held);
  place(rects[2], 0, used);
  place(rects[0], 100 - outside, outside);
  return made;
}

function topNodes(nodes) {
  return nodes.filter((node) => node.path.split(".").length === 2);
}

function showMachine() {
  const { capacity, external, nodes, pressure } = snapshot;
  const top = topNodes(nodes);
  const used = (name) => top.reduce((sum, node) => sum + (node.used?.[name] ?? 0), 0);
  const held = (name) => top.reduce((sum, node) => sum + (node.usage?.[name] ?? 0), 0);
  for (const [name, all] of amounts(capacity)) {
    const [title, show] = resource(name);
    const outside = external?.[name] ?? 0;
    const told = `${show(used(name))} used, ${show(held(name))} of ${show(all)} allocated` + (outside ? `, ${show(outside)} outside` : "");
    bar(byId("bars"), name, title, told, [outside / all, held(name) / all, used(name) / all]);
  }
  for (const [name, all] of Object.entries(capacity.gres ?? {})) {
    const given = top.reduce((sum, node) => sum + (node.usage?.gres?.[name] ?? 0), 0);
    bar(byId("bars"), `gres ${name}`, clean(name), `${given} of ${all} allocated`, [0, all ? given / all : 0, 0]);
  }
  const waits = Object.entries(pressure ?? {}).map(([name, each]) => `${name} ${each.some == null ? "–" : Math.round(each.some)} %`);
  setText(byId("pressure"), waits.length ? `Time in which a process waited for it, of the last ten seconds: ${waits.join(", ")}.` : "");
  const notices = [...(snapshot.drain ? [snapshot.drain.text ?? "no job starts: launching is stopped"] : snapshot.draining ? ["no job starts: launching is stopped"] : []), ...(snapshot.notices ?? []).map((each) => each.text)];
  const list = byId("notices");
  if (list.dataset.text !== notices.join("\n")) {
    list.dataset.text = notices.join("\n");
    list.replaceChildren(...notices.map((text) => element("li", text)));
  }
  list.hidden = notices.length === 0;
}

function showShares() {
  const { nodes } = snapshot;
  const inner = new Set(nodes.map((node) => node.path.slice(0, node.path.lastIndexOf("."))));
  const leaves = nodes.filter((node) => node.path !== "root" && !inner.has(node.path) && (node.dominant_share || node.running || node.pending));
  leaves.sort((one, other) => other.dominant_share - one.dominant_share || (one.path < other.path ? -1 : 1));
  const parent = byId("shares");
  const kept = new Set(leaves.map((node) => node.path));
  for (const each of [...parent.children]) if (!kept.has(each.dataset.key)) each.remove();
  leaves.forEach((node, at) => {
    const of = node.dominant_resource ? ` of ${node.dominant_resource}` : "";
    const told = `${percent(node.dominant_share)}${of}; entitled to ${percent(node.entitlement)}; ${node.running} running, ${node.pending} waiting`;
    const name = node.path.replace(/^root\./, "").replaceAll("%2E", ".").replaceAll("%25", "%");
    const made = bar(parent, node.path, name, told, [0, node.entitlement, node.dominant_share]);
    if (parent.children[at] !== made) parent.insertBefore(made, parent.children[at]);
  });
  byId("no-shares").hidden = leaves.length > 0;
}

// -- the queue ------------------------------------------------------------------------------------

// Show a table of jobs: each row has the label, by what its page is asked for, and cells.
function showJobs(id, heads, rows) {
  fillTable(byId(id), [
    ["JOB", "id", ([label, ref]) => ({ text: label, href: `#job/${encodeURIComponent(ref)}` })],
    ...heads.map(([heading, className], at) => [heading, className, (row) => ({ text: shorten(row[at + 2][0], 400), mark: row[at + 2][1] })]),
  ], rows, ([label]) => label);
}

function showQueue() {
  const { running, waiting, more } = queue;
  showJobs("running", running.heads, running.rows);
  byId("no-running").hidden = running.rows.length > 0;
  showJobs("waiting", waiting.heads, waiting.rows);
  byId("no-waiting").hidden = waiting.rows.length > 0;
  byId("more").hidden = more <= 0;
  setText(byId("more"), `${more} more wait; drf status lists all.`);
}

function forecast(row) {
  const certainty = row.expected_start_certainty;
  if (row.expected_start_at == null) return row.expected_start_unknown ? `unknown: ${row.expected_start_unknown}` : certainty ? "unknown" : "–";
  return `${certainty === "limits" ? "by" : "about"} ${moment(row.expected_start_at)}`;
}

// -- history --------------------------------------------------------------------------------------

async function showHistory(isMore) {
  const mine = ++asked;
  const query = new URLSearchParams();
  if (byId("everybody").checked) query.set("everybody", "1");
  if (isMore && after) {
    query.set("at", after[0]);
    query.set("id", after[1]);
  }
  try {
    const page = await ask(`history?${query}`);
    if (mine !== asked || shown !== "history") return;
    ended = isMore ? [...ended, ...page.rows] : page.rows;
    after = page.after;
    showJobs("ended", page.heads, ended);
    setText(byId("ended-note"), ended.length ? "" : "No job has ended.");
    byId("earlier").hidden = after == null;
  } catch (error) {
    setText(byId("ended-note"), clean(error.message));
  }
}

// -- a job ----------------------------------------------------------------------------------------

async function showJob(ref) {
  const mine = ++asked;
  clearTimeout(jobTimer);
  try {
    // The explanation costs the daemon some work, so it is asked for seldom.
    const isDue = performance.now() - explainedAt > 15000;
    const found = await ask(`jobs/${encodeURIComponent(ref)}${isDue ? "?why=1" : ""}`);
    if (mine !== asked) return;
    if (isDue) [explained, explainedAt] = [found.why, performance.now()];
    setText(byId("job-note"), "");
    drawJob(ref, found);
    const job = found.show.job;
    if (!job || job.outcome == null) jobTimer = setTimeout(() => (document.hidden ? (jobTimer = 0) : showJob(ref)), 3000);
  } catch (error) {
    if (mine !== asked) return;
    setText(byId("job-note"), clean(error.message));
    jobTimer = setTimeout(() => showJob(ref), 10000);
  }
}

function part(key, heading, name) {
  const parent = byId("job");
  let made = [...parent.children].find((each) => each.dataset.key === key);
  if (!made) {
    made = element("section");
    made.dataset.key = key;
    if (heading) made.append(element("h3", heading));
    made.append(element(name));
    parent.append(made);
  }
  return made.lastElementChild;
}

function drawJob(ref, found) {
  const { show } = found;
  const job = show.job ?? show.array;
  setText(byId("h-job"), `Job ${clean(ref)}: ${shorten(job.name, 120)}`);
  document.title = `job ${clean(ref)} · drfd`;
  const list = part("facts", "", "dl");
  if (show.array) {
    fillList(list, [["user", job.user], ["tasks", `${job.tasks}: ${job.array_tasks}`],
      ...Object.entries(job.counts).map(([state, count]) => [state.toLowerCase(), String(count)]),
      ["command", job.argv ? shorten(job.argv.join(" "), 1000) : ""]]);
  } else {
    const reason = job.outcome?.text ?? job.reason?.text ?? "";
    fillList(list, [
      ["state", job.state.toLowerCase().replaceAll("_", " ")], ["why", reason],
      ["expected start", job.outcome == null && job.started_at == null ? forecast(explained?.job ?? job) : ""],
      ...(job.outcome == null ? [] : (explained?.notes ?? []).map((note) => ["", note])),
      ["next time", job.outcome != null && explained?.advice?.options?.length ? `drf submit ${explained.advice.options.join(" ")}` : ""],
      ["user", job.user], ["pool", job.pool.replace(/^root\./, "")], ["asks for", demand(job.demand)],
      ["time limit", job.time_limit_s ? duration(job.time_limit_s) : "none"],
      ["submitted", moment(job.submitted_at)], ["started", job.started_at == null ? "" : moment(job.started_at)],
      ["ended", job.ended_at == null ? "" : moment(job.ended_at)],
      ["command", job.argv ? shorten(job.argv.join(" "), 1000) : ""], ["directory", job.cwd ?? ""],
    ]);
  }
  const curve = show.curve;
  if (curve && curve.at.length > 1) {
    const curves = part("curves", "Use over time", "div");
    curves.className = "curves";
    for (const [name, values] of Object.entries(curve)) {
      if (!(name in job.demand)) continue;
      const [title, tell] = resource(name);
      const most = Math.max(job.demand[name] || 0, ...values.map((value) => value ?? 0));
      if (!most) continue;
      const limit = job.demand[name] ? `; the dashed line is what it asked for: ${tell(job.demand[name])}` : "";
      const last = values.findLast((value) => value != null);
      figure(curves, name, title, `${tell(last)} at the end of ${duration(curve.at[curve.at.length - 1] - curve.at[0])}${limit}`, curve.at,
        [["bound", values.map(() => job.demand[name] || null)], ["curve", values]], most * 1.05);
    }
  }
  for (const [key, heading] of [["output", "Output"], ["errors", "Errors"]]) {
    if (!found[key]) continue;
    const pre = part(key, `${heading}, the end`, "pre");
    pre.tabIndex = 0;
    pre.setAttribute("role", "region");
    pre.setAttribute("aria-label", `${heading} of the job, the end`);
    const isAtEnd = pre.scrollHeight - pre.scrollTop - pre.clientHeight < 8;
    const text = found[key].lines.length ? found[key].lines.map(clean).join("\n") : `(${clean(found[key].note)})`;
    if (pre.textContent !== text) {
      pre.textContent = text;
      if (isAtEnd) pre.scrollTop = pre.scrollHeight;
    }
  }
  const events = part("events", "Events", "ol");
  events.className = "events";
  if (events.children.length !== show.events.length) {
    events.replaceChildren(...show.events.map((event) => {
      const line = element("li");
      line.append(element("time", moment(event.at)), ` ${clean(event.event)} ${shorten(event.text, 400)}`);
      return line;
    }));
  }
}

// -- which view -----------------------------------------------------------------------------------

function route(isByUser) {
  const [view, ref] = location.hash.slice(1).split("/");
  const next = VIEWS.includes(view) ? view : view === "job" && ref ? "job" : "machine";
  shown = next;
  asked += 1;
  clearTimeout(jobTimer);
  for (const each of [...VIEWS, "job"]) byId(`view-${each}`).hidden = each !== next;
  for (const link of document.querySelectorAll("nav a")) {
    if (link.getAttribute("href") === `#${next}`) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  document.title = `${next} · ${snapshot ? clean(snapshot.host) : "drfd"}`;
  if (next === "job") {
    byId("job").replaceChildren();
    [explained, explainedAt] = [null, -Infinity];
    let name = ref;
    try { name = decodeURIComponent(ref); } catch { /* as it is written */ }
    setText(byId("h-job"), `Job ${clean(name)}`);
    if (isByUser) byId("h-job").focus();
    showJob(name);
  }
  if (next === "history") showHistory(false);
  if (snapshot) draw();
}

function draw() {
  setText(byId("host"), clean(snapshot.host));
  setText(byId("user"), `as ${clean(snapshot.user)}`);
  showMachine();
  showShares();
  if (shown === "queue") showQueue();
}

const clock = (seconds) => new Date(seconds * 1000).toLocaleTimeString([], { hour12: false });

function listen() {
  const source = new EventSource("events");
  source.onmessage = (message) => {
    const news = read(message.data);
    snapshot = news.snapshot;
    queue = news;
    if (news.away) say("the daemon is away; trying again", true);
    else if (news.silent) say(`no word from the daemon since ${clock(snapshot.at)}`, true);
    else say(`live, ${clock(snapshot.at)}`, false);
    draw();
  };
  source.onerror = () => {
    say(source.readyState === EventSource.CLOSED ? "no connection: open the link that drf web printed" : "connection lost; trying again", true);
    if (source.readyState === EventSource.CLOSED) setTimeout(listen, 10000);
  };
}

window.addEventListener("hashchange", () => route(true));
document.addEventListener("visibilitychange", () => {
  if (!document.hidden && shown === "job" && !jobTimer) route(false);
});
byId("skip").addEventListener("click", (event) => {
  // The address names the view, so it must stay.
  event.preventDefault();
  byId("content").focus();
});
byId("everybody").addEventListener("change", () => showHistory(false));
byId("earlier").addEventListener("click", () => showHistory(true));
route(false);
listen();
