// Turns one line of terminal output into pieces of text with a style: colours (16, 256, 24 bit), bold, dim, italic, underline, strike,
// reverse, links (OSC 8), and what `\r`, backspace and "erase line" leave of it. A style goes on into the next line until it is reset.

/**
 * @typedef {{fg: string, bg: string, bold: boolean, dim: boolean, italic: boolean, underline: boolean, strike: boolean, reverse: boolean, link: string}} Style
 * @typedef {{text: string, style: Style, mark?: "escape" | "hidden"}} Piece
 */

/** @type {Style} */
export const PLAIN = Object.freeze({ fg: "", bg: "", bold: false, dim: false, italic: false, underline: false, strike: false, reverse: false, link: "" });

// CSI; OSC and other strings; any other escape sequence, complete or not; then single control and hidden characters.
const TOKEN =
  /\x1b(?:\[([ -?]*)([@-~]?)|\]([^\x07\x1b\x9c]*)(?:\x07|\x1b\\|\x9c)?|[PX^_][^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c)?|[ -/]*([0-~]?))|([\x00-\x08\x0b-\x1a\x1c-\x1f\x7f-\x9f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff])/g;
// Sequences without a meaning for a text that is already written: the cursor's look, modes of the terminal, titles.
const HARMLESS = /^(\?[0-9;]*[hl]|[0-9;]*[ntqr]|>[0-9;]*[a-z])$/;
const MAX_COLUMN = 1_000_000;

/**
 * @param {string} line without its newline
 * @param {Style} [start] the style at its beginning
 * @returns {{pieces: Piece[], end: Style}}
 */
export function parseLine(line, start = PLAIN) {
  if (line.endsWith("\r")) line = line.slice(0, -1);
  if (!TOKEN.test(line)) return { pieces: line ? [{ text: line, style: start }] : [], end: start };
  TOKEN.lastIndex = 0;
  let style = start;
  /** @type {Piece[]} */
  let pieces = [];
  /** @type {Piece[] | null} one piece per character, from the first time that the cursor goes back */
  let cells = null;
  let column = 0;
  /** @param {string} text @param {"escape" | "hidden"} [mark] */
  const put = (text, mark) => {
    if (!text) return;
    if (!cells) {
      const last = pieces[pieces.length - 1];
      if (last && !mark && !last.mark && last.style === style) last.text += text;
      else pieces.push({ text, style, ...(mark && { mark }) });
      return;
    }
    for (const character of mark ? [text] : text) cells[column++] = { text: character, style, ...(mark && { mark }) };
  };
  const toCells = () => {
    if (cells) return cells;
    cells = pieces.flatMap((piece) => (piece.mark ? [piece] : Array.from(piece.text, (text) => ({ text, style: piece.style }))));
    column = cells.length;
    return cells;
  };
  let from = 0;
  for (const found of line.matchAll(TOKEN)) {
    put(line.slice(from, found.index));
    from = found.index + found[0].length;
    const [whole, parameters, final, osc, other, control] = found;
    if (control === "\r") (toCells(), (column = 0));
    else if (control === "\b") (toCells(), (column = Math.max(0, column - 1)));
    else if (control === "\x07") continue;
    else if (control) put(control, "hidden");
    else if (final === "m" && /^[0-9;:]*$/.test(parameters)) style = withColours(style, parameters);
    else if (final === "K") erase(toCells(), column, parameters, style);
    else if (final === "G") (toCells(), (column = Math.min(MAX_COLUMN, Math.max(0, (Number(parameters) || 1) - 1))), fill(cells, column, style));
    else if (osc !== undefined && /^8;/.test(osc)) style = { ...style, link: webAddress(osc.slice(osc.indexOf(";", 2) + 1)) };
    else if (osc !== undefined || (final && HARMLESS.test(parameters + final)) || (other && /[=>78Bc]/.test(other))) continue;
    else put(whole, "escape");
  }
  put(line.slice(from));
  if (cells) pieces = joined(cells);
  return { pieces, end: style };
}

/** @param {Piece[] | null} cells @param {number} column @param {Style} style */
function fill(cells, column, style) {
  if (cells) while (cells.length < column) cells.push({ text: " ", style });
}

/** @param {Piece[]} cells @param {number} column @param {string} how @param {Style} style */
function erase(cells, column, how, style) {
  if (how === "" || how === "0") cells.length = Math.min(cells.length, column);
  else if (how === "2" || how === "1") {
    const end = how === "2" ? cells.length : Math.min(cells.length, column + 1);
    for (let at = 0; at < end; at++) cells[at] = { text: " ", style };
  }
}

/** @param {Piece[]} cells @returns {Piece[]} */
function joined(cells) {
  /** @type {Piece[]} */
  const pieces = [];
  for (const cell of cells) {
    const last = pieces[pieces.length - 1];
    if (last && !cell.mark && !last.mark && last.style === cell.style) last.text += cell.text;
    else pieces.push({ ...cell });
  }
  return pieces;
}

/** @param {Style} style @param {string} parameters @returns {Style} */
function withColours(style, parameters) {
  const next = { ...style };
  /** @type {(string | number)[]} */
  const codes = parameters.split(";").map((code) => (code.includes(":") ? code : Number(code) || 0));
  for (let at = 0; at < codes.length; at++) {
    const code = codes[at];
    if (typeof code === "string") {
      const parts = code.split(":").map(Number);
      if (parts[0] === 4) next.underline = parts[1] !== 0;
      else if (parts[0] === 38 || parts[0] === 48) {
        const colour = parts[1] === 5 ? indexed(parts[2]) : parts[1] === 2 ? rgb(parts.slice(-3)) : "";
        if (parts[0] === 38) next.fg = colour;
        else next.bg = colour;
      }
    } else if (code === 0) Object.assign(next, PLAIN, { link: style.link });
    else if (code === 1) next.bold = true;
    else if (code === 2) next.dim = true;
    else if (code === 3) next.italic = true;
    else if (code === 4 || code === 21) next.underline = true;
    else if (code === 7) next.reverse = true;
    else if (code === 9) next.strike = true;
    else if (code === 22) next.bold = next.dim = false;
    else if (code === 23) next.italic = false;
    else if (code === 24) next.underline = false;
    else if (code === 27) next.reverse = false;
    else if (code === 29) next.strike = false;
    else if (code >= 30 && code <= 37) next.fg = String(code - 30);
    else if (code >= 90 && code <= 97) next.fg = String(code - 82);
    else if (code >= 40 && code <= 47) next.bg = String(code - 40);
    else if (code >= 100 && code <= 107) next.bg = String(code - 92);
    else if (code === 39) next.fg = "";
    else if (code === 49) next.bg = "";
    else if (code === 38 || code === 48) {
      const isIndexed = codes[at + 1] === 5;
      const colour = isIndexed ? indexed(Number(codes[at + 2])) : codes[at + 1] === 2 ? rgb(codes.slice(at + 2, at + 5).map(Number)) : "";
      if (code === 38) next.fg = colour;
      else next.bg = colour;
      at += isIndexed ? 2 : 4;
    }
  }
  return next;
}

/** @param {number} n */
function indexed(n) {
  if (!(n >= 0 && n <= 255)) return "";
  if (n < 16) return String(n);
  if (n >= 232) return rgb([8 + (n - 232) * 10, 8 + (n - 232) * 10, 8 + (n - 232) * 10]);
  const level = (v) => (v ? 55 + 40 * v : 0);
  return rgb([level(Math.floor((n - 16) / 36)), level(Math.floor((n - 16) / 6) % 6), level((n - 16) % 6)]);
}

/** @param {number[]} parts */
const rgb = (parts) => (parts.length === 3 && parts.every((v) => v >= 0 && v <= 255) ? `#${parts.map((v) => v.toString(16).padStart(2, "0")).join("")}` : "");

/** Only addresses of the web become links. @param {string} text */
export const webAddress = (text) => (/^https?:\/\/[^\s]{1,2000}$/i.test(text) ? text : "");
