// Inbox: what you and your agents were told. Audit: every decision, who made it, from where, and what became of it.

import { query, setQuery } from "../app.js";
import { h, icon } from "../dom.js";
import { errorText, get, post } from "../net.js";
import { changed, loadHome, onMessage } from "../store.js";
import { announce, baseName, duration, path, visible, visibleText, when } from "../text.js";

const PAGE = 100;
/** @type {Record<string, [any, string, string]>} */
const KINDS = {
  proposed: ["asks", "asks", "asks"],
  waiting: ["asks", "asks", "asks"],
  ended: ["done", "ended", "done"],
  refused: ["stopped", "refused", "skipped"],
  paused: ["paused", "paused", "paused"],
  delayed: ["queued", "delayed", "queued"],
  removed: ["stopped", "removed", "skipped"],
  paired: ["key", "paired", "running"],
};
/** @type {Record<string, [any, string]>} */
const DECISIONS = {
  approved: ["done", "done"],
  step_approved: ["done", "done"],
  allowed: ["done", "queued"],
  rejected: ["stopped", "skipped"],
  step_rejected: ["stopped", "skipped"],
  expired: ["stopped", "skipped"],
  refused: ["failed", "failed"],
  proposed: ["asks", "asks"],
  paired: ["key", "running"],
  passkey_added: ["key", "running"],
  revoked: ["key", "skipped"],
};

/** @returns {import("../app.js").View} */
export function inboxView() {
  /** @type {any} */
  let answer = null;
  /** @type {any[]} */
  let failed = [];
  let problem = "";
  const load = async () => {
    try {
      answer = await get("/inbox", { read: query("show") === "all", limit: 200 });
      failed = answer.failed ? (await get("/notices", { failed: true })).items : [];
    } catch (error) {
      problem = errorText(error);
    }
    changed();
  };
  const act = async (address, body, said) => {
    try {
      await post(address, body);
      announce(said);
      problem = "";
    } catch (error) {
      problem = errorText(error);
    }
    await Promise.all([load(), loadHome()]);
  };
  const stop = onMessage(({ event, data }) => event === "rows" && data.counts && data.counts.inbox !== answer?.items.filter((notice) => !notice.told_at && notice.to === "you").length && void load());
  void load();
  const all = () => act("/inbox/ack", { all: true }, "All notices are marked as read.");
  return {
    title: () => "Inbox",
    close: stop,
    moved: load,
    commands: () => [{ keys: "x", label: "Mark all notices as read", run: all, cli: "backburner inbox --ack" }, ...rowCommands()],
    draw: () => [
      h("div.filters", null, filter("show", "", "New"), filter("show", "all", "All"), h("span.grow", null), answer?.quiet_hours ? h("span.muted", null, `Quiet hours ${answer.quiet_hours}`) : null, answer?.items.some(isNew) ? h("button", { type: "button", onclick: all }, "Mark all as read") : null),
      problem && h("p.problem", { role: "alert" }, icon("warning"), ...visible(problem)),
      failed.length ? h("section", null, h("h2.section.failed", null, "Not delivered ", h("span.num", null, String(failed.length))), h("ul.plain.rows.tall", null, ...failed.map((notice) => h("li", { key: `f${notice.notice_id}` }, sign("failed", "failed", "not delivered"), h("div.grow", null, h("p.break", null, ...visible(notice.text, true)), h("p.muted", null, `To ${visibleText(notice.channel || notice.to)}: `, ...visible(notice.error, true))), h("button", { type: "button", onclick: () => act(`/notices/${notice.notice_id}/retry`, {}, "It is sent again.") }, "Send again"))))) : null,
      answer && !answer.items.length && h("div.panel.welcome", null, icon("inbox"), h("p.big", null, query("show") === "all" ? "There are no notices." : "Nothing new."), h("p", null, "Notices about tasks that ended, need you or were paused appear here.")),
      h("ul.plain.rows.tall", null, ...(answer?.items || []).map((notice) => {
        const [shape, word, tone] = KINDS[notice.kind] || ["inbox", notice.kind, "skipped"];
        return h(
          "li",
          { key: notice.notice_id, class: isNew(notice) ? "new" : null },
          sign(shape, tone, word),
          h("div.grow", null, h("p.break", null, notice.task_id ? h("a", { href: tone === "asks" ? `/ask/${encodeURIComponent(notice.task_id)}` : path(notice.task_id) }, ...visible(notice.text, true)) : visible(notice.text, true)), h("p.muted", null, notice.project && [...visible(baseName(notice.project), true), " · "], told(notice))),
          when(notice.created_at),
          isNew(notice) && notice.to === "you" ? h("button.ghost", { type: "button", onclick: () => act("/inbox/ack", { ids: [notice.notice_id] }, "Marked as read.") }, "Mark as read") : h("span"),
        );
      })),
    ],
  };
}

/** @param {any} notice */
const isNew = (notice) => !notice.told_at;

/** @param {any} notice */
function told(notice) {
  const who = notice.to === "you" ? "you" : visibleText(String(notice.to).split(":")[0]);
  if (notice.told_at) return h("span", null, notice.to === "you" ? "read " : `told to ${who} `, when(notice.told_at));
  if (notice.comes_at) return h("span", null, "comes ", when(notice.comes_at));
  return notice.to === "you" ? "new" : `${who} was not told yet`;
}

/** @param {any} shape @param {string} tone @param {string} word */
const sign = (shape, tone, word) => h("span", { class: `state ${tone}`, title: word }, icon(shape), h("span.sr", null, word));

/** @returns {import("../app.js").View} */
export function auditView() {
  /** @type {any[]} */
  let items = [];
  let next = "";
  let problem = "";
  let isLoaded = false;
  const load = async (more = false) => {
    try {
      const filters = { by: query("by"), decision: query("decision"), via: query("via"), verify: query("verify"), before: more ? next : "", limit: PAGE };
      const answer = await get("/audit", filters);
      items = more ? [...items, ...answer.items] : answer.items;
      [next, problem, isLoaded] = [answer.next || "", "", true];
    } catch (error) {
      problem = errorText(error);
    }
    changed();
  };
  void load();
  const save = () => {
    const address = URL.createObjectURL(new Blob(items.map((item) => `${JSON.stringify(item)}\n`), { type: "application/x-ndjson" }));
    Object.assign(document.createElement("a"), { href: address, download: "audit.jsonl" }).click();
    setTimeout(() => URL.revokeObjectURL(address), 10_000);
  };
  return {
    title: () => "Audit",
    wide: true,
    moved: () => load(),
    commands: rowCommands,
    draw: () => [
      h("div.filters", null, filter("decision", "", "All"), filter("decision", "approved", "Approved"), filter("decision", "rejected", "Rejected"), filter("decision", "refused", "Refused"), filter("decision", "allowed", "By rules"), h("span.grow", null), h("button", { type: "button", "aria-pressed": String(query("verify") === "true"), onclick: () => setQuery({ verify: query("verify") ? "" : "true" }) }, "Verify passkeys"), h("button", { type: "button", disabled: !items.length, onclick: save }, icon("download"), "JSONL")),
      problem && h("p.problem", { role: "alert" }, icon("warning"), ...visible(problem)),
      isLoaded && !items.length && h("div.panel.welcome", null, icon("audit"), h("p.big", null, "No decisions yet."), h("p", null, "Every approval, rejection and refused attempt is recorded here.")),
      h("ul.plain.rows.tall.audit", null, ...items.map(decision)),
      next ? h("p", null, h("button", { type: "button", onclick: () => load(true) }, "Show more")) : null,
    ],
  };
}

/** @param {any} item */
function decision(item) {
  const [shape, tone] = DECISIONS[item.decision] || ["unknown", "skipped"];
  const via = String(item.via || "");
  const from = item.device ? item.device.name : via === "cli" ? "a terminal" : via === "gate" ? "" : via.replace(/^channel:/, "").replace(/^web:/, "");
  const who = item.by === "auto" ? "rules" : item.by === "user" ? "you" : item.by || "nobody";
  return h(
    "li",
    { key: item.id },
    sign(shape, tone, item.decision),
    h(
      "div.grow",
      null,
      h("p.break", null, h("b", null, item.decision.replaceAll("_", " ")), " ", item.task_id ? h("a.mono", { href: path(item.task_id) }, ...visible(item.line || item.task_id, true)) : h("span.mono", null, ...visible(item.line || "", true))),
      h("p.muted.break", null, item.decision === "proposed" ? "waits for an answer" : `by ${visibleText(who)}`, from ? ` from ${visibleText(from)}` : null, item.level === "passkey" ? " with a passkey" : null, item.rule ? [" · rule ", h("code", null, ...visible(item.rule, true))] : null, item.reasons?.length || item.reason ? [" · ", ...visible(item.reason || item.reasons.join("; "), true)] : null),
    ),
    item.proof ? h("span", { class: `badge ${item.verified === false ? "failed" : item.verified ? "done" : "queued"}`, title: "An approval with a passkey can be verified again." }, icon("key"), item.verified === false ? "not valid" : item.verified ? "verified" : "passkey") : null,
    h("span.num.muted.became", null, [item.status && item.status !== item.decision ? item.status : "", item.exit_code != null && item.exit_code !== 0 ? `exit ${item.exit_code}` : "", item.duration_seconds != null ? duration(item.duration_seconds * 1000) : ""].filter(Boolean).join(" · ")),
    when(item.at),
  );
}

/** @param {string} name @param {string} value @param {string} label */
const filter = (name, value, label) => h("button.toggle", { type: "button", "aria-pressed": String(query(name) === value), onclick: () => setQuery({ [name]: value }) }, label);

/** Keys that go through the rows of a list. @returns {import("../keys.js").Command[]} */
export function rowCommands() {
  const move = (step) => {
    const links = [...document.querySelectorAll(".rows a")];
    const at = links.indexOf(/** @type {any} */ (document.activeElement));
    const next = /** @type {HTMLElement} */ (links[at < 0 ? (step > 0 ? 0 : links.length - 1) : Math.max(0, Math.min(links.length - 1, at + step))]);
    next?.focus();
  };
  return [
    { keys: "j, ArrowDown", label: "Next row", run: () => move(1), isHidden: true },
    { keys: "k, ArrowUp", label: "Previous row", run: () => move(-1), isHidden: true },
  ];
}
