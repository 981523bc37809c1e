// Keyboard: single keys and sequences such as "g n". Keys do nothing while somebody types into a field, and none of them approves.

/** @typedef {{keys: string, label: string, run: () => void, where?: string, cli?: string, isHidden?: boolean}} Command */

let pending = "";
let timer = 0;

/** @param {() => Command[]} commands all commands that hold now */
export const listen = (commands) => addEventListener("keydown", (event) => pressed(event, commands()));

/** @param {EventTarget | null} target */
export const isTyping = (target) => target instanceof HTMLElement && (target.isContentEditable || /^(INPUT|TEXTAREA|SELECT)$/.test(target.tagName));

/** @param {KeyboardEvent} event @param {Command[]} commands */
function pressed(event, commands) {
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
    const found = commands.find((command) => command.keys.split(", ").includes(wanted));
    if (found) {
      event.preventDefault();
      found.run();
      return;
    }
    if (commands.some((command) => command.keys.split(", ").some((keys) => keys.startsWith(`${wanted} `)))) {
      pending = wanted;
      timer = setTimeout(() => (pending = ""), 1200);
      event.preventDefault();
      return;
    }
  }
}
