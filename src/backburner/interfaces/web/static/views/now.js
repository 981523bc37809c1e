// Now: what waits for you, what runs, what is queued, what comes next and what ended, of all projects and clients.

import { go, query, setQuery } from "../app.js";
import { find, h, icon } from "../dom.js";
import { ApiError, get } from "../net.js";
import { changed, endOf, isLive, onMessage, sectionOf, store } from "../store.js";
import { baseName, cliLine, duration, money, number, path, serverNow, sinceMs, stateIcon, title, visible, visibleText, when } from "../text.js";
import { WindowList } from "../window-list.js";

const HEADS = { needs_you: "Waiting for you", running: "Running", queued: "Queued", next: "Next", recent: "Recent" };
const CUT = 200;
const IDLE = 8000; // milliseconds without input after which rows may move again below the pointer
const PAGE = 200;

/** @typedef {{key: string, head?: keyof typeof HEADS, note?: string, row?: any, depth?: number}} Item */

/** @returns {import("../app.js").View} */
export function nowView() {
  /** @type {WindowList<Item> | undefined} */
  let list;
  /** @type {Item[]} */
  let shown = [];
  /** @type {Item[] | null} what is being drawn */
  let drawing = null;
  let news = 0;
  let lastInput = 0;
  let isOver = false;
  /** @type {any[] | null} ended tasks that match the filters, as the server found them */
  let found = null;
  let next = /** @type {number | null} */ (null);
  let isLoading = false;
  let mustReload = false;
  let problem = "";
  let asked = "";

  const filters = () => ({ project: query("project"), client: query("client"), q: query("q") });
  /** @returns {(row: any) => boolean} whether a row passes the filters of the address */
  const matching = () => {
    const { project, client, q } = filters();
    const words = q.toLowerCase().split(/\s+/).filter(Boolean);
    return (row) => (!project || row.project === project) && (!client || row.client === client) && words.every((word) => searched(row).includes(word));
  };

  /** Ask the server for ended tasks beyond those that came with the board. */
  async function load(more) {
    const wanted = JSON.stringify(filters());
    const isFiltered = Object.values(filters()).some(Boolean);
    if (!isFiltered && !more) {
      [found, next, asked] = [null, store.moreRecent, wanted];
      return;
    }
    if (isLoading && !more) mustReload = true; // for other filters, or because much has changed
    if (isLoading || (more && next === null)) return;
    isLoading = true;
    try {
      const answer = await get("/tasks", { ...filters(), ended: true, before: more ? next : null, limit: PAGE });
      if (wanted === JSON.stringify(filters())) {
        if (isFiltered) found = more ? [...(found || []), ...answer.items] : answer.items;
        else for (const row of answer.items) if (!store.rows.has(row.task_id)) store.rows.set(row.task_id, row);
        next = answer.next;
        if (!isFiltered) store.moreRecent = next;
        asked = wanted;
      }
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      problem = error.message;
    }
    isLoading = false;
    if (mustReload) {
      mustReload = false;
      return load(false);
    }
    changed();
  }

  /** @returns {Item[]} */
  function arranged() {
    const matches = matching();
    const sections = { needs_you: [], running: [], queued: [], next: [], recent: [] };
    const rows = new Map(store.rows);
    for (const row of found || []) if (!rows.has(row.task_id)) rows.set(row.task_id, row);
    const below = new Map();
    for (const row of rows.values()) if (row.parent_task && isLive(row)) below.set(row.parent_task, true);
    for (const row of rows.values()) if (matches(row) && !(store.later.has(row.task_id) && isLive(row))) sections[sectionOf(row)].push(below.has(row.task_id) && !["running", "resumed"].includes(row.status) ? { ...row, busy_below: true } : row);
    const by = (name, sign = 1) => (a, b) => (a[name] ?? "~") < (b[name] ?? "~") ? -sign : (a[name] ?? "~") > (b[name] ?? "~") ? sign : a.seq - b.seq;
    sections.needs_you.sort(by("created_at"));
    sections.running.sort(by("started_at", -1));
    sections.queued.sort(by("created_at"));
    sections.next.sort(by("next_run_at"));
    // As the server sends them: what ended last is first.
    sections.recent.sort((a, b) => (endOf(a) < endOf(b) ? 1 : endOf(a) > endOf(b) ? -1 : b.seq - a.seq));
    /** @type {Item[]} */
    const items = [];
    for (const name of /** @type {(keyof typeof HEADS)[]} */ (Object.keys(HEADS))) {
      const rows = sections[name];
      if (!rows.length) continue;
      const cut = name === "running" || name === "queued" ? rows.slice(0, CUT) : rows;
      items.push({ key: `:${name}`, head: name, note: noteOf(name, rows) });
      for (const [row, depth] of tree(cut)) items.push({ key: row.task_id, row, depth });
      if (cut.length < totalOf(name, rows)) items.push({ key: `:more-${name}`, note: `and ${number(totalOf(name, rows) - cut.length)} more` });
    }
    return items;
  }

  /** How many tasks a section has; the server sends at most 200 of those that run or are queued, and fewer while many tasks change. */
  const totalOf = (name, rows) => ((name === "running" || name === "queued") && (rows.length >= CUT || store.isBehind) && !Object.values(filters()).some(Boolean) ? Math.max(rows.length, store.counts[name] ?? 0) : rows.length);

  function noteOf(name, rows) {
    if (name !== "recent") return number(totalOf(name, rows));
    const counts = store.board?.counts.recent || {};
    const parts = Object.entries(counts).filter(([, count]) => count).map(([state, count]) => `${number(count)} ${state}`);
    return Object.values(filters()).some(Boolean) ? `${number(rows.length)}${next ? "+" : ""} found` : parts.length ? `last 24 h: ${parts.join(", ")}` : "";
  }

  const height = () => {
    const style = getComputedStyle(document.documentElement);
    const [row, head] = [parseFloat(style.getPropertyValue("--row")), parseFloat(style.getPropertyValue("--head"))];
    return (item) => (item.row ? row : item.head ? head : 32);
  };

  function refresh() {
    if (!list) return;
    const wanted = drawing || arranged();
    drawing = null;
    const isBusy = (isOver || list.element.contains(document.activeElement) || scrollY > 40) && Date.now() - lastInput < IDLE;
    if (isBusy && shown.length && (shown.length !== wanted.length || shown.some((item, index) => item.key !== wanted[index].key))) {
      // Rows change where they are, and those of the next page are added at the end; other new ones and other places wait until nobody points at them.
      const latest = new Map(wanted.map((item) => [item.key, item]));
      const have = new Set(shown.map((item) => item.key));
      shown = shown.map((item) => (item.row ? { ...item, row: latest.get(item.key)?.row || store.rows.get(item.key) || item.row } : item));
      const end = wanted.findIndex((item) => item.key === shown[shown.length - 1].key);
      const more = end < 0 ? [] : wanted.slice(end + 1).filter((item) => !have.has(item.key));
      shown.push(...more);
      news = wanted.filter((item) => item.row && !have.has(item.key)).length - more.filter((item) => item.row).length;
    } else [shown, news] = [wanted, 0];
    list.options.height = height();
    list.update(shown);
  }

  void load(false);
  const stop = onMessage(({ event }) => event === "reset" && Object.values(filters()).some(Boolean) && void load(false));
  const touched = () => void (lastInput = Date.now());
  for (const event of ["pointermove", "keydown", "wheel"]) addEventListener(event, touched, { passive: true });
  const actOn = (act) => () => {
    const row = store.rows.get(document.activeElement?.closest("[data-key]")?.getAttribute("data-key") || "");
    if (row) act(row);
  };

  return {
    title: () => "Now",
    wide: true,
    close: () => {
      stop();
      list?.close();
      for (const event of ["pointermove", "keydown", "wheel"]) removeEventListener(event, touched);
    },
    moved: () => {
      if (asked !== JSON.stringify(filters())) void load(false);
      lastInput = 0;
    },
    draw: () => {
      queueMicrotask(refresh);
      drawing = arranged();
      const isEmpty = !store.error && !store.rows.size;
      const isFiltered = Object.values(filters()).some(Boolean);
      const board = store.board;
      return [
        h(
          "div.filters",
          { role: "search" },
          select("project", "all projects", board?.projects || [], baseName),
          select("client", "all clients", board?.clients || []),
          h("label.field.grow", null, icon("search"), h("input", { type: "search", id: "filter", value: query("q"), placeholder: "Filter…", "aria-label": "Filter tasks", spellcheck: "false", autocomplete: "off", oninput: (event) => setQuery({ q: event.target.value }), onkeydown: (event) => event.key === "Escape" && (setQuery({ q: "" }), event.target.blur(), event.stopPropagation()) }), h("kbd", null, "/")),
          h("span.num.muted.capacity", null, board ? `${number(store.counts.running ?? 0)} of ${number(board.max_concurrent)} running` : ""),
        ),
        h("div.news-space", null, news > 0 && h("button.pill", { type: "button", onclick: () => ((lastInput = 0), scrollTo(0, 0), refresh()) }, `${number(news)} new ↑`, h("kbd", null, "."))),
        store.error && h("div.panel.error", { role: "alert" }, h("p", null, store.error.message), cliLine("backburner doctor")),
        problem && h("p.hint.error", { role: "alert" }, problem),
        isEmpty && welcome(),
        !isEmpty && isFiltered && asked === JSON.stringify(filters()) && !drawing.length && h("div.panel", null, h("p", null, "No task matches these filters. "), h("button", { type: "button", onclick: () => setQuery({ q: "", project: "", client: "" }) }, "Show all tasks")),
        h("div", {
          key: "list",
          class: "board",
          role: "group",
          "aria-label": "Tasks",
          onpointerenter: () => (isOver = true),
          onpointerleave: () => ((isOver = false), changed()),
          mount: (element) => {
            list = new WindowList(element, { key: (item) => item.key, height: height(), draw: drawItem, props: (item) => (item.row ? { class: rowClass(item) } : { class: "section-head" }), onEnd: () => void (Object.values(filters()).some(Boolean) ? found && load(true) : store.moreRecent && ((next = store.moreRecent), load(true))) });
            return () => list?.close();
          },
        }),
      ];
    },
    commands: () => [
      { keys: "/", label: "Filter tasks", run: () => find("#filter")?.focus() },
      { keys: "j, ArrowDown", label: "Next task", run: () => list?.move(1, (item) => Boolean(item.row)) },
      { keys: "k, ArrowUp", label: "Previous task", run: () => list?.move(-1, (item) => Boolean(item.row)) },
      { keys: "J", label: "Next section", run: () => section(1) },
      { keys: "K", label: "Previous section", run: () => section(-1) },
      { keys: ".", label: "Show new tasks", run: () => ((lastInput = 0), scrollTo(0, 0), refresh()) },
      { keys: "o", label: "Open the output of the task", run: actOn((row) => go(path(row.task_id))), isHidden: true },
      { keys: "y", label: "Copy the ID of the task", run: actOn((row) => void navigator.clipboard.writeText(row.task_id)), isHidden: true },
      { keys: "Y", label: "Copy the command that shows the task", run: actOn((row) => void navigator.clipboard.writeText(`backburner status ${row.task_id}`)), isHidden: true },
    ],
  };

  function section(step) {
    const focused = document.activeElement?.closest("[data-key]")?.getAttribute("data-key");
    let at = shown.findIndex((item) => item.key === focused);
    if (step < 0) while (at > 0 && !shown[at].head) at--;
    for (at += step; at >= 0 && at < shown.length; at += step) if (shown[at].head && shown[at + 1]?.row) return list?.focus(at + 1);
  }
}

/** @param {string} name @param {string} all @param {string[]} values @param {(value: string) => string} [label] */
function select(name, all, values, label = (value) => value) {
  const chosen = query(name);
  const options = chosen && !values.includes(chosen) ? [chosen, ...values] : values;
  return h("select", { value: chosen, "aria-label": name === "project" ? "Project" : "Client", class: chosen ? "chosen" : null, onchange: (event) => setQuery({ [name]: event.target.value }) }, h("option", { value: "", selected: !chosen }, all), ...options.map((value) => h("option", { key: value, value, selected: value === chosen }, visibleText(label(value)))));
}

/** Children below their parents, as far as both are shown. @param {any[]} rows @returns {[any, number][]} */
function tree(rows) {
  const here = new Set(rows.map((row) => row.task_id));
  const children = Map.groupBy(rows.filter((row) => here.has(row.parent_task)), (row) => row.parent_task);
  /** @type {[any, number][]} */
  const out = [];
  const add = (row, depth) => {
    out.push([row, depth]);
    if (depth < 6) for (const child of children.get(row.task_id) || []) add(child, depth + 1);
  };
  for (const row of rows) if (!here.has(row.parent_task)) add(row, 0);
  return out;
}

/** @type {WeakMap<any, string>} */
const texts = new WeakMap();
/** The text of a row that filters look at. @param {any} row @returns {string} */
function searched(row) {
  let text = texts.get(row);
  if (text === undefined) texts.set(row, (text = `${title(row)} ${row.line} ${row.task_id} ${row.name || ""} ${row.status} ${row.doing} ${row.project} ${row.client}`.toLowerCase()));
  return text;
}

/** @param {Item} item */
const rowClass = (item) => `row ${sectionOf(item.row)} depth-${Math.min(3, item.depth || 0)}`;

/** @param {Item} item @returns {import("../dom.js").Child[]} */
function drawItem(item) {
  if (item.head) return [h("h2", { class: `section ${item.head}` }, HEADS[item.head], " ", h("span.num", null, item.note || ""))];
  if (!item.row) return [h("p.muted", null, item.note || "")];
  const section = sectionOf(item.row);
  if (section !== "recent") return drawRow(item.row, section);
  // Nothing of an ended task depends on the time, so it is described once.
  let cells = ended.get(item.row);
  if (!cells) ended.set(item.row, (cells = drawRow(item.row, section)));
  return cells;
}

/** @type {WeakMap<any, import("../dom.js").Child[]>} */
const ended = new WeakMap();

/** @param {any} row @param {string} section @returns {import("../dom.js").Child[]} */
function drawRow(row, section) {
  const asks = section === "needs_you";
  return [
    stateIcon({ ...row, section: asks ? "waiting" : section }),
    h("a.what.cut", { href: asks ? `/ask/${encodeURIComponent(row.task_id)}` : path(row.task_id), title: visibleText(row.line || title(row)) }, row.type === "agent" && h("span.tag", null, row.agent && row.agent !== "default" ? row.agent : "agent"), h("span", { class: row.type === "agent" || title(row) !== row.line ? "" : "mono" }, ...visible(title(row), true))),
    h("span.where.cut", null, h("span", { title: visibleText(row.project) }, ...visible(baseName(row.project), true)), h("i", null, " · "), ...visible(row.client || "you", true)),
    h("span.doing.cut", null, ...doing(row, section)),
    h("span.time.num", { title: row.started_at ? `started ${row.started_at}` : "" }, timeOf(row, section)),
    h("span.cost.num", null, asks ? h("span.review", null, "Review") : money(row.usage?.cost)),
  ];
}

/** @param {any} row @param {string} section */
function doing(row, section) {
  const fraction = row.progress?.fraction;
  if (section === "running" && fraction != null) return [h("span.bar", { role: "img", "aria-label": `${Math.round(fraction * 100)} percent` }, h("i", { style: { width: `${Math.round(fraction * 1000) / 10}%` } })), h("span.num", null, ...visible(row.progress.text || `${Math.round(fraction * 100)} %`, true))];
  if (section === "next") return row.status === "paused" ? visible(row.paused_because || row.doing || "paused", true) : visible(row.when || row.doing, true);
  if (section === "needs_you") return visible(row.doing || row.reasons?.join(", ") || "", true);
  return visible(row.doing || row.summary || (section === "recent" ? (row.exit_code != null && row.exit_code !== 0 ? `exit ${row.exit_code}` : row.status) : ""), true);
}

/** @param {any} row @param {string} section */
function timeOf(row, section) {
  if (section === "running") return duration(Math.floor((sinceMs(row.started_at) ?? 0) / 1000) * 1000).replace(/^0ms$/, "0s");
  if (section === "recent") return h("span", null, row.duration_seconds != null ? duration(row.duration_seconds * 1000) : "");
  if (section === "next") return row.next_run_at && row.status !== "paused" ? (Date.parse(row.next_run_at) <= serverNow() ? "now" : when(row.next_run_at)) : "";
  return duration(Math.floor((sinceMs(row.created_at) ?? 0) / 1000) * 1000).replace(/^0ms$/, "0s");
}

function welcome() {
  return h(
    "div.panel.welcome",
    null,
    icon("burner"),
    h("p.big", null, "Nothing ran yet."),
    h("p", null, "Start a command, ask an agent, or let the agent client that you use start its commands here:"),
    cliLine("backburner run -- make test"),
    cliLine('backburner ask "Why does the test fail?"'),
    cliLine("backburner install claude"),
  );
}
