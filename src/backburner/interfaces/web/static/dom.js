// Draws elements from descriptions and updates them in place, so that focus, selection and scroll position stay.
// Text only ever becomes a text node: there is no way to pass HTML.

const SVG = "http://www.w3.org/2000/svg";
const SVG_TAGS = new Set(["svg", "path", "circle", "g", "rect"]);

/**
 * @typedef {{tag: string, props: Record<string, any>, children: Child[], key: any}} Node_
 * @typedef {Node_ | string | number | null | undefined | false | Child[]} Child
 */

/**
 * Describe an element; "p.hint" is a `p` with the class "hint". Properties that begin with `on` are listeners; `class` and `aria-…` are attributes; `value`, `checked` and
 * `disabled` are set as properties; `style` is an object of custom properties; `mount(element)` runs once when the element is made and
 * may return a function that runs when it is removed; `key` identifies an element among its siblings.
 * @param {string} tag
 * @param {Record<string, any> | null} [props]
 * @param {...Child} children
 * @returns {Node_}
 */
export function h(tag, props, ...children) {
  const [name, ...classes] = tag.split(".");
  return { tag: name, props: classes.length ? { ...props, class: classes.join(" ") } : props || {}, children, key: props?.key ?? null };
}

/** @type {WeakMap<Node, {node: Node_ | null, cleanup?: () => void}>} */
const drawn = new WeakMap();
const AS_PROPERTY = new Set(["value", "checked", "disabled", "open", "indeterminate"]);

/**
 * Make the children of an element equal to the descriptions. Elements with the same key, or the same tag at the same place, are kept.
 * @param {Element} parent
 * @param {Child[]} children
 */
export function patch(parent, children) {
  const wanted = flatten(children, []);
  /** @type {Set<any>} */
  const keys = new Set();
  for (const node of wanted) if (typeof node !== "string" && node.key != null) keys.add(node.key);
  /** @type {Map<any, Element>} the elements that are kept and were not placed yet */
  const keyed = new Map();
  if (keys.size) {
    for (let child = parent.firstElementChild; child; child = child.nextElementSibling) {
      const key = drawn.get(child)?.node?.key;
      if (key != null && keys.has(key)) keyed.set(key, child);
    }
  }
  let at = parent.firstChild;
  for (const node of wanted) {
    if (typeof node === "string") {
      if (at instanceof Text) {
        if (at.data !== node) at.data = node;
        at = at.nextSibling;
      } else parent.insertBefore(document.createTextNode(node), at);
      continue;
    }
    if (node.key != null) {
      let element = keyed.get(node.key);
      if (element && element.localName === node.tag) {
        keyed.delete(node.key);
        // A move takes the focus away, so what stands between is removed or moved instead, where that is possible.
        while (at && at !== element && !isWanted(at, keyed)) at = removed(at);
        if (at === element) at = at.nextSibling;
        else moved(parent, element, at);
      } else parent.insertBefore((element = created(node)), at);
      update(element, node);
      continue;
    }
    if (at instanceof Element && at.localName === node.tag && drawn.get(at)?.node?.key == null) {
      update(at, node);
      at = at.nextSibling;
    } else {
      const element = created(node);
      parent.insertBefore(element, at);
      update(element, node);
    }
  }
  while (at) at = removed(at);
}

/** @param {Node} child @param {Map<any, Element>} keyed */
function isWanted(child, keyed) {
  const key = drawn.get(child)?.node?.key;
  return key != null && keyed.get(key) === child;
}

/** @param {Element} parent @param {Element} element @param {Node | null} before */
function moved(parent, element, before) {
  const focused = document.activeElement;
  const holds = focused instanceof HTMLElement && element.contains(focused);
  parent.insertBefore(element, before);
  if (holds) focused.focus({ preventScroll: true });
}

/** @param {ChildNode} child @returns {ChildNode | null} */
function removed(child) {
  const next = child.nextSibling;
  dispose(child);
  child.parentNode?.removeChild(child);
  return next;
}

/** @param {Node} child */
function dispose(child) {
  drawn.get(child)?.cleanup?.();
  child.childNodes.forEach(dispose);
}

/** @param {Child[]} children @param {(Node_ | string)[]} into */
function flatten(children, into) {
  for (const child of children) {
    if (child == null || child === false) continue;
    if (Array.isArray(child)) flatten(child, into);
    else if (typeof child === "object") into.push(child);
    else if (typeof into[into.length - 1] === "string") into[into.length - 1] += String(child);
    else into.push(String(child));
  }
  return into;
}

/** @param {Node_} node @returns {Element} */
function created(node) {
  const element = SVG_TAGS.has(node.tag) ? document.createElementNS(SVG, node.tag) : document.createElement(node.tag);
  drawn.set(element, { node: null });
  return element;
}

/** @param {any} element @param {Node_} node */
function update(element, node) {
  const entry = drawn.get(element) || { node: null };
  if (entry.node === node) return;
  const old = entry.node?.props || {};
  const isNew = entry.node === null;
  entry.node = node;
  drawn.set(element, entry);
  for (const name in old) if (!(name in node.props)) set(element, name, null, old[name]);
  for (const name in node.props) if (node.props[name] !== old[name] || AS_PROPERTY.has(name)) set(element, name, node.props[name], old[name]);
  if (!node.props.mount) patch(element, node.children);
  // The value of a list depends on its options.
  if (node.tag === "select") set(element, "value", node.props.value, null);
  if (node.props.mount && isNew) entry.cleanup = node.props.mount(element);
}

/** @param {any} element @param {string} name @param {any} value @param {any} old */
function set(element, name, value, old) {
  if (name === "key" || name === "mount") return;
  // A listener that returns false would prevent the default action.
  if (name.startsWith("on")) element[name] = value ? (event) => void value(event) : null;
  else if (name === "style") {
    for (const property in old || {}) if (!(property in (value || {}))) element.style.removeProperty(property);
    for (const property in value || {}) element.style.setProperty(property, value[property]);
  } else if (AS_PROPERTY.has(name) && element.localName !== "option") {
    if (element[name] !== (value ?? false)) element[name] = value ?? (name === "value" ? "" : false);
  } else if (value == null || value === false) element.removeAttribute(name);
  else element.setAttribute(name, value === true ? "" : String(value));
}

/** @param {string} selector @param {ParentNode} [root] @returns {HTMLElement | null} */
export const find = (selector, root = document) => root.querySelector(selector);

const FRAME = 16; // milliseconds

/**
 * Draw at most once per frame, however often it is asked for, and not before a hidden tab is shown. With `atOnce`, the first time is not delayed: what is drawn now is painted with the
 * next frame, while a drawing that begins with the next frame is painted at its end.
 * @param {() => void} draw
 */
export function perFrame(draw, atOnce = false) {
  let waiting = false;
  let drawnAt = -FRAME;
  const run = () => {
    waiting = false;
    draw();
    drawnAt = performance.now();
  };
  return () => {
    if (waiting) return;
    waiting = true;
    if (document.hidden) document.addEventListener("visibilitychange", run, { once: true });
    else if (atOnce && performance.now() - drawnAt >= FRAME) queueMicrotask(run);
    else requestAnimationFrame(run);
  };
}

// The shapes of states and of the rail: 16 × 16, drawn with strokes of the text colour.
const SHAPES = {
  running: [["circle", { cx: 8, cy: 8, r: 4.5, fill: "currentColor", stroke: "none" }]],
  busy: [["circle", { cx: 8, cy: 8, r: 4.75 }], ["path", { d: "M8 3.25a4.75 4.75 0 0 1 0 9.5z", fill: "currentColor", stroke: "none" }]],
  done: [["path", { d: "M3.5 8.5l3 3 6-7" }]],
  failed: [["path", { d: "M4 4l8 8M12 4l-8 8" }]],
  asks: [["path", { d: "M8 2l6 6-6 6-6-6z", fill: "currentColor", stroke: "none" }]],
  queued: [["circle", { cx: 8, cy: 8, r: 4.75, "stroke-dasharray": "1.9 1.83" }]],
  paused: [["path", { d: "M5.75 3.5v9M10.25 3.5v9", "stroke-width": 2 }]],
  skipped: [["path", { d: "M3 11a5 5 0 0 1 9.2-2.6M12.75 4.5l-.4 4-3.9-.9" }]],
  stopped: [["circle", { cx: 8, cy: 8, r: 5 }], ["path", { d: "M4.6 11.4l6.8-6.8" }]],
  clock: [["circle", { cx: 8, cy: 8, r: 5.5 }], ["path", { d: "M8 5v3.2l2.2 1.6" }]],
  unknown: [["path", { d: "M6 6.2a2 2 0 1 1 2.8 1.9c-.6.3-.8.7-.8 1.4M8 12v.1" }]],
  now: [["path", { d: "M2 4.5h12M2 8h8M2 11.5h10" }]],
  inbox: [["path", { d: "M2.5 9l1.6-5.5h7.8L13.5 9v4h-11zM2.5 9h3.2l1 1.7h2.6l1-1.7h3.2" }]],
  audit: [["path", { d: "M4 2.5h8v11H4zM6 5.5h4M6 8h4M6 10.5h2.2" }]],
  settings: [["path", { d: "M2.5 5h5M11.5 5h2M2.5 11h2M8.5 11h5" }], ["circle", { cx: 9.5, cy: 5, r: 1.9 }], ["circle", { cx: 6.5, cy: 11, r: 1.9 }]],
  search: [["circle", { cx: 7, cy: 7, r: 4 }], ["path", { d: "M10 10l3.5 3.5" }]],
  copy: [["path", { d: "M5.5 5.5h7.5v7.5H5.5zM3 10.5V3h7.5" }]],
  right: [["path", { d: "M6 4l4 4-4 4" }]],
  down: [["path", { d: "M4 6l4 4 4-4" }]],
  key: [["circle", { cx: 5.5, cy: 8, r: 2.75 }], ["path", { d: "M8.25 8H14v2.5M11.5 8v2" }]],
  warning: [["path", { d: "M8 2.5l6 10.8H2zM8 6.5v3.2M8 11.5v.1" }]],
  download: [["path", { d: "M8 2.5v7.5M4.8 7l3.2 3.2L11.2 7M3 13.3h10" }]],
  burner: [["circle", { cx: 8, cy: 8, r: 6.5 }], ["circle", { cx: 8, cy: 8, r: 3.6 }], ["circle", { cx: 8, cy: 8, r: 1.1, fill: "currentColor" }]],
};

/** @param {keyof typeof SHAPES} name @param {string} [extra] */
export function icon(name, extra = "") {
  const shape = (SHAPES[name] || SHAPES.unknown).map(([tag, props]) => h(/** @type {string} */ (tag), /** @type {any} */ (props)));
  return h("svg", { class: `icon ${extra}`, viewBox: "0 0 16 16", "aria-hidden": "true" }, ...shape);
}
