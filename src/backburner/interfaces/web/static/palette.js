// The command palette: every command that holds here, and every task, by typing a part of its name. Shows the command line that does the same.

import { go, modal } from "./app.js";
import { find, h, patch } from "./dom.js";
import { store } from "./store.js";
import { path, stateIcon, title, visible } from "./text.js";

const MAX_SHOWN = 40;

/** @typedef {{id: string, label: any, sign?: any, keys?: string, cli?: string, run: () => void, text: string}} Choice */

/** @param {() => import("./keys.js").Command[]} commands */
export function openPalette(commands) {
  if (find(".palette")) return;
  const { element, close } = modal("Commands and tasks");
  element.className = "palette";
  let query = "";
  let at = 0;
  const draw = () => {
    const choices = matching(query, commands());
    at = Math.max(0, Math.min(at, choices.length - 1));
    const run = (choice) => (close(), choice.run());
    patch(element, [
      h("input", {
        type: "text",
        role: "combobox",
        "aria-expanded": "true",
        "aria-controls": "choices",
        "aria-activedescendant": choices.length ? `choice-${at}` : null,
        "aria-label": "Type a command or the name of a task",
        placeholder: "Type a command or the name of a task…",
        spellcheck: "false",
        autocomplete: "off",
        oninput: (event) => ((query = event.target.value), (at = 0), draw()),
        onkeydown: (event) => {
          if (event.key === "ArrowDown" || event.key === "ArrowUp") {
            event.preventDefault();
            at = (at + (event.key === "ArrowDown" ? 1 : -1) + choices.length) % Math.max(1, choices.length);
            draw();
            element.querySelector('[aria-selected="true"]')?.scrollIntoView({ block: "nearest" });
          } else if (event.key === "Enter" && choices[at]) (event.preventDefault(), run(choices[at]));
        },
      }),
      h(
        "ul",
        { role: "listbox", id: "choices", "aria-label": "Commands and tasks" },
        ...choices.map((choice, index) =>
          h(
            "li",
            { key: choice.id, id: `choice-${index}`, role: "option", "aria-selected": String(index === at), onclick: () => run(choice), onpointermove: () => at !== index && ((at = index), draw()) },
            choice.sign || h("span.state", null),
            h("span.cut.grow", null, choice.label),
            choice.cli && h("code.muted.cut", null, choice.cli),
            choice.keys && h("kbd", null, choice.keys.split(", ")[0]),
          ),
        ),
      ),
      !choices.length && h("p.muted.empty", null, "Nothing found."),
    ]);
  };
  draw();
  element.showModal();
  element.querySelector("input")?.focus();
}

/** @param {string} query @param {import("./keys.js").Command[]} commands @returns {Choice[]} */
function matching(query, commands) {
  /** @type {Choice[]} */
  const all = commands
    .filter((command) => !command.isHidden)
    .map((command) => ({ id: `c${command.label}`, label: command.label, keys: command.keys, cli: command.cli, run: command.run, text: command.label }));
  const words = query.toLowerCase().split(/\s+/).filter(Boolean);
  if (words.length)
    for (const row of store.rows.values()) all.push({ id: row.task_id, label: visible(title(row), true), sign: stateIcon(row), run: () => go(path(row.task_id)), text: `${title(row)} ${row.task_id} ${row.project}` });
  return all.filter((choice) => words.every((word) => choice.text.toLowerCase().includes(word) || choice.cli?.includes(word))).slice(0, MAX_SHOWN);
}
