// Keyboard: single keys and sequences such as "g n". Keys do nothing while somebody types into a field, and none of them approves.

/** @typedef {{keys: string, label: string, run: () => void, where?: string, cli?: string, isHidden?: boolean}} Command */

/** @type {() => Command[]} */
let commands = () => [];
let pending = "";
let timer = 0;

/** @param {() => Command[]} list all commands that hold now */
export function listen(list) {
  commands = list;
  addEventListener("keydown", pressed);
}

/** @param {EventTarget | null} target */
export const isTyping = (target) => target instanceof HTMLElement && (target.isContentEditable || /^(INPUT|TEXTAREA|SELECT)$/.test(target.tagName));

/** @param {KeyboardEvent} event */
function pressed(event) {
  const withCommand = event.ctrlKey || event.metaKey;
  const name = withCommand ? `Ctrl-${event.key.toLowerCase()}` : event.key;
  if (event.altKey || event.isComposing) return;
  if (isTyping(event.target) && !withCommand && event.key !== "Escape") return;
  if (document.querySelector("dialog[open]") && !withCommand) return; // a dialog has keys of its own
  if (["Shift", "Control", "Meta", "Alt"].includes(event.key)) return;
  const tried = [pending ? `${pending} ${name}` : name, name];
  clearTimeout(timer);
  pending = "";
  for (const wanted of tried) {
    const found = commands().find((command) => command.keys.split(", ").includes(wanted));
    if (found) {
      event.preventDefault();
      found.run();
      return;
    }
    if (commands().some((command) => command.keys.split(", ").some((keys) => keys.startsWith(`${wanted} `)))) {
      pending = wanted;
      timer = setTimeout(() => (pending = ""), 1200);
      event.preventDefault();
      return;
    }
  }
}
