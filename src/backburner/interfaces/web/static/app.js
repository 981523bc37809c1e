// The frame of the page: addresses, the rail, the header with the connection, keys and dialogs. The views draw what is in between.

import { find, h, icon, patch } from "./dom.js";
import { listen } from "./keys.js";
import { keepCredential, loadCredential, whenUnpaired } from "./net.js";
import { openPalette } from "./palette.js";
import { applySettings, begin, changed, onChange, onMessage, setSetting, setting, store, tick, waitingForYou } from "./store.js";
import { announce, clockTime, cliLine, visible } from "./text.js";
import { nowView } from "./views/now.js";

/**
 * What a view is: its name, what it draws, its keys, and what to do when it is left.
 * @typedef {{title: () => string, draw: () => import("./dom.js").Child[], commands?: () => import("./keys.js").Command[], close?: () => void, moved?: () => void, wide?: boolean}} View
 */

// The board comes with this module; the other views are loaded when they are needed, or when there is time.
const task = async () => (await import("./views/task.js")).taskView;
const ask = async () => (await import("./views/ask.js")).askView;
const inbox = async () => (await import("./views/records.js")).inboxView;
const audit = async () => (await import("./views/records.js")).auditView;
const settings = async () => (await import("./views/settings.js")).settingsView;
const palette = () => openPalette(commands);
const PREFETCH = 1000; // milliseconds after the first view is drawn

/** @type {[RegExp, () => Promise<(...parts: string[]) => View>][]} */
const ROUTES = [
  [/^\/$/, async () => nowView],
  [/^\/ask(?:\/([^/]+))?$/, ask],
  [/^\/t\/([^/]+)(?:\/(\d+))?$/, task],
  [/^\/inbox$/, inbox],
  [/^\/audit$/, audit],
  [/^\/settings$/, settings],
];
/** @type {[string, string, any, string][]} */
const PLACES = [
  ["/", "Now", "now", "g n"],
  ["/ask", "Ask", "asks", "g a"],
  ["/inbox", "Inbox", "inbox", "g i"],
  ["/audit", "Audit", "audit", "g u"],
  ["/settings", "Settings", "settings", "g s"],
];

const root = document.body.appendChild(document.createElement("div"));
root.id = "app";
/** @type {View} */
let view = { title: () => "", draw: () => [] };
let shownPath = "";
let wantedPath = ""; // differs from the one that is shown while a view is loaded
let isPaired = false;

/** Go to another address of the page. @param {string} address */
export function go(address) {
  history.replaceState({ y: scrollY }, "");
  history.pushState({ y: 0 }, "", address);
  route(0);
}

/** Change filters in the address, without a new entry in the history. @param {Record<string, string>} filters */
export function setQuery(filters) {
  const address = new URL(location.href);
  for (const [name, value] of Object.entries(filters)) value ? address.searchParams.set(name, value) : address.searchParams.delete(name);
  history.replaceState(history.state, "", address);
  view.moved?.();
  changed();
}

/** @param {string} name */
export const query = (name) => new URLSearchParams(location.search).get(name) || "";

/** @param {number} y where the page was scrolled to */
async function route(y) {
  const path = location.pathname;
  if (path !== wantedPath) {
    wantedPath = path;
    const made = await viewOf(path).catch((error) => message("Not loaded", `This page could not be loaded: ${error.message}`));
    if (path !== wantedPath) return made.close?.();
    const isFirst = shownPath === "";
    view.close?.();
    [view, shownPath] = [made, path];
    draw();
    scrollTo(0, y);
    if (!isFirst) find("h1")?.focus({ preventScroll: true });
  } else if (path === shownPath) view.moved?.();
  changed();
}

/** @type {Promise<unknown> | null} */
let styled = null;
/** Load the looks of the views that do not come with this module. */
function styles() {
  styled ??= new Promise((resolve, reject) => {
    const onerror = () => (link.remove(), (styled = null), reject(new Error("the server cannot be reached.")));
    const link = Object.assign(document.createElement("link"), { rel: "stylesheet", href: new URL("views.css", import.meta.url).href, onload: resolve, onerror });
    document.head.append(link);
  });
  return styled;
}

/** @param {string} path @returns {Promise<View>} */
async function viewOf(path) {
  if (!isPaired) return (await Promise.all([import("./views/settings.js"), styles()]))[0].pairView(paired);
  for (const [pattern, load] of ROUTES) {
    const found = pattern.exec(path);
    if (!found) continue;
    const [make] = await Promise.all([load(), path === "/" || styles()]);
    return make(...found.slice(1).map((part) => (part ? decodeURIComponent(part) : "")));
  }
  return message("Not found", "There is no such page.");
}

/** @param {string} title @param {string} text @returns {View} */
const message = (title, text) => ({ title: () => title, draw: () => [h("div.panel", null, h("p", null, text), h("p", null, h("a", { href: "/" }, "Back to the board")))] });

async function paired() {
  isPaired = true;
  shownPath = wantedPath = "";
  if (location.pathname === "/pair") history.replaceState({}, "", "/");
  await Promise.all([begin(), route(0)]);
  setTimeout(() => void Promise.all([styles(), task(), ask(), inbox(), settings()]).catch(() => {}), PREFETCH);
}

// -- the frame

/** The title and the icon of the tab. Returns how many tasks wait for you, which both show. */
function drawTab() {
  const waiting = waitingForYou().length;
  document.title = `${waiting ? `(${waiting}) ` : ""}${view.title()} · Backburner`;
  drawFavicon(waiting);
  return waiting;
}

function draw() {
  const waiting = drawTab();
  document.body.classList.toggle("bare", !isPaired);
  patch(root, [
    h("a.skip", { key: "skip", href: "#main" }, "Skip to the content"),
    isPaired &&
      h(
        "nav",
        { key: "rail", class: "rail", "aria-label": "Places" },
        h("a", { class: `brand${waiting ? " lit" : ""}`, href: "/", "aria-label": "Backburner" }, icon("burner"), h("span", null, "backburner")),
        ...PLACES.map(([address, name, sign, keys]) => {
          const isHere = address === "/" ? shownPath === "/" || shownPath.startsWith("/t/") : shownPath.startsWith(address);
          const count = name === "Ask" ? waiting : name === "Inbox" ? store.counts.inbox : 0;
          return h("a", { key: address, href: address, title: `${name}  ${keys}`, "aria-current": isHere ? "page" : null, class: name === "Ask" && count ? "lit" : null }, icon(sign), h("span", null, name), count ? h("b.num", { key: count }, String(count > 99 ? "99+" : count), h("span.sr", null, name === "Ask" ? " waiting for you" : " new")) : null);
        }),
        h("span.grow", null),
        h("button.ghost.keys-hint", { type: "button", onclick: showKeys, title: "All keys  ?" }, h("kbd", null, "?"), "Keys"),
      ),
    h(
      "div",
      { key: "page", class: "page" },
      isPaired &&
        h(
          "header",
          { key: "header" },
          h("h1", { tabindex: "-1", class: "cut" }, ...visible(view.title(), true)),
          h("span.grow", null),
          connection(),
          h("button.find", { type: "button", onclick: palette, "aria-label": "Commands and tasks" }, icon("search"), h("span", null, "Commands and tasks"), h("kbd", null, "Ctrl K")),
        ),
      isPaired && banner(),
      h("main", { key: "main", id: "main", tabindex: "-1", class: view.wide ? "wide" : null }, h("div", { key: shownPath + isPaired, class: "view" }, ...(store.isLoaded || !isPaired ? view.draw() : []))),
    ),
    h("div", { key: "announcements", id: "announcements", class: "sr", "aria-live": "polite", mount: () => {} }),
    h("div", { key: "alerts", id: "alerts", class: "sr", "aria-live": "assertive", mount: () => {} }),
  ]);
}

function connection() {
  const state = store.connection;
  const engineAway = store.home?.engine?.state === "away";
  const [sign, text, tone] = state === "live" ? (engineAway ? ["failed", "engine away", "failed"] : ["running", "live", "done"]) : state === "away" ? ["failed", "not connected", "failed"] : ["busy", state ? "reconnecting" : "connecting", "queued"];
  return h("span", { class: `connection ${tone}`, role: "status", title: store.asOf ? `as of ${clockTime(store.asOf)}` : "" }, icon(/** @type {any} */ (sign)), h("span", null, text), state !== "live" && store.asOf ? h("span.num.muted", null, `as of ${clockTime(store.asOf)}`) : null);
}

function banner() {
  const home = store.home;
  if (home?.started_by_agent) return h("div.banner", { key: "banner" }, icon("warning"), h("span", null, `This server was started by ${home.started_by_agent}. Pair browsers from a terminal of your own.`));
  if (store.connection === "away") return h("div.banner", { key: "banner" }, icon("warning"), h("span", null, "The server does not answer. What you see may be old. Start it with:"), cliLine("backburner web"));
  if (home?.engine?.state === "away") return h("div.banner", { key: "banner" }, icon("warning"), h("span", null, home.engine.problem || "The engine does not run."), cliLine("backburner doctor"));
  if (home && !home.passkeys_here && home.address && home.address !== location.origin) return h("div.banner.quiet", { key: "banner" }, icon("key"), h("span", null, "Passkeys do not work at this address. ", h("a", { href: home.address + location.pathname }, `Open ${home.address}`)));
  return null;
}

let faviconCount = -1;
/** @param {number} count */
function drawFavicon(count) {
  if (count === faviconCount) return;
  faviconCount = count;
  const colour = count ? "%23d97706" : "%23808590";
  const link = document.querySelector('link[rel="icon"]') || document.head.appendChild(Object.assign(document.createElement("link"), { rel: "icon" }));
  link.setAttribute("href", `data:image/svg+xml,<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 16 16" fill="none" stroke="${colour}" stroke-width="1.8"><circle cx="8" cy="8" r="6.5"/><circle cx="8" cy="8" r="3.4"/><circle cx="8" cy="8" r="1.2" fill="${colour}"/></svg>`);
}

// -- keys and dialogs

/** @returns {import("./keys.js").Command[]} */
function commands() {
  if (!isPaired) return [];
  return [
    ...((wantedPath === shownPath && view.commands?.()) || []),
    ...PLACES.map(([address, name, , keys]) => ({ keys, label: `Go to ${name}`, run: () => go(address), where: "everywhere" })),
    { keys: "Ctrl-k, :", label: "Commands and tasks", run: palette, where: "everywhere", isHidden: true },
    { keys: "?", label: "Show all keys", run: showKeys, where: "everywhere" },
    { keys: "T", label: "Switch between light and dark", run: switchTheme, where: "everywhere" },
    { keys: "Escape", label: "Back", run: () => (shownPath === "/" ? /** @type {any} */ (document.activeElement)?.blur?.() : history.state?.y !== undefined ? history.back() : go("/")), where: "everywhere", isHidden: true },
  ];
}

export function switchTheme() {
  const dark = setting("theme", "system") === "dark" || (setting("theme", "system") === "system" && matchMedia("(prefers-color-scheme: dark)").matches);
  setSetting("theme", dark ? "light" : "dark");
}

function showKeys() {
  const groups = Map.groupBy(commands(), (command) => command.where || "on this page");
  dialog("Keys", [...groups].map(([where, list]) => h("section", null, h("h3", null, where), h("dl.keys", null, ...list.map((command) => h("div", null, h("dt", null, ...command.keys.split(", ").flatMap((keys, index) => [index ? " or " : "", ...keys.split(" ").map((key) => h("kbd", null, key))])), h("dd", null, command.label)))))), []);
}

/** A dialog that Escape and a click beside it close; the focus then goes back to where it was. @param {string} label */
export function modal(label) {
  const element = document.body.appendChild(document.createElement("dialog"));
  const back = document.activeElement;
  const close = () => {
    element.close();
    element.remove();
    if (back instanceof HTMLElement && back.isConnected) back.focus();
  };
  element.setAttribute("aria-label", label);
  element.oncancel = (event) => (event.preventDefault(), close());
  element.onclick = (event) => event.target === element && close();
  return { element, close };
}

/** Ask or say something. @param {string} title @param {import("./dom.js").Child[]} content @param {[string, () => void][]} actions */
export function dialog(title, content, actions) {
  const { element, close } = modal(title);
  patch(element, [
    h("h2", null, title),
    ...content,
    h("p.actions", null, h("button", { type: "button", onclick: close }, actions.length ? "Cancel" : "Close"), ...actions.map(([label, run]) => h("button", { type: "button", class: "primary", onclick: () => (close(), run()) }, label))),
  ]);
  element.showModal();
}

/** Show where a link of somebody else's text leads before it is opened. @param {string} address */
export function openLink(address) {
  dialog("Open this address?", [h("p.mono.break", null, ...visible(address))], [["Open", () => void window.open(address, "_blank", "noopener,noreferrer")]]);
}

addEventListener("click", (event) => {
  const link = event.target instanceof Element && /** @type {HTMLAnchorElement | null} */ (event.target.closest("a[href]"));
  if (!link || event.defaultPrevented || event.button || event.ctrlKey || event.metaKey || event.shiftKey) return;
  if (link.origin !== location.origin || link.target || link.getAttribute("href")?.startsWith("#")) return;
  event.preventDefault();
  go(link.href);
});
addEventListener("popstate", (event) => route(event.state?.y || 0));
addEventListener("unhandledrejection", (event) => announce(String(event.reason?.message || event.reason), true));

history.scrollRestoration = "manual";
applySettings();
onChange(draw);
onMessage(() => document.hidden && drawTab()); // nothing else is drawn while it is hidden
listen(commands);
whenUnpaired(async () => {
  if (!isPaired) return;
  isPaired = false;
  await keepCredential("");
  location.reload();
});
setInterval(tick, 1000);
// Not awaited: a view that is loaded imports this module, which would then wait for itself.
void loadCredential().then((isKnown) => (isKnown ? paired() : route(0)));
