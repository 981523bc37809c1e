// The page of one task: the output of a command, or the conversation of an agent with its tools, children and changes.

import { dialog, go, openLink, query, setQuery } from "../app.js";
import { h, icon } from "../dom.js";
import { diffView } from "../diff-view.js";
import { LogView } from "../log-view.js";
import { download, errorText, get, post, runPath, taskPath } from "../net.js";
import { changed, isLive, latest, onMessage, store } from "../store.js";
import { baseName, bytes, cliLine, copyButton, duration, exactTime, money, number, path, sinceMs, stateBadge, stateIcon, title, viaText, visible, visibleText, when } from "../text.js";

const ACTIONS = { cancel: ["Cancel", "c"], restart: ["Restart", "r"], pause: ["Pause", "p"], unpause: ["Unpause", "p"], "run-now": ["Run now", "r"] };
const PAGE = 50;

/** @param {string} reference @param {string} wantedRun @returns {import("../app.js").View} */
export function taskView(reference, wantedRun) {
  /** @type {any} */
  let task = null;
  let problem = "";
  let actionProblem = "";
  let isBusy = "";
  /** @type {Record<string, any>} what the tabs have loaded */
  let loaded = {};
  let older = /** @type {number | null} */ (null);
  /** @type {any[]} */
  let talk = [];
  const open = new Set();
  /** @type {LogView | undefined} */
  let log;
  let reloading = 0;

  async function load() {
    try {
      task = await get(taskPath(reference));
      if (wantedRun || task.run_count > 1) loaded.runs = (await get(`${taskPath(task.task_id)}/runs`, { limit: 200 })).items;
      await loadTab();
    } catch (error) {
      problem = errorText(error);
    }
    changed();
  }

  async function loadTab() {
    const tab = current();
    const base = taskPath(task.task_id);
    if (tab === "conversation" || tab === "tools") {
      const answer = await get(`${base}/conversation`, { limit: PAGE });
      const kept = answer.items.length ? talk.filter((item) => item.n < answer.items[0].n) : [];
      if (!kept.length) older = answer.next;
      talk = [...kept, ...answer.items];
      loaded.talk = answer;
    } else if (tab === "changes") loaded.diff = await get(`${base}/diff`).catch((error) => (error.status === 404 ? { files: [] } : Promise.reject(error)));
    else if (tab === "events") loaded.events = (await get(`${base}/events`, { limit: 200 })).items;
    else if (tab === "why") loaded.why = await get(`${base}/why`);
    else if (tab === "children") loaded.children = (await get(`${base}/children`)).items;
    else if (tab === "artifacts") loaded.artifacts = (await get(`${runPath(run()?.run_id || task.task_id)}/artifacts`)).items;
    changed();
  }

  const tabs = () => {
    /** @type {[string, string, number?][]} */
    const all = task.type === "agent" ? [["conversation", "Conversation"], ["tools", "Tools"]] : [["output", "Output"]];
    if (task.type === "agent" && task.has_output) all.push(["output", "Output"]);
    if (task.changes) all.push(["changes", "Changes", task.changes.files]);
    if (task.children) all.push(["children", "Children", task.children]);
    if (task.details?.artifacts?.length) all.push(["artifacts", "Artifacts", task.details.artifacts.length]);
    if (task.run_count > 1) all.push(["runs", "Runs", task.run_count]);
    all.push(["details", "Details"], ["why", "Why"], ["events", "Events"]);
    return all;
  };
  const current = () => (tabs().some(([name]) => name === query("tab")) ? query("tab") : tabs()[0][0]);
  const run = () => {
    const runs = loaded.runs || [];
    return wantedRun ? runs.find((one) => String(one.n) === wantedRun) : null;
  };
  const row = () => ({ ...task, ...(latest(task.task_id) || {}) });

  async function act(verb, body = {}) {
    if (isBusy) return;
    [isBusy, actionProblem] = [verb, ""];
    changed();
    try {
      const answer = await post(`${taskPath(task.task_id)}/${verb}`, body);
      if (answer.task_id) store.rows.set(answer.task_id, answer);
      if (verb === "restart" && answer.task_id !== task.task_id) return go(path(answer.task_id));
      task = await get(taskPath(task.task_id));
    } catch (error) {
      actionProblem = errorText(error);
    } finally {
      isBusy = "";
      changed();
    }
  }

  const confirm = (verb) =>
    verb === "cancel" ? dialog("Cancel this task?", [h("p.break", null, ...visible(title(task))), cliLine(task.commands?.cancel || `backburner cancel ${task.task_id}`)], [["Cancel the task", () => act("cancel")]]) : act(verb);

  const stop = onMessage(({ event, data }) => {
    if (!task || (event !== "rows" && event !== "reset")) return;
    const all = data.tasks || [];
    const mine = all.find((other) => other.task_id === task.task_id);
    const child = all.some((other) => other.parent_task === task.task_id);
    const isUnknown = event === "reset" || data.later?.includes(task.task_id); // it may have changed
    if (!mine && !child && !isUnknown) return;
    const ended = mine && (mine.status !== task.status || mine.run_id !== task.run_id);
    if (!ended && !child && !isUnknown && task.type !== "agent") return;
    clearTimeout(reloading);
    reloading = setTimeout(async () => {
      task = await get(taskPath(task.task_id)).catch(() => task);
      await loadTab().catch(() => {});
    }, 300);
  });
  void load();

  return {
    title: () => (task ? title(task) : reference),
    wide: true,
    close: () => (stop(), log?.close(), clearTimeout(reloading)),
    moved: () => void (task && loadTab().catch((error) => ((problem = error.message), changed()))),
    draw: () => {
      if (problem && !task) return [h("div.panel.error", { role: "alert" }, h("p", null, ...visible(problem)), h("p", null, h("a", { href: "/" }, "Back to the board")))];
      if (!task) return [];
      const shown = current();
      return [
        head(),
        h("div.tabs", { role: "tablist", "aria-label": "Parts of this task" }, ...tabs().map(([name, label, count]) => h("button", { key: name, role: "tab", type: "button", id: `tab-${name}`, "aria-selected": String(name === shown), "aria-controls": "panel", tabindex: name === shown ? "0" : "-1", onclick: () => setQuery({ tab: name === tabs()[0][0] ? "" : name }), onkeydown: moveTab }, label, count ? h("span.num.muted", null, ` ${number(count)}`) : null))),
        h("div", { key: `panel-${shown}-${wantedRun}`, id: "panel", class: "tab-panel", role: "tabpanel", "aria-labelledby": `tab-${shown}` }, ...panel(shown)),
      ];
    },
    commands: () => [
      ...(task ? Object.entries(ACTIONS).filter(([verb]) => task.can?.includes(verb)).map(([verb, [label, keys]]) => ({ keys, label, run: () => void confirm(verb), cli: task.commands?.[verb] })) : []),
      { keys: "/", label: "Search in the output", run: () => log?.focusSearch() },
      { keys: "f", label: "Follow the end of the output", run: () => log?.toggleFollow() },
      { keys: "G, End", label: "End of the output", run: () => log?.end() },
      { keys: "g g, Home", label: "Start of the output", run: () => log?.start() },
      { keys: "]", label: "Next match", run: () => log?.nextHit() },
      { keys: "[", label: "Previous match", run: () => log?.previousHit() },
      { keys: "s", label: "Wrap long lines", run: () => log?.toggleWrap() },
      { keys: "L", label: "Copy a link to this line", run: () => log?.linkHere() },
      { keys: "o", label: "Output", run: () => setQuery({ tab: tabs()[0][0] === "output" ? "" : "output" }) },
      { keys: "d", label: "Changes", run: () => setQuery({ tab: "changes" }) },
      { keys: "w", label: "Why", run: () => setQuery({ tab: "why" }) },
      { keys: "e", label: "Events", run: () => setQuery({ tab: "events" }) },
      { keys: "y", label: "Copy the ID", run: () => void navigator.clipboard.writeText(task.task_id) },
      { keys: "Y", label: "Copy the command that shows this task", run: () => void navigator.clipboard.writeText(`backburner status ${task.task_id}`), cli: task && `backburner status ${task.task_id}` },
    ],
  };

  function moveTab(event) {
    const step = event.key === "ArrowRight" ? 1 : event.key === "ArrowLeft" ? -1 : 0;
    if (!step) return;
    const names = tabs().map(([name]) => name);
    const next = names[(names.indexOf(current()) + step + names.length) % names.length];
    setQuery({ tab: next === names[0] ? "" : next });
    requestAnimationFrame(() => requestAnimationFrame(() => document.getElementById(`tab-${next}`)?.focus()));
  }

  function head() {
    const now = row();
    const live = isLive(now);
    const one = run();
    const took = one ? (one.duration_seconds ?? 0) * 1000 : live ? sinceMs(now.started_at) : now.duration_seconds != null ? now.duration_seconds * 1000 : null;
    const facts = [
      took != null && now.started_at && h("span.num", null, duration(live ? Math.floor(took / 1000) * 1000 : took)),
      now.progress && live && h("span.num", null, ...visible(now.progress.text, true)),
      now.exit_code != null && h("span", null, `exit ${now.exit_code}`),
      live && now.pid && h("span.num", null, `pid ${now.pid}`),
      now.usage?.tokens ? h("span.num", null, `${number(now.usage.tokens)} tokens`) : null,
      now.usage?.cost != null && h("span.num", null, money(now.usage.cost), now.budget?.cost ? ` of ${money(now.budget.cost)}` : ""),
      ...(task.details?.ports || []).map((port) => h("a", { href: `http://localhost:${port}`, target: "_blank", rel: "noopener noreferrer" }, `:${port}`)),
      task.changes?.branch && h("code.cut", null, ...visible(task.changes.branch, true)),
      now.started_at ? h("span.muted", null, "started ", when(now.started_at)) : h("span.muted", null, "asked ", when(now.created_at)),
    ].filter(Boolean);
    const runs = (loaded.runs || []).filter((other) => other.n > 0);
    const verbs = Object.entries(ACTIONS).filter(([verb]) => task.can?.includes(verb));
    return h(
      "div.task-head",
      null,
      h("div.line", null, stateBadge(one ? { ...now, status: one.status, result: null } : now), h("span.where", null, ...visible(baseName(now.project), true), " · ", ...visible(now.client || "you", true)), h("span.facts-line", null, ...facts), h("span.grow", null), now.needs_you && h("a.button.primary", { href: `/ask/${encodeURIComponent(task.task_id)}` }, "Review"), ...verbs.map(([verb, [label, key]]) => h("button", { key: verb, type: "button", disabled: isBusy !== "" || store.connection !== "live", title: `${label}  ${key}`, class: verb === "cancel" ? "danger-text" : null, onclick: () => confirm(verb) }, label))),
      runs.length > 1 && h("label.run-choice.muted", null, "Run ", h("select", { "aria-label": "Run", value: wantedRun || String(runs[0].n), onchange: (event) => go(`${path(task.task_id)}/${event.target.value}`) }, ...runs.map((other) => h("option", { value: String(other.n), selected: String(other.n) === (wantedRun || String(runs[0].n)) }, `${other.n} of ${runs[0].n}: ${other.status}, ${exactTime(other.started_at)}`)))),
      sentence(now),
      actionProblem && h("p.problem", { role: "alert" }, icon("warning"), ...visible(actionProblem)),
    );
  }

  /** What a person should know about its state, in one line. */
  function sentence(now) {
    const text = now.result === "lost" ? now.error || "Its end was not observed. It was not started again." : task.details?.waits_for && isLive(now) ? task.details.waits_for : now.status === "pending" || now.status === "waiting" ? now.doing : now.status === "paused" ? now.paused_because : now.status === "failed" ? now.error || now.summary : now.notes?.length ? now.notes.join(" ") : "";
    return text ? h("p", { class: `sentence ${now.result === "lost" || now.status === "failed" ? "failed" : ""}` }, ...visible(text, true)) : null;
  }

  /** @returns {import("../dom.js").Child[]} */
  function panel(shown) {
    if (shown === "output") return [output()];
    if (shown === "conversation") return [conversation(), answerBox()];
    if (shown === "tools") return [toolList()];
    if (shown === "changes") return loaded.diff ? (loaded.diff.files.length ? [diffView(loaded.diff, open, changed)] : [hint("No changes.")]) : [];
    if (shown === "children") return loaded.children ? [h("ul.plain.rows", null, ...loaded.children.map(child))] : [];
    if (shown === "artifacts") return [h("ul.plain.rows", null, ...(loaded.artifacts || []).map((file) => h("li", null, h("span.mono.grow.cut", null, ...visible(file.name, true)), h("span.num.muted", null, bytes(file.size)), h("button.ghost", { type: "button", "aria-label": `Download ${visibleText(file.name)}`, onclick: () => download(`${runPath(run()?.run_id || task.task_id)}/artifacts/${encodeURIComponent(file.name)}`, baseName(file.name)) }, icon("download")))))];
    if (shown === "runs") return [h("ul.plain.rows", null, ...(loaded.runs || []).map(runRow))];
    if (shown === "why") return loaded.why ? [why(loaded.why)] : [];
    if (shown === "events") return [h("ol.plain.events", null, ...(loaded.events || []).map(eventRow))];
    return [details()];
  }

  function output() {
    const id = run()?.run_id || task.run_id;
    if (!id) return hint(task.doing || "It has not started, so there is no output.");
    return h("div.log", { key: `log-${id}`, mount: (element) => ((log = new LogView(element, { run: id, name: task.task_id, isLive: isLive(row()), empty: () => (isLive(row()) ? (row().status === "running" ? "No output yet." : "It has not started yet.") : "It wrote no output."), openLink })), () => ((log = log?.options.run === id ? undefined : log), undefined)) });
  }

  function conversation() {
    if (!loaded.talk) return null;
    return h(
      "div.talk",
      null,
      older !== null && h("p", null, h("button", { type: "button", onclick: loadOlder }, "Show earlier messages")),
      !talk.length && hint("It has said nothing yet."),
      ...talk.map((item) => message(item)),
      loaded.talk.doing && isLive(row()) ? h("p.doing-now", { key: "doing" }, stateIcon(row()), ...visible(loaded.talk.doing, true)) : null,
    );
  }

  async function loadOlder() {
    const answer = await get(`${taskPath(task.task_id)}/conversation`, { before: older, limit: PAGE });
    talk = [...answer.items, ...talk];
    older = answer.next;
    changed();
  }

  function message(item) {
    if (item.tool) return tool(item);
    const who = { you: "you", agent: task.agent && task.agent !== "default" ? task.agent : "agent", ask: "asks" }[item.who] || item.who;
    return h("div", { key: item.n, class: `message ${item.who}` }, h("div.who", null, item.who === "ask" && icon("asks"), visibleText(who), item.at ? when(item.at) : null), h("div.said.break", null, ...visible(item.text)));
  }

  function tool(item) {
    const { name, arguments: given, result, failed, task_id: started } = item.tool;
    return h("details.tool", { key: item.n }, h("summary", null, icon("right"), h("b", null, ...visible(name, true)), h("span.cut.grow.mono.muted", null, ...visible(item.text || given, true)), started && h("a", { href: path(started) }, "task"), failed ? h("span.badge.failed", null, icon("failed"), "failed") : null, item.at ? when(item.at) : null), given && h("pre", { tabindex: "0" }, ...visible(given)), result != null && result !== "" && h("pre", { tabindex: "0", class: "result" }, ...visible(result)));
  }

  function toolList() {
    const tools = talk.filter((item) => item.tool);
    return h("div.talk", null, older !== null && h("p", null, h("button", { type: "button", onclick: loadOlder }, "Show earlier calls")), !tools.length && loaded.talk && hint("It has called no tool yet."), ...tools.map(tool));
  }

  function answerBox() {
    if (!loaded.talk || !task.can?.includes("resume")) return null;
    return h("form.say", { onsubmit: (event) => { event.preventDefault(); const field = event.target.elements.message; const text = field.value.trim(); if (text) void act("resume", { message: text }).then(() => actionProblem || (field.value = "")); } }, h("textarea", { name: "message", rows: "2", "aria-label": "Message to the agent", placeholder: "Send another message…", onkeydown: (event) => event.key === "Enter" && !event.shiftKey && (event.preventDefault(), event.target.form.requestSubmit()) }), h("button.primary", { disabled: isBusy !== "" || store.connection !== "live" }, "Send"));
  }

  /** @param {any} found */
  function why(found) {
    const decided = { approved: "A person approved it", allowed: "A rule allowed it", asked: "The gate asked for approval" }[found.decision];
    return h(
      "div.why",
      null,
      h("p.big.break", null, ...visible(found.sentence)),
      found.do && cliLine(found.do),
      h("p.muted", null, decided, found.via ? ` via ${visibleText(viaText(found.via))} ` : " ", found.at ? when(found.at) : null, found.rule ? [" · rule ", h("code", null, ...visible(found.rule, true))] : null),
      h("ul", null, ...found.reasons.map((reason) => h("li", null, ...visible(reason, true)))),
    );
  }

  function details() {
    const now = row();
    const fact = (name, value) => (value == null || value === "" || value === false ? null : h("div", { key: name }, h("dt", null, name), h("dd.break", null, typeof value === "string" ? visible(value) : value)));
    const code = (value) => value && h("code.break", null, ...visible(value));
    return h(
      "dl.facts.details",
      null,
      fact("ID", h("span", null, h("code", null, now.task_id), " ", copyButton(now.task_id))),
      fact("command", code(now.line)),
      fact("prompt", now.prompt),
      fact("agent", now.agent),
      fact("directory", code(now.cwd)),
      fact("asked by", `${now.client || "you"}${now.session ? ` · ${now.session}` : ""}`),
      fact("approved", now.approved_by && h("span", null, `${now.approved_by === "auto" ? "automatically" : now.approved_by === "user" ? "by you" : `by ${visibleText(now.approved_by)}`} via ${visibleText(viaText(now.approved_via || ""))}, rule ${visibleText(now.rule || "none")} `, when(now.approved_at))),
      fact("reasons", now.reasons?.join("; ")),
      fact("sandbox", now.sandbox),
      fact("schedule", task.when && h("span", null, ...visible(task.when), ...(task.next_runs || []).slice(0, 5).map((time) => h("div.num.muted", null, exactTime(time))))),
      fact("started", exactTime(now.started_at)),
      fact("ended", exactTime(now.completed_at)),
      fact("batch", now.batch),
      fact("after", now.after?.length ? h("span", null, ...now.after.flatMap((id) => [h("a", { href: path(id) }, id), " "])) : null),
      fact("limits", Object.keys(now.limits || {}).length ? code(JSON.stringify(now.limits)) : null),
      fact("environment", Object.keys(task.env || {}).length ? h("ul.plain", null, ...Object.entries(task.env).map(([name, value]) => h("li", null, code(`${name}=${value}`)))) : null),
      fact("restarted from", now.restarted_from && h("a", { href: path(now.restarted_from) }, now.restarted_from)),
      fact("folder", task.folder && h("span", null, code(task.folder), " ", copyButton(task.folder))),
      fact("in the terminal", h("div", null, cliLine(`backburner status ${now.task_id}`), cliLine(`backburner logs ${now.task_id}`))),
    );
  }

  function runRow(one) {
    return h("li", { key: one.run_id }, stateIcon(one), h("span.num", null, one.n > 0 ? h("a", { href: `${path(task.task_id)}/${one.n}` }, `run ${one.n}`) : "slot"), h("span.cut.grow.muted", null, ...visible(one.error || one.result || one.cause, true)), h("span.num.muted", null, one.duration_seconds != null ? duration(one.duration_seconds * 1000) : ""), when(one.started_at || one.slot));
  }

  function eventRow(event) {
    const data = Object.entries(event.data || {}).filter(([, value]) => value != null && value !== "").map(([name, value]) => `${name}: ${typeof value === "string" ? value : JSON.stringify(value)}`).join(" · ");
    return h("li", { key: event.event_id }, h("time.num.muted", { datetime: event.at }, exactTime(event.at)), h("b", null, event.kind.replaceAll("_", " ")), h("span.muted.break", null, ...visible(data, true)));
  }

  function child(other) {
    const now = latest(other.task_id) || other;
    return h("li", { key: now.task_id }, stateIcon(now), h("a.grow.cut", { href: path(now.task_id) }, ...visible(title(now), true)), h("span.muted.cut", null, ...visible(now.doing || "", true)), h("span.num.muted", null, now.duration_seconds != null ? duration(now.duration_seconds * 1000) : ""));
  }
}

const hint = (text) => h("p.hint.empty", null, text);
