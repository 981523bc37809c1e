// What the page knows: the rows of tasks by id, the counts, the home and the connection. Filled by one request and then by the stream.

import { perFrame } from "./dom.js";
import { ApiError, Stream, get } from "./net.js";
import { announce, number, setClock, title, visibleText } from "./text.js";

/** @typedef {Record<string, any>} Row */

/** @type {{rows: Map<string, Row>, counts: Record<string, number>, home: any, connection: import("./net.js").Connection | "", board: any, asOf: string, error: ApiError | null, isLoaded: boolean, moreRecent: number | null}} */
export const store = { rows: new Map(), counts: {}, home: null, connection: "", board: null, asOf: "", error: null, isLoaded: false, moreRecent: null };

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
export const changed = perFrame(() => listeners.forEach((listener) => listener()), true);

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
    for (const id of data.gone || []) store.rows.delete(id);
    if (data.counts) store.counts = data.counts;
  } else if (event === "ask") {
    take(data.task);
    announce(`Waiting for your approval: ${visibleText(title(data.task))}`, true);
  } else if (event === "reset") void loadBoard();
  else if (event === "bye") store.asOf = data.at || store.asOf;
  for (const listener of messageListeners) listener({ event, data });
  changed();
}

const assets = () => document.querySelector('meta[name="backburner"]')?.getAttribute("content");

/** @param {Row} row */
function take(row) {
  const old = store.rows.get(row.task_id);
  if (old && isLive(old) && !isLive(row) && !row.parent_task) announceEnd(row);
  store.rows.set(row.task_id, row);
}

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

/** @param {Record<string, any>} [query] */
export async function loadBoard(query) {
  try {
    const board = await get("/board", query);
    store.rows = new Map();
    for (const section of ["recent", "next", "queued", "running", "needs_you"]) for (const row of board[section]) store.rows.set(row.task_id, row);
    store.board = board;
    store.moreRecent = board.recent_next;
    store.asOf = board.at;
    setClock(board.at);
    if (board.home) takeHome(board.home);
    const { running, queued, needs_you } = board.counts;
    store.counts = { ...store.counts, running, queued, needs_you };
    store.error = null;
  } catch (error) {
    store.error = error instanceof ApiError ? error : new ApiError(0, { message: String(error) });
  }
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
