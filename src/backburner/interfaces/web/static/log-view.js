// The output of a run: only the lines in view are in the document, however long the log is. Opens at the end, follows it until somebody
// scrolls up, searches on the server, and links to lines. Lines are loaded in blocks by their numbers.

import { PLAIN, parseLine, webAddress } from "./ansi.js";
import { find, h, icon, patch, perFrame } from "./dom.js";
import { ApiError, download, get, runPath } from "./net.js";
import { onMessage, setSetting, setting, stream } from "./store.js";
import { announce, hiddenMark, number, visibleText } from "./text.js";

const BLOCK = 500;
const TAIL = 400;
const MAX_BLOCKS = 60;
const MAX_HEIGHT = 30_000_000; // pixels; browsers cannot lay out more
const MAX_SHOWN = 20_000; // characters of one line
const OVERSCAN = 8; // lines
const MAX_HITS = 5000;
const TICKS = 100;
const LINK = /https?:\/\/[^\s"'<>`\x00-\x20]+[^\s"'<>`.,;:!?)\]}\x00-\x20]|(?:[\w.@~-]*\/)*[\w.-]+\.[A-Za-z]{1,5}:\d+/g;

/** @typedef {{lines: string[], parsed: (import("./ansi.js").Piece[] | undefined)[], rows: number[], end: import("./ansi.js").Style, used: number, loading?: boolean}} Block */

export class LogView {
  /**
   * @param {HTMLElement} element
   * @param {{run: string, name: string, isLive: boolean, empty: () => string, openLink: (address: string) => void}} options
   */
  constructor(element, options) {
    this.element = element;
    this.options = options;
    /** @type {Map<number, Block>} */
    this.blocks = new Map();
    this.total = 0;
    this.size = 0;
    this.cursor = "";
    this.isUnfinished = false;
    this.isLive = options.isLive;
    this.isLoaded = this.isRemoved = false;
    this.follow = true;
    this.seen = 0; // lines that there were when somebody scrolled away from the end
    this.query = "";
    this.isRegex = false;
    /** @type {number[]} */
    this.hits = [];
    this.hitTotal = 0;
    this.hit = -1;
    this.problem = "";
    this.marked = lineOf(location.hash);
    this.wrap = setting("wrap", matchMedia("(max-width: 700px)").matches ? "on" : "off") === "on";
    this.lastTop = 0;
    this.clock = 0;
    this.drawSoon = perFrame(() => this.draw());
    this.drawFrame();
    this.box = /** @type {HTMLElement} */ (find(".log-box", element));
    this.layer = /** @type {HTMLElement} */ (find(".log-lines", element));
    this.space = /** @type {HTMLElement} */ (find(".log-space", element));
    this.box.addEventListener("scroll", () => this.scrolled(), { passive: true });
    this.resized = new ResizeObserver(() => (this.measure(), this.drawSoon()));
    this.resized.observe(this.box);
    this.stopListening = onMessage(({ event, data }) => event === "log" && data.run_id === this.options.run && this.arrived(data));
    this.onKey = (event) => {
      if ((event.ctrlKey || event.metaKey) && event.key.toLowerCase() === "f" && document.activeElement !== this.input) {
        event.preventDefault();
        this.focusSearch();
      }
    };
    addEventListener("keydown", this.onKey);
    this.onHash = () => this.goTo(lineOf(location.hash));
    addEventListener("hashchange", this.onHash);
    void this.open();
  }

  close() {
    this.resized.disconnect();
    this.stopListening();
    stream.unfollow(this.options.run);
    removeEventListener("keydown", this.onKey);
    removeEventListener("hashchange", this.onHash);
    CSS.highlights?.delete("found");
    CSS.highlights?.delete("current");
  }

  // -- loading

  async open() {
    this.measure();
    await this.loadTail();
    if (this.isLive) stream.follow(this.options.run, this.cursor);
    if (this.marked) this.goTo(this.marked);
  }

  async loadTail() {
    const answer = await this.load({ tail: TAIL });
    if (!answer) return;
    this.cursor = answer.cursor;
    this.total = answer.total_lines;
    this.isUnfinished = answer.text !== "" && !answer.text.endsWith("\n");
    this.isLive = answer.live;
    this.isLoaded = true;
    this.drawFrame();
    this.draw();
  }

  /** @param {Record<string, any>} query */
  async load(query) {
    try {
      const answer = await get(`${runPath(this.options.run)}/log`, query);
      this.problem = "";
      this.isRemoved = answer.removed;
      this.size = answer.size;
      this.put(answer.first_line || 1, linesOf(answer.text));
      return answer;
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      this.problem = error.message;
      this.drawFrame();
      return null;
    }
  }

  /** @param {number} first @param {string[]} lines */
  put(first, lines) {
    for (let at = 0; at < lines.length; at++) {
      const line = first + at - 1;
      const block = this.block(Math.floor(line / BLOCK));
      if (block.lines[line % BLOCK] === lines[at]) continue;
      block.lines[line % BLOCK] = lines[at];
      delete block.parsed[line % BLOCK];
      delete block.rows[line % BLOCK];
    }
  }

  /** @param {number} index @returns {Block} */
  block(index) {
    let block = this.blocks.get(index);
    if (!block) {
      this.blocks.set(index, (block = { lines: [], parsed: [], rows: [], end: PLAIN, used: ++this.clock }));
      if (this.blocks.size > MAX_BLOCKS) {
        const oldest = [...this.blocks].filter(([at]) => at !== index).sort((a, b) => a[1].used - b[1].used)[0];
        this.blocks.delete(oldest[0]);
      }
    }
    return block;
  }

  /** @param {number} index */
  async loadBlock(index) {
    const block = this.block(index);
    if (block.loading) return;
    block.loading = true;
    const before = this.wrap ? this.rowsBefore(index + 1) : 0;
    await this.load({ line: index * BLOCK + 1, lines: BLOCK });
    block.loading = false;
    // With wrapped lines a block above the window may be higher than it was thought to be.
    if (this.wrap && this.rowsBefore(index + 1) - before && this.rowAt() > before) {
      this.place();
      this.box.scrollTop += (this.rowsBefore(index + 1) - before) * this.lineHeight * this.scale;
    }
    this.drawSoon();
  }

  /** @param {any} data a piece of the log from the stream */
  arrived(data) {
    if (!this.isLoaded) return;
    const mine = offsetOf(this.cursor);
    if (offsetOf(data.cursor) > mine) {
      if (data.gap || data.start !== this.cursor) return void this.catchUp();
      this.append(data.text);
      this.cursor = data.cursor;
    }
    stream.received(this.options.run, this.cursor);
    if (!data.live && this.isLive) {
      this.isLive = false;
      stream.unfollow(this.options.run);
      announce(`The output has ended: ${number(this.total)} lines.`);
    }
    this.drawFrame();
    this.drawSoon();
  }

  /** Read what the stream left out; a long gap is skipped, and its lines are loaded when somebody looks at them. */
  async catchUp() {
    if (this.isCatchingUp) return;
    this.isCatchingUp = true;
    const answer = await this.load({ tail: TAIL });
    this.isCatchingUp = false;
    if (!answer) return void setTimeout(() => this.catchUp(), 1000);
    if (offsetOf(answer.cursor) >= offsetOf(this.cursor)) {
      this.cursor = answer.cursor;
      this.total = answer.total_lines;
      this.isUnfinished = answer.text !== "" && !answer.text.endsWith("\n");
      this.isLive = answer.live;
      stream.received(this.options.run, this.cursor);
    }
    this.drawFrame();
    this.drawSoon();
  }

  /** @param {string} text */
  append(text) {
    const lines = linesOf(text);
    if (!lines.length) return;
    const from = this.isUnfinished ? this.total : this.total + 1;
    if (this.isUnfinished) {
      const old = this.blocks.get(Math.floor((this.total - 1) / BLOCK))?.lines[(this.total - 1) % BLOCK];
      if (old === undefined) return void this.catchUp();
      lines[0] = old + lines[0];
    }
    this.put(from, lines);
    this.total = from + lines.length - 1;
    this.size += text.length;
    this.isUnfinished = !text.endsWith("\n");
  }

  // -- geometry: a row is one line on the screen

  measure() {
    const style = getComputedStyle(this.layer);
    this.lineHeight = parseFloat(style.lineHeight) || 20;
    const probe = document.createElement("span");
    probe.className = "log-probe";
    probe.textContent = "0".repeat(100);
    this.layer.append(probe);
    const width = probe.getBoundingClientRect().width / 100;
    probe.remove();
    const gutter = parseFloat(style.getPropertyValue("--gutter")) || 60;
    const columns = Math.max(10, Math.floor((this.box.clientWidth - gutter - 12) / width));
    if (columns !== this.columns) for (const block of this.blocks.values()) block.rows = [];
    this.columns = columns;
  }

  /** @param {number} index how many rows the blocks before this one have */
  rowsBefore(index) {
    if (!this.wrap) return Math.min(this.total, index * BLOCK);
    let rows = 0;
    for (let at = 0; at < index && at * BLOCK < this.total; at++) rows += this.blockRows(at);
    return rows;
  }

  /** @param {number} index */
  blockRows(index) {
    const count = Math.min(BLOCK, this.total - index * BLOCK);
    const block = this.blocks.get(index);
    if (!this.wrap || !block) return count;
    let rows = 0;
    for (let at = 0; at < count; at++) rows += this.lineRows(block, at);
    return rows;
  }

  /** @param {Block} block @param {number} at */
  lineRows(block, at) {
    if (!this.wrap || block.lines[at] === undefined) return 1;
    return (block.rows[at] ??= Math.max(1, Math.ceil(columnsOf(block.lines[at].slice(0, MAX_SHOWN)) / (this.columns || 80))));
  }

  get rows() {
    return this.rowsBefore(Math.ceil(this.total / BLOCK));
  }

  /** Give the scroll bar its size. */
  place() {
    const height = this.rows * (this.lineHeight || 20);
    this.scale = height > MAX_HEIGHT ? MAX_HEIGHT / height : 1;
    this.space.style.height = `${Math.min(height, MAX_HEIGHT)}px`;
  }

  rowAt() {
    return this.box.scrollTop / (this.scale || 1) / (this.lineHeight || 20);
  }

  /** The line (from 0) at a row, and the first row of that line. @param {number} row @returns {[number, number]} */
  lineAtRow(row) {
    if (!this.wrap) return [Math.min(Math.floor(row), Math.max(0, this.total - 1)), Math.floor(row)];
    let start = 0;
    let index = 0;
    for (; (index + 1) * BLOCK < this.total; index++) {
      const rows = this.blockRows(index);
      if (start + rows > row) break;
      start += rows;
    }
    const block = this.blocks.get(index);
    let at = 0;
    for (; index * BLOCK + at < this.total - 1; at++) {
      const rows = block ? this.lineRows(block, at) : 1;
      if (start + rows > row) break;
      start += rows;
    }
    return [index * BLOCK + at, start];
  }

  /** @param {number} line from 0 */
  rowOfLine(line) {
    const index = Math.floor(line / BLOCK);
    let row = this.rowsBefore(index);
    const block = this.blocks.get(index);
    for (let at = 0; at < line % BLOCK; at++) row += block ? this.lineRows(block, at) : 1;
    return row;
  }

  // -- moving

  isAtEnd() {
    return this.box.scrollTop + this.box.clientHeight >= this.box.scrollHeight - 1.5 * (this.lineHeight || 20);
  }

  scrolled() {
    const top = this.box.scrollTop;
    const wasFollowing = this.follow;
    if (top < this.lastTop - 1 && !this.isAtEnd()) this.follow = false;
    else if (this.isAtEnd()) this.follow = true;
    this.lastTop = top;
    if (wasFollowing !== this.follow) {
      this.seen = this.total;
      this.drawFrame();
    }
    this.drawSoon();
  }

  end() {
    this.follow = true;
    this.drawFrame();
    this.draw();
  }

  start() {
    this.follow = false;
    this.seen = this.total;
    this.box.scrollTop = 0;
    this.drawFrame();
    this.draw();
  }

  toggleFollow() {
    if (this.follow) {
      this.follow = false;
      this.seen = this.total;
      this.drawFrame();
    } else this.end();
  }

  toggleWrap() {
    const [line] = this.lineAtRow(this.rowAt());
    this.wrap = !this.wrap;
    setSetting("wrap", this.wrap ? "on" : "off");
    this.measure();
    this.place();
    this.box.scrollTop = this.rowOfLine(line) * (this.lineHeight || 20) * (this.scale || 1);
    this.drawFrame();
    this.draw();
  }

  /** Show a line in the middle. @param {number | null} line from 1 */
  goTo(line) {
    this.marked = line;
    if (line) {
      this.follow = false;
      this.seen = this.total;
      this.place();
      const top = this.rowOfLine(Math.min(line, this.total) - 1) * (this.lineHeight || 20) * (this.scale || 1);
      this.box.scrollTop = Math.max(0, top - this.box.clientHeight / 3);
      this.lastTop = this.box.scrollTop;
    }
    this.drawFrame();
    this.draw();
  }

  /** Put the address of a line into the address bar and the clipboard. @param {number} line */
  async link(line) {
    history.replaceState(history.state, "", `#L${line}`);
    this.marked = line;
    this.draw();
    await navigator.clipboard?.writeText(location.href).then(() => announce(`Copied a link to line ${line}.`), () => {});
  }

  linkHere() {
    const line = this.hit >= 0 ? this.hits[this.hit] : this.marked || this.lineAtRow(this.rowAt())[0] + 1;
    void this.link(line);
  }

  // -- search

  focusSearch() {
    this.input?.focus();
    this.input?.select();
  }

  /** @param {string} query */
  async search(query) {
    this.query = query;
    clearTimeout(this.searching);
    this.searching = setTimeout(() => this.searchNow(), 120);
  }

  async searchNow() {
    const query = this.query;
    this.hits = [];
    this.hitTotal = 0;
    this.hit = -1;
    this.searchProblem = "";
    if (query) {
      try {
        const answer = await get(`${runPath(this.options.run)}/log/search`, { q: query, regex: this.isRegex, limit: MAX_HITS });
        if (query !== this.query) return;
        this.hits = answer.hits.map((hit) => hit.line);
        this.hitTotal = answer.total;
        const top = this.lineAtRow(this.rowAt())[0] + 1;
        const next = this.hits.findIndex((line) => line >= top);
        if (this.hits.length) this.goToHit(next >= 0 ? next : this.hits.length - 1);
        announce(this.hits.length ? `${number(answer.total)} lines found.` : "Nothing found.");
      } catch (error) {
        if (!(error instanceof ApiError)) throw error;
        this.searchProblem = error.message;
      }
    }
    this.drawFrame();
    this.draw();
  }

  /** @param {number} index */
  goToHit(index) {
    if (!this.hits.length) return;
    this.hit = (index + this.hits.length) % this.hits.length;
    this.goTo(this.hits[this.hit]);
  }

  nextHit() {
    this.goToHit(this.hit + 1);
  }

  previousHit() {
    this.goToHit(this.hit - 1);
  }

  // -- drawing

  drawFrame() {
    const state = this.problem || this.searchProblem;
    const count = this.query && this.isLoaded ? (this.hits.length ? `${number(this.hit + 1)} of ${number(this.hitTotal)}` : "no match") : "";
    const behind = this.follow ? 0 : this.total - this.seen;
    const label = this.total ? `Find in ${number(this.total)} ${this.total === 1 ? "line" : "lines"}` : "Find in the output";
    patch(this.element, [
      h(
        "div.log-bar",
        { role: "toolbar", "aria-label": "Output" },
        h(
          "label.field.grow",
          null,
          icon("search"),
          h("input", {
            type: "search",
            placeholder: `${label}…`,
            "aria-label": label,
            spellcheck: "false",
            autocomplete: "off",
            mount: (input) => void (this.input = input),
            oninput: (event) => this.search(event.target.value),
            onkeydown: (event) => {
              if (event.key === "Enter") event.shiftKey ? this.previousHit() : this.nextHit();
              else if (event.key === "Escape") (event.stopPropagation(), this.input && (this.input.value = ""), this.search(""), this.box.focus());
            },
          }),
          h("span.num.muted", { role: "status" }, state || count),
        ),
        h("button.ghost.square", { type: "button", "aria-label": "Previous match", title: "Previous match  [", disabled: !this.hits.length, onclick: () => this.previousHit() }, "↑"),
        h("button.ghost.square", { type: "button", "aria-label": "Next match", title: "Next match  ]", disabled: !this.hits.length, onclick: () => this.nextHit() }, "↓"),
        toggle("Regular expression", ".*", this.isRegex, () => ((this.isRegex = !this.isRegex), void this.searchNow())),
        toggle("Wrap long lines  s", "wrap", this.wrap, () => this.toggleWrap()),
        h("button.ghost.square", { type: "button", "aria-label": "Download the output", title: "Download", onclick: () => this.save() }, icon("download")),
        this.isLive && toggle("Follow the end  f", "follow", this.follow, () => this.toggleFollow()),
      ),
      h(
        "div.log-frame",
        null,
        h(
          "div.log-box",
          { tabindex: "0", role: "region", "aria-label": "Output", onclick: (event) => this.clicked(event) },
          h("div.log-space", null, h("div.log-lines", { mount: () => {} })),
        ),
        h("div.log-ticks", { "aria-hidden": "true" }, ...this.ticks()),
        h("div.log-note", { role: "status" }, this.isLoaded && !this.total && (this.isRemoved ? "The output was removed by the retention rules." : this.options.empty())),
        behind > 0 &&
          h("button.pill", { type: "button", onclick: () => this.end() }, `${number(behind)} new ${behind === 1 ? "line" : "lines"} ↓`, h("kbd", null, "G")),
      ),
    ]);
  }

  ticks() {
    if (!this.hits.length) return [];
    const bins = new Set(this.hits.map((line) => Math.floor(((line - 1) / this.total) * TICKS)));
    return [...bins].map((bin) => h("i", { key: bin, style: { top: `${(bin / TICKS) * 100}%` } }));
  }

  draw() {
    if (!this.isLoaded) return;
    this.place();
    if (this.follow) {
      this.box.scrollTop = this.box.scrollHeight;
      this.lastTop = this.box.scrollTop;
    }
    const height = this.lineHeight || 20;
    const top = Math.max(0, this.rowAt() - OVERSCAN);
    const bottom = this.rowAt() + this.box.clientHeight / height + OVERSCAN;
    let [line, row] = this.lineAtRow(top);
    const offset = this.scale === 1 ? row * height : this.box.scrollTop - (this.rowAt() - row) * height;
    const missing = new Set();
    const drawn = [];
    for (; line < this.total && row < bottom; line++) {
      const index = Math.floor(line / BLOCK);
      const block = this.blocks.get(index);
      if (!block || block.lines[line % BLOCK] === undefined) missing.add(index);
      else block.used = ++this.clock;
      drawn.push(this.drawLine(line, block));
      row += block ? this.lineRows(block, line % BLOCK) : 1;
    }
    this.layer.style.transform = `translateY(${offset}px)`;
    this.layer.classList.toggle("wrap", this.wrap);
    patch(this.layer, drawn);
    for (const index of missing) void this.loadBlock(index);
    if (this.wrap && this.correct(height)) return this.drawSoon();
    this.highlight();
  }

  /** Keep the true height of wrapped lines, where it is not what was computed. @param {number} height */
  correct(height) {
    let wrong = false;
    for (const element of /** @type {any} */ (this.layer.children)) {
      const line = Number(element.dataset.line) - 1;
      const block = this.blocks.get(Math.floor(line / BLOCK));
      const rows = Math.max(1, Math.round(element.offsetHeight / height));
      if (block && block.lines[line % BLOCK] !== undefined && block.rows[line % BLOCK] !== rows) {
        block.rows[line % BLOCK] = rows;
        wrong = true;
      }
    }
    return wrong;
  }

  /** @param {number} line from 0 @param {Block | undefined} block */
  drawLine(line, block) {
    const at = line % BLOCK;
    const text = block?.lines[at];
    const n = line + 1;
    const marks = n === this.marked ? " marked" : "";
    const isNote = text?.startsWith("[backburner: ");
    return h(
      "div",
      { key: n, class: `log-line${marks}${isNote ? " note" : ""}`, "data-line": n },
      h("a.n", { href: `#L${n}`, tabindex: "-1", "aria-label": `Line ${n}`, "data-n": n }),
      h("span.t", null, ...(text === undefined || !block ? ["\u00a0"] : this.pieces(block, at).map((piece) => drawPiece(piece)))),
    );
  }

  /** @param {Block} block @param {number} at */
  pieces(block, at) {
    if (!block.parsed[at]) {
      let style = PLAIN;
      // The style goes on from the line before, as far as that is known.
      let from = at;
      while (from > 0 && block.lines[from - 1] !== undefined && at - from < 50) from--;
      for (let line = from; line < at; line++) if (block.lines[line].includes("\x1b")) style = parseLine(block.lines[line].slice(0, MAX_SHOWN), style).end;
      block.parsed[at] = parseLine(block.lines[at].slice(0, MAX_SHOWN), style).pieces;
    }
    return block.parsed[at] || [];
  }

  highlight() {
    if (!CSS.highlights) return;
    CSS.highlights.delete("found");
    CSS.highlights.delete("current");
    if (!this.query || !this.hits.length) return;
    let pattern;
    try {
      pattern = new RegExp(this.isRegex ? this.query : this.query.replace(/[.*+?^${}()|[\]\\]/g, "\\$&"), "gi");
    } catch {
      return;
    }
    const all = new Highlight();
    const current = new Highlight();
    for (const element of this.layer.querySelectorAll(".t")) {
      const isCurrent = Number(element.parentElement?.getAttribute("data-line")) === this.hits[this.hit];
      for (const range of rangesOf(element, pattern)) (isCurrent ? current : all).add(range);
    }
    CSS.highlights.set("found", all);
    CSS.highlights.set("current", current);
  }

  /** @param {MouseEvent} event */
  clicked(event) {
    const target = /** @type {HTMLElement} */ (event.target);
    const place = target.closest("[data-n]");
    if (place) {
      event.preventDefault();
      void this.link(Number(place.getAttribute("data-n")));
      return;
    }
    const link = target.closest("a[data-go]");
    if (!link) return;
    event.preventDefault();
    const go = link.getAttribute("data-go") || "";
    if (webAddress(go)) return this.options.openLink(go);
    const [file, line] = go.split(":");
    void navigator.clipboard?.writeText(`$EDITOR +${line} ${file}`).then(() => announce("Copied the command that opens this file."), () => {});
  }

  async save() {
    try {
      await download(`${runPath(this.options.run)}/log.txt`, `${this.options.name}.txt`);
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      this.problem = error.message;
      this.drawFrame();
    }
  }
}

/** @param {string} label @param {string} text @param {boolean} on @param {() => void} onclick */
const toggle = (label, text, on, onclick) => h("button.toggle", { type: "button", "aria-pressed": String(on), "aria-label": label.split("  ")[0], title: label, onclick }, text);

/** @param {import("./ansi.js").Piece} piece */
function drawPiece({ text, style, mark }) {
  if (mark === "hidden") return hiddenMark(text);
  if (mark === "escape") return h("span.hidden-char", { title: `control sequence ${visibleText(text.replace("\x1b", "ESC "))}` }, "␛");
  const children = style.link ? [linkTo(text, style.link)] : linked(text);
  if (style === PLAIN) return children;
  let { fg, bg } = style;
  if (style.reverse) [fg, bg] = [bg || "bg", fg || "fg"];
  /** @type {Record<string, string>} */
  const colours = {};
  if (fg) colours.color = colour(fg);
  if (bg) colours["background-color"] = colour(bg);
  const names = ["bold", "dim", "italic", "underline", "strike"].filter((name) => style[/** @type {"bold"} */ (name)]).join(" ");
  if (!names && !fg && !bg) return children;
  return h("span", { class: names || null, style: colours }, ...children);
}

/** @param {string} value */
const colour = (value) => (value.startsWith("#") ? value : value === "fg" ? "var(--text)" : value === "bg" ? "var(--log-bg)" : `var(--ansi-${value})`);

/** @param {string} text @returns {import("./dom.js").Child[]} */
function linked(text) {
  if (!/:\/\/|:\d/.test(text)) return [text];
  const parts = [];
  let from = 0;
  for (const found of text.matchAll(LINK)) {
    parts.push(text.slice(from, found.index), linkTo(found[0], found[0]));
    from = found.index + found[0].length;
  }
  parts.push(text.slice(from));
  return parts;
}

/** @param {string} text @param {string} target */
const linkTo = (text, target) => {
  const isWeb = webAddress(target) !== "";
  return h("a", { class: isWeb ? "link" : "source", href: isWeb ? target : "#", "data-go": target, title: isWeb ? target : "Copy the command that opens this file", tabindex: "-1", rel: "noopener noreferrer" }, text);
};

/** @param {Element} element @param {RegExp} pattern @returns {Range[]} */
function rangesOf(element, pattern) {
  const walker = document.createTreeWalker(element, NodeFilter.SHOW_TEXT);
  /** @type {[Text, number][]} */
  const nodes = [];
  let text = "";
  for (let node = walker.nextNode(); node; node = walker.nextNode()) {
    nodes.push([/** @type {Text} */ (node), text.length]);
    text += /** @type {Text} */ (node).data;
  }
  const ranges = [];
  for (const found of text.matchAll(pattern)) {
    if (!found[0]) continue;
    const range = new Range();
    for (const [end, offset] of /** @type {["start" | "end", number][]} */ ([["start", found.index], ["end", found.index + found[0].length]])) {
      const [node, start] = nodes.findLast(([, from]) => from < offset || (end === "start" && from === offset)) || nodes[0];
      if (end === "start") range.setStart(node, offset - start);
      else range.setEnd(node, offset - start);
    }
    ranges.push(range);
  }
  return ranges;
}

/** @param {string} text @returns {string[]} */
function linesOf(text) {
  const lines = text.split("\n");
  if (lines[lines.length - 1] === "") lines.pop();
  return lines;
}

/** @param {string} cursor */
const offsetOf = (cursor) => Number(cursor.split(":")[1]) || 0;

/** @param {string} hash */
const lineOf = (hash) => Number(/^#L(\d+)/.exec(hash)?.[1]) || null;

/** About how many columns a line takes. @param {string} line */
function columnsOf(line) {
  if (!/[^\x20-\x7e]/.test(line)) return line.length;
  let columns = 0;
  for (const piece of parseLine(line).pieces)
    for (const character of piece.text) {
      const code = character.codePointAt(0) || 0;
      columns += code === 9 ? 8 - (columns % 8) : code >= 0x1100 && (code < 0x1160 || (code >= 0x2e80 && code < 0xfb00) || code >= 0x1f300) ? 2 : 1;
    }
  return columns;
}
