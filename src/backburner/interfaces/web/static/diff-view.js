// What an agent changed, file by file: a list with counts, and unified diffs with the changed words marked. Read only.

import { h } from "./dom.js";
import { copyButton, number, visible } from "./text.js";

const FOLD_LINES = 1000;
const MAX_LINES = 20_000;
const MAX_MARKED = 400; // characters of a line of which the changed part is marked

/** @param {any} diff @param {Set<string>} unfolded @param {() => void} redraw */
export function diffView(diff, unfolded, redraw) {
  const added = diff.files.reduce((sum, file) => sum + file.added, 0);
  const removed = diff.files.reduce((sum, file) => sum + file.removed, 0);
  return h(
    "div.diff",
    null,
    h(
      "p.diff-head",
      null,
      h("span", null, `${number(diff.files.length)} ${diff.files.length === 1 ? "file" : "files"} changed`),
      counts(added, removed),
      diff.branch && h("code", null, ...visible(diff.branch)),
      h("span.grow", null),
      diff.path && copyButton(diff.path, "Copy path"),
    ),
    diff.cut && h("p.hint", null, "The diff is too long to show whole."),
    ...diff.files.map((file) => {
      const isLong = file.folded || file.added + file.removed > FOLD_LINES;
      return h(
        "details",
        { key: file.path, class: "file", open: !isLong || unfolded.has(file.path), ontoggle: (event) => event.target.open && isLong && !unfolded.has(file.path) && (unfolded.add(file.path), redraw()) },
        h("summary", null, h("span", { class: `sign ${file.status}`, title: file.status }, file.status[0].toUpperCase()), h("span.cut.grow.mono", null, ...(file.old_path ? [...visible(file.old_path, true), " → "] : []), ...visible(file.path, true)), counts(file.added, file.removed)),
        file.binary ? h("p.hint", null, "Binary file.") : isLong && !unfolded.has(file.path) ? null : h("div.hunks", { tabindex: "0", role: "region", "aria-label": `Changes of ${file.path}` }, ...lines(file.text)),
      );
    }),
  );
}

/** @param {number} added @param {number} removed */
const counts = (added, removed) => h("span.num.counts", null, h("span.added", null, `+${number(added)}`), " ", h("span.removed", null, `−${number(removed)}`));

/** @param {string} text a unified diff of one file */
function lines(text) {
  const drawn = [];
  const source = text.split("\n");
  let left = 0;
  let right = 0;
  let inHunk = false;
  for (let at = 0; at < Math.min(source.length, MAX_LINES); at++) {
    const line = source[at];
    const place = /^@@ -(\d+)(?:,\d+)? \+(\d+)(?:,\d+)? @@(.*)/.exec(line);
    if (place) {
      [left, right, inHunk] = [Number(place[1]), Number(place[2]), true];
      drawn.push(h("div.d.hunk", null, h("span.n", null), h("span.n", null), h("span.t", null, ...visible(`@@${place[3]}`))));
    } else if (inHunk && line && " +-".includes(line[0])) {
      const kind = line[0] === "+" ? "add" : line[0] === "-" ? "del" : "same";
      const other = kind === "del" && !source[at - 1]?.startsWith("-") && !source[at + 2]?.startsWith("+") ? pairOf(source[at + 1], "+") : kind === "add" && source[at - 1]?.startsWith("-") && !source[at - 2]?.startsWith("-") && !source[at + 1]?.startsWith("+") ? pairOf(source[at - 1], "-") : null;
      drawn.push(
        h(
          "div",
          { class: `d ${kind}` },
          h("span.n", null, kind === "add" ? "" : String(left++)),
          h("span.n", null, kind === "del" ? "" : String(right++)),
          h("span.t", null, h("span.sign", { "aria-label": kind === "add" ? "added" : kind === "del" ? "removed" : null, role: kind === "same" ? null : "img" }, line[0]), ...marked(line.slice(1), other)),
        ),
      );
    }
  }
  return drawn;
}

/** @param {string | undefined} line @param {string} sign */
const pairOf = (line, sign) => (line?.startsWith(sign) ? line.slice(1) : null);

/** The part of a line in which it differs from the other one, marked. @param {string} line @param {string | null} other */
function marked(line, other) {
  if (other === null || line.length > MAX_MARKED || other.length > MAX_MARKED) return visible(line);
  let start = 0;
  while (start < line.length && line[start] === other[start]) start++;
  let end = 0;
  while (end < line.length - start && end < other.length - start && line[line.length - 1 - end] === other[other.length - 1 - end]) end++;
  if (start + end < line.length * 0.3) return visible(line);
  return [...visible(line.slice(0, start)), h("mark", null, ...visible(line.slice(start, line.length - end))), ...visible(line.slice(line.length - end))];
}
