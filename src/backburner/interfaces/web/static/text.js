// The words on the screen: states, times, commands, and untrusted text in which nothing stays hidden.

import { h, icon } from "./dom.js";

// Characters that are invisible or change the direction of the text around them: a command could hide behind them.
const HIDDEN =
  /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202f\u205f-\u206f\u3164\ufe00-\ufe0e\ufeff\uffa0\ufff9-\ufffb]|[\u{1d173}-\u{1d17a}\u{e0000}-\u{e0fff}]/gu;

/**
 * Text of others, as children of an element: every hidden character is drawn as ⟨U+202E⟩ in the warning colour.
 * @param {unknown} value @param {boolean} [oneLine] whether newlines and tabs are drawn, too
 * @returns {import("./dom.js").Child[]}
 */
export function visible(value, oneLine = false) {
  const text = String(value ?? "");
  const pattern = oneLine ? new RegExp(`${HIDDEN.source}|[\\n\\t]`, "gu") : HIDDEN;
  /** @type {import("./dom.js").Child[]} */
  const parts = [];
  let from = 0;
  for (const found of text.matchAll(pattern)) {
    parts.push(text.slice(from, found.index), hiddenMark(found[0]));
    from = found.index + found[0].length;
  }
  parts.push(text.slice(from));
  return parts;
}

/** @param {string} character */
export function hiddenMark(character) {
  const name = codePoint(character);
  return h("span.hidden-char", { title: `hidden character ${name}` }, character === "\n" ? "⏎" : `⟨${name}⟩`);
}

/** @param {string} character */
export const codePoint = (character) => `U+${(character.codePointAt(0) || 0).toString(16).toUpperCase().padStart(4, "0")}`;

/** The same for attributes and titles, which can hold no elements. @param {unknown} value */
export const visibleText = (value) => String(value ?? "").replace(HIDDEN, (c) => `⟨${codePoint(c)}⟩`);

/** @type {Record<string, [icon: string, word: string, tone: string]>} */
const STATES = {
  running: ["running", "running", "running"],
  resumed: ["running", "running", "running"],
  active: ["clock", "active", "queued"],
  completed: ["done", "completed", "done"],
  done: ["done", "done", "done"],
  failed: ["failed", "failed", "failed"],
  waiting: ["asks", "waiting", "asks"],
  proposed: ["asks", "waiting for approval", "asks"],
  pending: ["queued", "queued", "queued"],
  paused: ["paused", "paused", "paused"],
  skipped: ["skipped", "skipped", "skipped"],
  cancelled: ["stopped", "cancelled", "skipped"],
  rejected: ["stopped", "rejected", "skipped"],
  expired: ["stopped", "expired", "skipped"],
};

/** @param {{status: string, busy_below?: boolean, section?: string, result?: string | null}} row */
export function stateOf(row) {
  const [shape, word, tone] = STATES[row.status] || ["unknown", row.status, "skipped"];
  if (row.result === "lost") return { shape: "unknown", word: "lost", tone: "failed" };
  if (row.status === "waiting" && row.section && row.section !== "waiting") return { shape: "queued", word, tone: "queued" };
  if (row.busy_below) return { shape: "busy", word: "running below", tone: "running" };
  return { shape, word, tone };
}

/** The sign of a state: a shape of its own and, for readers, its word. @param {any} row */
export function stateIcon(row) {
  const { shape, word, tone } = stateOf(row);
  return h("span", { class: `state ${tone}`, title: word }, icon(/** @type {any} */ (shape)), h("span.sr", null, word));
}

/** The sign and the word. @param {any} row */
export function stateBadge(row) {
  const { shape, word, tone } = stateOf(row);
  return h("span", { class: `badge ${tone}` }, icon(/** @type {any} */ (shape)), word);
}

/** The two largest units, as the command line prints them. @param {number | null | undefined} ms */
export function duration(ms) {
  if (ms == null || Number.isNaN(ms)) return "";
  if (ms < 1000) return `${Math.max(0, Math.round(ms))}ms`;
  const seconds = Math.floor(ms / 1000);
  for (const [size, big, small, divisor] of /** @type {[number, string, string, number][]} */ ([
    [86400, "d", "h", 3600],
    [3600, "h", "m", 60],
    [60, "m", "s", 1],
  ]))
    if (seconds >= size) return `${Math.floor(seconds / size)}${big} ${Math.floor((seconds % size) / divisor)}${small}`;
  return `${seconds}s`;
}

// How far this browser's clock is from the server's; set with every message that carries the server's time.
let clockOffset = 0;
/** @param {string | null | undefined} iso */
export function setClock(iso) {
  if (iso) clockOffset = Date.parse(iso) - Date.now();
}
export const serverNow = () => Date.now() + clockOffset;

/** @param {string | null | undefined} iso */
export const sinceMs = (iso) => (iso ? Math.max(0, serverNow() - Date.parse(iso)) : null);

const EXACT = new Intl.DateTimeFormat("sv-SE", { dateStyle: "short", timeStyle: "medium" });
const DAY = new Intl.DateTimeFormat("en-GB", { weekday: "short", hour: "2-digit", minute: "2-digit" });
const CLOCK = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit", second: "2-digit" });
const ZONE = Intl.DateTimeFormat().resolvedOptions().timeZone;

/** @param {string | null | undefined} iso */
export const exactTime = (iso) => (iso ? EXACT.format(new Date(iso)) : "");
/** @param {string | null | undefined} iso */
export const clockTime = (iso) => (iso ? CLOCK.format(new Date(iso)) : "");

/** A moment: how long ago, or how long until then; the exact time is in the title. @param {string | null | undefined} iso */
export function when(iso) {
  if (!iso) return null;
  const ms = serverNow() - Date.parse(iso);
  const far = Math.abs(ms) >= 86400e3;
  const short = duration(Math.floor(Math.abs(ms) / 1000) * 1000).replace(/^0ms$/, "0s").replace(/ .*/, far ? "" : "$&");
  const text = Math.abs(ms) > 7 * 86400e3 ? exactTime(iso).slice(0, 10) : ms >= 0 ? `${short.split(" ")[0]} ago` : far ? DAY.format(new Date(iso)) : `in ${short}`;
  return h("time", { datetime: iso, title: `${exactTime(iso)} ${ZONE}`, class: "num" }, text);
}

/** @param {number | null | undefined} cost */
export const money = (cost) => (cost == null ? "" : cost > 0 && cost < 0.01 ? "<$0.01" : `$${cost.toFixed(2)}`);
const NUMBER = new Intl.NumberFormat("en-US");
/** @param {number | null | undefined} n */
export const number = (n) => (n == null ? "" : NUMBER.format(n));
/** @param {number | null | undefined} n */
export const bytes = (n) => (n == null ? "" : n < 1024 ? `${n} B` : n < 1048576 ? `${(n / 1024).toFixed(1)} KiB` : `${(n / 1048576).toFixed(1)} MiB`);

/** The last part of a path, as the name of a project. @param {string | null | undefined} path */
export const baseName = (path) => (path || "").replace(/\/+$/, "").split("/").pop() || path || "";

/** What a task is called: its description, the name of a recurring task, else its command or prompt. @param {any} row */
export const title = (row) => row.description || (row.kind !== "oneshot" && row.name) || row.line || row.task_id;

/** @param {string} id */
export const path = (id) => `/t/${encodeURIComponent(id)}`;

/** @param {string} via */
export const viaText = (via) => (via.startsWith("web:") ? "the web interface" : via === "cli" ? "a terminal" : via.replace(/^channel:/, ""));

/** A button that copies a text and says so. @param {string} text @param {string} [label] */
export function copyButton(text, label = "Copy") {
  return h(
    "button",
    {
      class: "ghost",
      type: "button",
      "aria-label": `Copy ${visibleText(text)}`,
      onclick: async (event) => {
        const button = event.currentTarget;
        await navigator.clipboard.writeText(text);
        announce("Copied.");
        button.classList.add("copied");
        setTimeout(() => button.classList.remove("copied"), 1200);
      },
    },
    icon("copy"),
    label,
  );
}

/** A command line of the terminal with a button to copy it. @param {string} text */
export const cliLine = (text) => h("div.cli", null, h("code", null, h("span.prompt", { "aria-hidden": "true" }, "$ "), ...visible(text)), copyButton(text));

/** Tell screen readers something. @param {string} text @param {boolean} [urgent] */
export function announce(text, urgent = false) {
  const region = document.getElementById(urgent ? "alerts" : "announcements");
  if (region) region.textContent = text;
}
