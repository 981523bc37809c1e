// Talks to the server: the credential of this page, requests, and one live stream for all tabs of the browser.
//
// The tab that holds the Web Lock keeps the stream and passes what arrives to the others; when it closes, the next tab continues from the
// last event. HTTP/1.1 permits six connections per host, so a stream per tab would block the seventh.

const API = "/api/v1";

// -- the credential: only in IndexedDB, which belongs to this address and port alone

/** @param {IDBTransactionMode} mode @param {(store: IDBObjectStore) => IDBRequest} action @returns {Promise<any>} */
function inDatabase(mode, action) {
  return new Promise((resolve, reject) => {
    const opening = indexedDB.open("backburner", 1);
    opening.onupgradeneeded = () => opening.result.createObjectStore("page");
    opening.onerror = () => reject(opening.error);
    opening.onsuccess = () => {
      const request = action(opening.result.transaction("page", mode).objectStore("page"));
      request.onsuccess = () => (resolve(request.result), opening.result.close());
      request.onerror = () => (reject(request.error), opening.result.close());
    };
  });
}

let credential = "";

/** Whether this page has a credential. */
export async function loadCredential() {
  credential = (await inDatabase("readonly", (store) => store.get("credential"))) || "";
  return credential !== "";
}

/** @param {string} value */
export async function keepCredential(value) {
  credential = value;
  await inDatabase("readwrite", (store) => (value ? store.put(value, "credential") : store.delete("credential")));
}

// -- requests

/** An answer that is not a success, with the server's sentence and code; status 0 means that the server was not reached. */
export class ApiError extends Error {
  /** @param {number} status @param {{code?: string, message?: string, fields?: any}} error */
  constructor(status, error) {
    super(error.message || "The server did not answer.");
    this.status = status;
    this.code = error.code || "";
    this.fields = error.fields || {};
  }
}

/** What went wrong, in words, with what would help. @param {unknown} error */
export const errorText = (error) => (error instanceof ApiError ? error.message + (error.fields.do ? ` (${error.fields.do})` : "") : error instanceof Error ? error.message : String(error));

/** The answer of a passkey to a challenge of the server. @param {any} challenge */
export async function signed(challenge) {
  const proof = /** @type {any} */ (await navigator.credentials.get({ publicKey: PublicKeyCredential.parseRequestOptionsFromJSON(challenge.publicKey) }));
  return { nonce: challenge.nonce, proof: proof.toJSON() };
}

/** @type {() => void} */
let onUnpaired = () => {};
/** @param {() => void} listener */
export const whenUnpaired = (listener) => void (onUnpaired = listener);

/**
 * @param {string} method @param {string} path @param {any} [body]
 * @returns {Promise<Response>}
 */
async function request(method, path, body) {
  /** @type {Record<string, string>} */
  const headers = { Accept: "application/json" };
  if (credential) headers.Authorization = `Bearer ${credential}`;
  if (body !== undefined) headers["Content-Type"] = "application/json";
  let response;
  try {
    response = await fetch(API + path, { method, headers, body: body === undefined ? undefined : JSON.stringify(body), cache: "no-store" });
  } catch {
    throw new ApiError(0, { code: "unreachable", message: "The server cannot be reached." });
  }
  if (response.ok) return response;
  const answer = await response.json().catch(() => ({}));
  if (response.status === 401) onUnpaired();
  throw new ApiError(response.status, answer.error || {});
}

/** @param {string} path @param {Record<string, any>} [query] @returns {Promise<any>} */
export const get = async (path, query) => (await request("GET", path + queryString(query))).json();
/** @param {string} path @param {any} [body] @returns {Promise<any>} */
export const post = async (path, body = {}) => (await request("POST", path, body)).json();
/** @param {string} path */
export const remove = async (path) => void (await request("DELETE", path));

/** Save what the server sends as a file. @param {string} path @param {string} name */
export async function download(path, name) {
  const address = URL.createObjectURL(await (await request("GET", path)).blob());
  const link = document.createElement("a");
  link.href = address;
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(address), 10_000);
}

/** @param {Record<string, any>} [query] */
export function queryString(query) {
  const kept = new URLSearchParams();
  for (const [name, value] of Object.entries(query || {})) if (value != null && value !== "" && value !== false) kept.append(name, String(value));
  const text = kept.toString();
  return text && `?${text}`;
}

/** @param {string} id */
export const taskPath = (id) => `/tasks/${encodeURIComponent(id)}`;
/** @param {string} id */
export const runPath = (id) => `/runs/${encodeURIComponent(id)}`;

// -- the stream

/**
 * @typedef {{event: string, data: any}} Message
 * @typedef {"live" | "connecting" | "away"} Connection
 */

const QUIET_AFTER = 60_000;
const SILENCE_LIMIT = 40_000; // the server writes at least every 15 seconds
const MAX_RUNS = 8;

/** One tab's share of the stream that all tabs use. */
export class Stream {
  /** @param {(message: Message) => void} onMessage @param {(state: Connection) => void} onState */
  constructor(onMessage, onState) {
    this.onMessage = onMessage;
    this.onState = onState;
    this.tab = crypto.randomUUID();
    this.channel = new BroadcastChannel("bb-stream");
    /** @type {Map<string, string>} runs that this tab follows, with the cursor from which */
    this.follows = new Map();
    /** @type {Map<string, {follows: [string, string][], hidden: boolean, at: number}>} what the other tabs want, known by the leader */
    this.others = new Map();
    /** @type {Map<string, string>} how far each log was received, known by the leader */
    this.cursors = new Map();
    this.isLeader = this.isQuiet = false;
    this.last = 0;
    this.failures = 0;
    this.hiddenSince = document.hidden ? Date.now() : 0;
    this.channel.onmessage = ({ data }) => this.heard(data);
    document.addEventListener("visibilitychange", () => {
      this.hiddenSince = document.hidden ? Date.now() : 0;
      this.tell();
      if (document.hidden) setTimeout(() => this.isLeader && this.restart(), QUIET_AFTER + 100);
    });
    addEventListener("pageshow", () => this.state && this.tell());
    addEventListener("pagehide", () => this.channel.postMessage({ kind: "left", tab: this.tab }));
  }

  /** @param {number} after the last event that the page knows */
  start(after) {
    this.last = after;
    this.channel.postMessage({ kind: "state?" });
    void navigator.locks.request("bb-stream", async () => {
      this.isLeader = true;
      this.channel.postMessage({ kind: "who" });
      await this.lead();
    });
    this.tell();
  }

  /** Receive the log of a run from a cursor on. @param {string} run @param {string} cursor */
  follow(run, cursor) {
    this.follows.set(run, cursor);
    this.tell();
  }

  /** @param {string} run */
  unfollow(run) {
    if (this.follows.delete(run)) this.tell();
  }

  /** @param {string} run @param {string} cursor */
  received(run, cursor) {
    if (this.follows.has(run)) this.follows.set(run, cursor);
  }

  tell() {
    const follows = [...this.follows];
    if (this.isLeader) this.restart();
    else this.channel.postMessage({ kind: "wants", tab: this.tab, follows, hidden: document.hidden });
  }

  /** @param {any} data */
  heard(data) {
    if (data.kind === "message") this.deliver(data.message);
    else if (data.kind === "state") this.onState(data.state);
    else if (data.kind === "who") this.tell();
    else if (!this.isLeader) return;
    else if (data.kind === "state?") this.channel.postMessage({ kind: "state", state: this.state });
    else if (data.kind === "wants") {
      this.others.set(data.tab, { follows: data.follows, hidden: data.hidden, at: Date.now() });
      this.restart();
    } else if (data.kind === "left" && this.others.delete(data.tab)) this.restart();
  }

  /** @param {Message} message */
  deliver(message) {
    if (message.data?.last_event > this.last) this.last = message.data.last_event;
    if (message.data?.id > this.last) this.last = message.data.id;
    this.onMessage(message);
  }

  /** @param {Connection} state */
  setState(state) {
    if (state === this.state) return;
    /** @type {Connection} */
    this.state = state;
    this.onState(state);
    this.channel.postMessage({ kind: "state", state });
  }

  /** What all tabs want, as one text to compare. */
  wanted() {
    const runs = new Map(this.follows);
    for (const other of this.others.values()) for (const [run, cursor] of other.follows) if (!runs.has(run)) runs.set(run, cursor);
    return [...runs].slice(-MAX_RUNS);
  }

  /** Open the stream again if what is wanted has changed. */
  restart() {
    const hidden = this.hiddenSince && Date.now() - this.hiddenSince >= QUIET_AFTER;
    const quiet = Boolean(hidden) && [...this.others.values()].every((other) => other.hidden);
    const runs = this.wanted().map(([run]) => run).join("\n");
    if (runs === this.opened && quiet === this.isQuiet) return;
    // Rows were left out while it was quiet.
    if (this.isQuiet && !quiet) this.broadcast({ event: "reset", data: {} });
    this.isQuiet = quiet;
    this.abort?.abort("changed");
    this.wake?.();
  }

  /** @param {Message} message */
  broadcast(message) {
    if (this.others.size) this.channel.postMessage({ kind: "message", message });
    this.deliver(message);
  }

  /** Keep the stream open for as long as this tab lives. */
  async lead() {
    for (;;) {
      if (!this.state || this.failures) this.setState(this.failures > 2 ? "away" : "connecting");
      const abort = (this.abort = new AbortController());
      let changed = false;
      try {
        await this.read(abort);
      } catch (error) {
        changed = abort.signal.reason === "changed";
        if (error instanceof ApiError && error.status === 401) return onUnpaired();
      }
      if (changed) continue;
      this.failures++;
      this.setState(this.failures > 2 ? "away" : "connecting");
      const pause = Math.min(5000, 250 * 2 ** Math.min(this.failures, 5)) * (0.7 + 0.3 * Math.random());
      await new Promise((resolve) => {
        this.wake = () => resolve(null);
        setTimeout(resolve, pause);
        addEventListener("online", this.wake, { once: true });
      });
    }
  }

  /** @param {AbortController} abort */
  async read(abort) {
    const runs = this.wanted();
    this.opened = runs.map(([run]) => run).join("\n");
    const query = new URLSearchParams({ after: String(this.last) });
    if (this.isQuiet) query.set("quiet", "1");
    for (const [run, cursor] of runs) {
      query.append("run", run);
      query.append("cursor", this.cursors.get(run) || cursor);
    }
    for (const run of this.cursors.keys()) if (!runs.some(([other]) => other === run)) this.cursors.delete(run);
    const response = await fetch(`${API}/stream?${query}`, {
      headers: { Authorization: `Bearer ${credential}`, Accept: "text/event-stream" },
      signal: abort.signal,
      cache: "no-store",
    });
    if (!response.ok || !response.body) throw new ApiError(response.status, {});
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    let buffer = "";
    let timer = 0;
    const silent = () => abort.abort("silent");
    for (;;) {
      clearTimeout(timer);
      timer = setTimeout(silent, SILENCE_LIMIT);
      const { value, done } = await reader.read();
      if (done) break;
      buffer += value.replaceAll("\r\n", "\n");
      const blocks = buffer.split("\n\n");
      buffer = blocks.pop() || "";
      for (const block of blocks) this.arrived(block);
    }
    clearTimeout(timer);
  }

  /** @param {string} block one event of the stream */
  arrived(block) {
    let event = "message";
    let id = 0;
    const data = [];
    for (const line of block.split("\n")) {
      if (line.startsWith("event:")) event = line.slice(6).trim();
      else if (line.startsWith("data:")) data.push(line.slice(5).trimStart());
      else if (line.startsWith("id:")) id = Number(line.slice(3)) || 0;
    }
    if (!data.length) return;
    const message = { event, data: JSON.parse(data.join("\n")) };
    if (id) message.data.id = id;
    if (event === "hello") {
      this.failures = 0;
      this.setState("live");
    }
    if (event === "log") this.cursors.set(message.data.run_id, message.data.cursor);
    this.broadcast(message);
  }
}
