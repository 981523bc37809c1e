// What the page knows: the rows of tasks by id, the counts, the home and the connection. Filled by one request and then by the stream.

import { perFrame } from "./dom.js";
import { ApiError, Stream, get } from "./net.js";
import { announce, number, setClock, title, visibleText } from "./text.js";

/** @typedef {Record<string, any>} Row */

/** @type {{rows: Map<string, Row>, counts: Record<string, number>, home: any, connection: import("./net.js").Connection | "", board: any, asOf: string, error: ApiError | null, isLoaded: boolean, moreRecent: number | null, later: Set<string>, isBehind: boolean}} */
export const store = { later: new Set(), isBehind: false, rows: new Map(), counts: {}, home: null, connection: "", board: null, asOf: "", error: null, isLoaded: false, moreRecent: null };

/** @type {Set<() => void>} */
const listeners = new Set();
/** @type {Set<(message: import("./net.js").Message) => void>} */
const messageListeners = new Set();

/** Call `listener` once per frame in which something changed. Returns a function that ends it. @param {() => void} listener */
export function onChange(listener) {
  listeners.add(listener);
  return () => listeners.delete(listener);
}
/** @param {(message: import("./net.js").Message) => void} listener */
export function onMessage(listener) {
  messageListeners.add(listener);
  return () => messageListeners.delete(listener);
}
let drawnAt = 0;
export const changed = perFrame(() => {
  drawnAt = performance.now();
  listeners.forEach((listener) => listener());
}, true);

const TICK = 900; // milliseconds; less than the second between two calls
const TICK_BEHIND = 1500; // every other call
/** Draw the time that passes, and while more rows are to come also those that came: called every second. */
export const tick = () => document.hidden || performance.now() - drawnAt < (store.isBehind ? TICK_BEHIND : TICK) || changed();

export const stream = new Stream(received, (state) => {
  if (state === "live" && store.connection && store.connection !== "live") void loadHome();
  store.connection = state;
  changed();
});

/** @param {import("./net.js").Message} message */
function received({ event, data }) {
  if (data.at) {
    setClock(data.at);
    store.asOf = data.at;
  }
  if (event === "hello" && store.home && data.assets && assets() && data.assets !== assets()) location.reload();
  if (event === "rows") {
    for (const row of data.tasks || []) take(row);
    for (const id of data.gone || []) {
      store.rows.delete(id);
      meanwhile?.set(id, null);
    }
    for (const id of data.later || []) if (store.rows.has(id)) store.later.add(id);
    store.isBehind = Boolean(data.more);
    if (data.counts) store.counts = data.counts;
  } else if (event === "ask") {
    take(data.task);
    announce(`Waiting for your approval: ${visibleText(title(data.task))}`, true);
  } else if (event === "reset") void loadBoard();
  else if (event === "bye") store.asOf = data.at || store.asOf;
  for (const listener of messageListeners) listener({ event, data });
  if (event !== "rows" || !store.isBehind) changed();
}

const assets = () => document.querySelector('meta[name="backburner"]')?.getAttribute("content");

/** @param {Row} row */
function take(row) {
  const old = store.rows.get(row.task_id);
  if (old && isLive(old) && !isLive(row) && !row.parent_task) announceEnd(row);
  store.rows.set(row.task_id, row);
  store.later.delete(row.task_id);
  meanwhile?.set(row.task_id, row);
}

/** The row of a task, unless it has changed and the new one comes later. @param {string} id */
export const latest = (id) => (store.later.has(id) ? undefined : store.rows.get(id));

const TOGETHER = 500; // milliseconds during which ends are collected before they are announced
const BETWEEN = 3000; // milliseconds between two announcements of ends
/** @type {Row[]} the tasks whose end was not announced yet */
let justEnded = [];
let announcedAt = -BETWEEN;

/** Announce the end of a task, or how many have ended if there are several. @param {Row} row */
function announceEnd(row) {
  justEnded.push(row);
  if (justEnded.length > 1) return;
  const say = () => {
    const failed = justEnded.filter(({ status }) => status === "failed").length;
    if (justEnded.length === 1) announce(`${visibleText(title(row))}: ${row.status}.`);
    else announce(`${number(justEnded.length)} tasks ended${failed ? `, ${number(failed)} of them failed` : ""}.`);
    justEnded = [];
    announcedAt = performance.now();
  };
  setTimeout(say, Math.max(TOGETHER, announcedAt + BETWEEN - performance.now()));
}

/** @type {Map<string, Row | null> | null} rows that came while the board is loaded, and may be newer than those of the answer */
let meanwhile = null;
const MAX_PAGES = 10;
/** @param {Row | undefined} row @returns {string} */
export const endOf = (row) => row?.completed_at || row?.updated_at || "";

/** @param {Record<string, any>} [query] */
export async function loadBoard(query) {
  const since = (meanwhile = new Map());
  try {
    const board = await get("/board", query);
    let { recent, recent_next: next } = board;
    // If further pages of ended tasks were loaded, load as many again.
    const ended = store.moreRecent === store.board?.recent_next ? [] : [...store.rows.values()].filter((row) => sectionOf(row) === "recent");
    const last = ended.reduce((found, row) => (endOf(row) < found ? endOf(row) : found), "~");
    for (let page = 0; next && endOf(recent[recent.length - 1]) > last && page < MAX_PAGES; page++) {
      const answer = await get("/tasks", { ended: true, before: next, limit: 200 });
      recent = [...recent, ...answer.items];
      next = answer.next;
    }
    if (since !== meanwhile) return; // it is loaded once more
    store.rows = new Map();
    for (const section of [recent, board.next, board.queued, board.running, board.needs_you]) for (const row of section) store.rows.set(row.task_id, row);
    for (const [id, row] of since) row ? store.rows.set(id, row) : store.rows.delete(id);
    store.later.clear();
    store.isBehind = false;
    store.board = board;
    store.moreRecent = next;
    store.asOf = board.at;
    setClock(board.at);
    if (board.home) takeHome(board.home);
    const { running, queued, needs_you } = board.counts;
    store.counts = { ...store.counts, running, queued, needs_you };
    store.error = null;
  } catch (error) {
    store.error = error instanceof ApiError ? error : new ApiError(0, { message: String(error) });
  }
  if (since === meanwhile) meanwhile = null;
  changed();
}

export async function loadHome() {
  try {
    takeHome(await get("/home"));
  } catch (error) {
    if (!(error instanceof ApiError)) throw error;
  }
  changed();
}

/** @param {any} home */
function takeHome(home) {
  store.home = home;
  store.counts = home.counts;
  setClock(home.server_time);
}

/** Load the first state and follow what changes. */
export async function begin() {
  await loadBoard({ home: true });
  store.isLoaded = true;
  stream.start(store.board?.last_event ?? 0);
}

/** @param {Row} row */
export const isLive = (row) => ["running", "resumed", "pending", "waiting"].includes(row.status);

/** The part of the board that a row belongs to. @param {Row} row @returns {"needs_you" | "running" | "queued" | "next" | "recent"} */
export function sectionOf(row) {
  if (row.needs_you) return "needs_you";
  const state = row.run_status && ["running", "resumed"].includes(row.run_status) ? row.run_status : row.status;
  if (state === "running" || state === "resumed") return "running";
  if (state === "pending" || state === "waiting") return "queued";
  if (state === "active" || state === "paused") return "next";
  return "recent";
}

export const waitingForYou = () =>
  [...store.rows.values()].filter((row) => row.needs_you).sort((a, b) => (a.created_at < b.created_at ? -1 : a.created_at > b.created_at ? 1 : 0));

// -- choices of this browser

/** @param {string} name @param {string} fallback */
export const setting = (name, fallback) => localStorage.getItem(`bb-${name}`) || fallback;

/** @param {string} name @param {string} value */
export function setSetting(name, value) {
  localStorage.setItem(`bb-${name}`, value);
  applySettings();
  changed();
}

export function applySettings() {
  document.documentElement.dataset.theme = setting("theme", "system");
  document.documentElement.dataset.density = setting("density", "normal");
}
