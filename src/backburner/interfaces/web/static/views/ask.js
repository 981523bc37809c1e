// Ask: the approval card. It shows exactly what would run and why it needs approval. Approving takes a passkey whose challenge is the hash
// of what this card shows; without one the card shows the command for the terminal.

import { go, openLink } from "../app.js";
import { find, h, icon } from "../dom.js";
import { LogView } from "../log-view.js";
import { ApiError, errorText, get, post, signed, taskPath } from "../net.js";
import { changed, isLive, latest, onMessage, store, waitingForYou } from "../store.js";
import { announce, baseName, cliLine, exactTime, money, number, path, stateBadge, viaText, visible, visibleText, when } from "../text.js";

const PAUSE_AFTER_CHANGE = 1000; // milliseconds; a second click must not hit the new card
const CHOICES = { once: "Approve", always: "Always allow this command here", trust: "Trust this project" };
/** @type {Record<string, string>} what the gate calls an effect, in words */
const EFFECTS = {
  project_code: "runs the project's code",
  network_read: "reads from the network",
  network_change: "changes something over the network",
  reads_outside: "reads files outside the project",
  reads_secrets: "reads secrets",
  overwrites: "overwrites files",
  writes_outside: "writes files outside the project",
  deletes: "deletes files",
  privilege: "gets more privileges",
  interpreter: "runs code that is given to an interpreter",
  installs: "installs or downloads packages",
  publishes: "sends your work to another machine",
  creates: "creates files",
  processes: "ends or changes other processes",
  injection: "runs text as a command",
  unknown: "may do anything: the command is unknown",
  unreadable: "cannot be read: what would run is not known",
  edits: "changes or deletes files of the project",
  protected: "changes files that other programs use automatically",
  repository: "changes the git folder",
  discards: "can discard work that was not committed",
  reads_machine: "shows processes and ports of this machine",
  reads_service: "reads from a service with your credentials",
  loopback: "connects to a port of this machine",
  listens: "waits for connections",
};
const CHOICE_TEXTS = {
  always: "Approves it now, and from now on whenever exactly this command is asked for in this directory.",
  trust: "Approves it now, and lets the code of this project run without approval from now on.",
};

/** @param {string} wanted @returns {import("../app.js").View} */
export function askView(wanted) {
  let id = wanted;
  /** @type {any} */
  let card = null;
  /** @type {any} the card before something changed */
  let before = null;
  let problem = "";
  let reason = "";
  let isBusy = false;
  let disabledUntil = 0;
  let loadedStatus = "";
  /** @type {LogView | undefined} */
  let log;

  async function load() {
    const asked = id;
    if (!asked) return;
    try {
      const answer = await get(`${taskPath(asked)}/question`);
      if (asked !== id) return;
      if (card?.open && answer.open && card.seen !== answer.seen) {
        before = card;
        disabledUntil = Date.now() + PAUSE_AFTER_CHANGE;
        setTimeout(changed, PAUSE_AFTER_CHANGE + 50);
        announce("What would run has changed. Read it again.", true);
      }
      card = answer;
      loadedStatus = statusOf(answer.task);
    } catch (error) {
      problem = errorText(error);
    }
    changed();
  }

  /** @param {"once" | "always" | "trust"} choice */
  async function approve(choice) {
    if (isBusy || !canPress()) return;
    isBusy = true;
    problem = "";
    changed();
    try {
      const challenge = await post(`${taskPath(card.task.task_id)}/challenge`, { seen: card.seen, choice });
      await checkChallenge(challenge, card, choice);
      const row = await post(`${taskPath(card.task.task_id)}/approve`, { ...(await signed(challenge)), seen: card.seen, choice });
      store.rows.set(row.task_id, row);
      announce("Approved.");
    } catch (error) {
      const isChanged = error instanceof ApiError && error.code === "question_changed";
      problem = error instanceof DOMException ? "The passkey was not used. Nothing was approved." : isChanged ? "What would run has changed since you looked. Nothing was approved." : errorText(error);
    }
    await load();
    isBusy = false;
    changed();
  }

  async function reject() {
    if (isBusy) return;
    isBusy = true;
    problem = "";
    changed();
    try {
      const row = await post(`${taskPath(card.task.task_id)}/reject`, reason.trim() ? { reason: reason.trim() } : {});
      store.rows.set(row.task_id, row);
      announce("Rejected.");
    } catch (error) {
      problem = errorText(error);
    }
    await load();
    isBusy = false;
    changed();
  }

  const canPress = () => store.connection === "live" && Date.now() >= disabledUntil && !isBusy;
  const stop = onMessage(({ event, data }) => {
    if (!id) return;
    const row = event === "rows" ? data.tasks?.find((row) => row.task_id === card?.task.task_id) : event === "ask" ? data.task : null;
    if (row && row.task_id === card?.task.task_id && statusOf(row) !== loadedStatus && !isBusy) void load();
  });
  if (id) void load();

  return {
    title: () => "Ask",
    close: () => (stop(), log?.close()),
    draw: () => {
      const waiting = waitingForYou();
      if (!id && waiting.length) {
        id = waiting[0].task_id;
        void load();
      }
      if (!id) return [h("div.panel.welcome", null, icon("done"), h("p.big", null, "Nothing waits for you."), h("p", null, "What needs your approval appears here, from every agent client on this machine."))];
      const at = waiting.findIndex((row) => row.task_id === card?.task.task_id);
      return [
        h(
          "div.ask-head",
          null,
          h("span.muted.num", null, at >= 0 && waiting.length > 1 ? `${at + 1} of ${waiting.length}` : ""),
          ...(waiting.length > 1 || (at < 0 && waiting.length) ? [button("Previous", -1), button("Next", 1)] : []),
        ),
        problem && !card ? h("div.panel.error", { role: "alert" }, problem) : card && drawCard(),
      ];
    },
    commands: () => [
      ...(card?.open && card.level === "passkey" ? [{ keys: "a", label: "Select Approve; Enter approves", run: () => find("#approve")?.focus(), cli: card.terminal }] : []),
      ...(card?.open ? [{ keys: "n", label: "Select Reject; Enter rejects", run: () => find("#reject")?.focus(), cli: `backburner reject ${id}` }] : []),
      { keys: "j, ArrowRight", label: "Next question", run: () => step(1) },
      { keys: "k, ArrowLeft", label: "Previous question", run: () => step(-1) },
      { keys: "y", label: "Copy the ID", run: () => void navigator.clipboard.writeText(id) },
      ...(card?.terminal ? [{ keys: "Y", label: "Copy the command that approves it in a terminal", run: () => void navigator.clipboard.writeText(card.terminal), cli: card.terminal }] : []),
    ],
  };

  function step(by) {
    const waiting = waitingForYou();
    if (!waiting.length) return;
    const at = waiting.findIndex((row) => row.task_id === card?.task.task_id);
    const next = waiting[(at + by + waiting.length) % waiting.length];
    if (next.task_id !== card?.task.task_id) go(`/ask/${encodeURIComponent(next.task_id)}`);
  }

  function button(label, by) {
    return h("button.ghost", { type: "button", onclick: () => step(by) }, label);
  }

  function drawCard() {
    const isCommand = Boolean(card.line) && card.kind !== "budget";
    return h(
      "article",
      { class: `card${card.open ? " open" : ""}`, "aria-label": visibleText(card.title) },
      h(
        "header",
        null,
        h("h2", null, ...visible(card.title, true)),
        h("p.muted", null, card.git ? h("span", null, "branch ", h("code", null, ...visible(card.git.branch, true)), card.git.changed ? `, ${number(card.git.changed)} ${card.git.changed === 1 ? "file" : "files"} changed · ` : " · ") : null, "asked ", when(card.asked_at), card.open && card.expires_at ? [" · expires ", when(card.expires_at)] : null),
      ),
      before && card.open && h("p.notice.asks", { role: "alert" }, icon("warning"), `What would run has changed since you looked${changes(before, card)}. Read it again.`),
      isCommand && h("div.command", { role: "group", "aria-label": "Command" }, ...commandLines(card.line, before?.line), h("span.as", null, card.shell ? "as a shell line" : "without a shell")),
      card.prompt && h("div.prompt-text", null, h("h3", null, card.agent ? `Prompt for ${card.agent}` : "Prompt"), h("p.break", null, ...visible(card.prompt))),
      card.question && card.question !== card.line && h("p.question.break", null, ...visible(card.question)),
      h("dl.facts", null, ...facts()),
      ...(card.files || []).map((file) => h("details.file", { key: file.path }, h("summary", null, h("span.mono.cut.grow", null, ...visible(file.path, true)), h("span.muted.num", null, `${number(file.text.split("\n").length)} lines`)), h("pre", { tabindex: "0" }, ...visible(file.text)), file.cut && h("p.hint", null, "Only the beginning is shown."))),
      card.open ? answers() : outcome(),
      problem && h("p.problem", { role: "alert" }, icon("warning"), problem),
    );
  }

  function facts() {
    const fact = (name, /** @type {any} */ ...content) => h("div", { key: name }, h("dt", null, name), h("dd", null, ...content));
    const list = (items) => h("ul", null, ...items);
    const parts = card.parts?.length > 1 ? card.parts : [];
    const used = card.used || {};
    const effects = (card.effects || []).filter((effect) => effect !== "harmless" && effect !== "reads");
    return [
      parts.length && fact("would run", h("ol", null, ...parts.map((part) => h("li", null, h("code.break", null, ...visible(part.command, true)), part.inside?.length ? h("span.muted", null, ` inside ${visibleText(part.inside.join(", "))}`) : null)))),
      effects.length && fact("effects", list(effects.map((effect) => h("li.effect", null, icon("warning"), ...visible(EFFECTS[effect] || effect, true))))),
      card.reasons?.length && fact("why it asks", list(card.reasons.map((reason) => h("li", null, ...visible(reason, true))))),
      card.rule && fact("decided by", "rule ", h("code", null, ...visible(card.rule, true)), card.decided_by && card.decided_by !== card.line ? [", for ", h("code.break", null, ...visible(card.decided_by, true))] : null),
      card.cwd && fact("directory", h("code.break", null, ...visible(card.cwd, true))),
      fact("who", h("a", { href: path(card.task.parent_task || card.task.task_id) }, ...visible(card.task.client || "you", true)), card.task.session ? [" · session ", h("code.break", null, ...visible(card.task.session, true))] : null),
      card.when && fact("when", ...visible(card.when, true), card.next_runs?.length ? list(card.next_runs.map((time) => h("li.num", null, exactTime(time)))) : null),
      (used.tokens || used.cost) && fact("used so far", [used.cost != null ? money(used.cost) : "", used.tokens ? `${number(used.tokens)} tokens` : ""].filter(Boolean).join(" · ")),
      Object.keys(card.env || {}).length && fact("environment", list(Object.entries(card.env).map(([name, value]) => h("li", null, h("code.break", null, ...visible(`${name}=${value}`, true)))))),
      card.bound?.length && fact("bound to", ...card.bound.flatMap((part, index) => [index ? h("i.muted", null, " · ") : null, ...visible(part, true)]), card.seen ? h("span.muted.mono", { title: card.seen }, ` ${card.seen.slice(0, 12)}`) : null),
      card.before?.length && fact("before", list(card.before.map((earlier) => h("li", null, `${earlier.by === "auto" ? "allowed" : "answered"} ${earlier.via ? `via ${earlier.via}` : ""}, ${earlier.status} `, when(earlier.at))))),
    ].filter(Boolean);
  }

  function answers() {
    const ready = canPress();
    const byAutomation = navigator.webdriver;
    const mayReject = store.home?.may?.reject !== false;
    if (byAutomation)
      return h("footer.answers", null, h("p.notice.asks", null, icon("warning"), "This browser is controlled by a program, so it shows no buttons. Answer in a browser of your own, or in a terminal:"), cliLine(card.terminal));
    const others = (card.choices || []).filter((choice) => choice !== "once");
    return h(
      "footer.answers",
      null,
      h(
        "div.buttons",
        null,
        mayReject && h("button", { id: "reject", class: "large", type: "button", disabled: !ready, onclick: () => void reject() }, "Reject", h("kbd", null, "n")),
        card.level === "passkey" && h("button", { id: "approve", class: "large primary", type: "button", disabled: !ready, onclick: () => approve("once") }, icon("key"), isBusy ? "Waiting for your passkey…" : "Approve", h("kbd", null, "a")),
      ),
      mayReject && card.task.client !== "you" && h("label.reason", null, h("span", null, "Why not? The agent reads this when you reject."), h("input", { id: "reason", type: "text", maxlength: "500", value: reason, oninput: (event) => (reason = event.target.value), onkeydown: (event) => event.key === "Enter" && void reject() })),
      card.level === "passkey"
        ? [
            h("p.hint", null, store.connection === "live" ? "Needs your passkey. It confirms exactly what is shown above." : "Not connected. The buttons work again when the server answers."),
            others.length ? h("details.more", null, h("summary", null, "More answers"), ...others.map((choice) => h("div", null, h("button", { type: "button", disabled: !ready, onclick: () => approve(choice) }, CHOICES[choice]), h("p.hint", null, CHOICE_TEXTS[choice])))) : null,
            h("p.hint", null, "Whoever controls this browser can show you another text. When in doubt, approve on another device or in a terminal:"),
            cliLine(card.terminal),
          ]
        : null,
      card.level !== "passkey"
        ? [h("p.hint", null, ...withoutPasskey(card.level)), cliLine(card.terminal)]
        : null,
    );
  }

  function outcome() {
    const answered = card.answered || {};
    const word = answered.answer || card.task.status;
    const run = card.task.run_id;
    return h(
      "footer.answers",
      null,
      h("p", { class: `notice ${word === "approved" ? "done" : "skipped"}` }, icon(word === "approved" ? "done" : "stopped"), h("span", null, `${word[0].toUpperCase()}${word.slice(1)}${answered.by && answered.by !== "user" ? ` by ${visibleText(answered.by)}` : ""}${answered.via ? ` via ${visibleText(viaText(answered.via))}` : ""} `, answered.at ? when(answered.at) : null, answered.reason ? [": ", ...visible(answered.reason, true)] : null)),
      word === "approved" && run ? [h("p.run-state", null, stateBadge(latest(card.task.task_id) || card.task), h("a", { href: path(card.task.task_id) }, "Open the task")), card.task.type === "command" ? h("div.log.small", { key: `log-${run}`, mount: (element) => ((log = new LogView(element, { run, name: card.task.task_id, isLive: true, empty: () => (isLive(latest(card.task.task_id) || card.task) ? "No output yet." : "It wrote no output."), openLink })), () => log?.close()) }) : null] : null,
      waitingForYou().length ? h("p", null, h("button", { type: "button", onclick: () => step(1) }, `Next question (${waitingForYou().length})`)) : null,
    );
  }
}

/** @param {any} row */
const statusOf = (row) => `${row.status} ${row.needs_you} ${row.fingerprint} ${row.run_id}`;

/** @param {string} level @returns {import("../dom.js").Child[]} */
function withoutPasskey(level) {
  if (level === "no_passkey" && store.home?.passkeys_here === false) return ["Passkeys do not work at this address. ", h("a", { href: `${store.home.address}${location.pathname}` }, `Open ${store.home.address}`), ", or approve it in a terminal:"];
  if (level === "no_passkey") return ["Approving here needs a passkey. ", h("a", { href: "/settings" }, "Add one in the settings"), ", or approve it in a terminal:"];
  if (level === "off") return ["Approving in the browser is switched off. Approve it in a terminal:"];
  if (level === "not_paired") return ["This browser is not paired. Run `backburner web` in a terminal to pair it, or approve it there:"];
  return ["This can be approved only in a terminal:"];
}

/** Refuse to sign anything but what this card shows. @param {any} challenge @param {any} card @param {string} choice */
async function checkChallenge(challenge, card, choice) {
  const lines = challenge.text.split("\n");
  const digest = new Uint8Array(await crypto.subtle.digest("SHA-256", new TextEncoder().encode(challenge.text)));
  const encoded = btoa(String.fromCharCode(...digest)).replaceAll("+", "-").replaceAll("/", "_").replaceAll("=", "");
  if (lines[2] !== card.task.task_id || lines[3] !== card.seen || lines[5] !== choice || encoded !== challenge.publicKey.challenge) throw new Error("The server asked to sign something else than this card shows. Nothing was approved.");
}

/** @param {any} before @param {any} after */
function changes(before, after) {
  const differs = ["line", "cwd", "prompt", "rule"].filter((name) => before[name] !== after[name]).map((name) => ({ line: "the command", cwd: "the directory", prompt: "the prompt", rule: "the rule" })[name]);
  const old = new Map((before.files || []).map((file) => [file.path, file.text]));
  for (const file of after.files || []) if (old.get(file.path) !== file.text) differs.push(baseName(file.path));
  return differs.length ? `: ${visibleText(differs.join(", "))}` : "";
}

/** The command, whole: long ones wrap, lines are numbered if there are several, and words that are new are marked. @param {string} line @param {string} [old] */
function commandLines(line, old) {
  const known = old && old !== line ? new Set(old.split(/(\s+)/)) : null;
  const draw = (text) => (known ? text.split(/(\s+)/).flatMap((word) => (known.has(word) ? visible(word) : [h("mark", null, ...visible(word))])) : visible(text));
  const lines = line.split("\n");
  return lines.length === 1 ? [h("code", null, ...draw(line))] : [h("ol.lines", null, ...lines.map((text) => h("li", null, h("code", null, ...draw(text)))))];
}
