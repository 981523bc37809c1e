// A long list of which only the rows near the window are in the document. The page itself scrolls. Rows are placed with transforms, so a
// row that moves is no layout shift; the row with the focus always stays in the document.

import { h, patch, perFrame } from "./dom.js";

const OVERSCAN = 400; // pixels above and below the window

/**
 * @template T
 * @typedef {{key: (item: T) => string, height: (item: T) => number, draw: (item: T) => import("./dom.js").Child[], tag?: (item: T) => string, props?: (item: T) => Record<string, any>, onEnd?: () => void}} Options
 */

/** @template T */
export class WindowList {
  /** @param {HTMLElement} element @param {Options<T>} options */
  constructor(element, options) {
    this.element = element;
    this.options = options;
    /** @type {T[]} */
    this.items = [];
    /** @type {number[]} the top of each item, and the height of all */
    this.tops = [0];
    /** @type {Map<number, import("./dom.js").Child>} the rows that were described since the last update */
    this.nodes = new Map();
    const draw = perFrame(() => this.draw());
    addEventListener("scroll", draw, { passive: true });
    addEventListener("resize", draw);
    this.close = () => (removeEventListener("scroll", draw), removeEventListener("resize", draw));
  }

  /** @param {T[]} items */
  update(items) {
    const anchor = scrollY > 0 ? this.anchor() : null;
    let top = this.element.getBoundingClientRect().top; // read before anything is written, which would need another layout
    this.items = items;
    this.nodes.clear();
    this.tops = [0];
    for (const item of items) this.tops.push(this.tops[this.tops.length - 1] + this.options.height(item));
    this.element.style.height = `${this.tops[items.length]}px`;
    if (anchor) {
      const index = items.findIndex((item) => this.options.key(item) === anchor.key);
      if (index >= 0 && this.tops[index] !== anchor.top) {
        scrollBy(0, this.tops[index] - anchor.top);
        top = this.element.getBoundingClientRect().top;
      }
    }
    this.draw(top);
  }

  /** The item with the focus, or the first one in the window. */
  anchor() {
    const focused = document.activeElement?.closest("[data-key]");
    const key = focused && this.element.contains(focused) ? focused.getAttribute("data-key") : null;
    const offset = -this.element.getBoundingClientRect().top;
    const at = key ? this.items.findIndex((item) => this.options.key(item) === key) : this.indexAt(Math.max(0, offset) + 60);
    return at >= 0 && at < this.items.length ? { key: this.options.key(this.items[at]), top: this.tops[at] } : null;
  }

  /** @param {number} y */
  indexAt(y) {
    let low = 0;
    let high = this.items.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.tops[middle + 1] <= y) low = middle + 1;
      else high = middle;
    }
    return low;
  }

  /** @param {number} [top] where the list begins in the window, if that is known */
  draw(top = this.element.getBoundingClientRect().top) {
    const from = -top - OVERSCAN;
    const to = from + innerHeight + 2 * OVERSCAN;
    const first = this.indexAt(Math.max(0, from));
    const last = Math.min(this.items.length - 1, this.indexAt(to));
    const focused = document.activeElement?.closest("[data-key]")?.getAttribute("data-key");
    const shown = [];
    if (focused) {
      const at = this.items.findIndex((item) => this.options.key(item) === focused);
      if (at >= 0 && at < first) shown.push(at);
      for (let index = first; index <= last; index++) shown.push(index);
      if (at > last) shown.push(at);
    } else for (let index = first; index <= last; index++) shown.push(index);
    patch(this.element, shown.map((index) => this.nodeOf(index)));
    if (last >= this.items.length - 40) this.options.onEnd?.();
  }

  /** @param {number} index */
  nodeOf(index) {
    let node = this.nodes.get(index);
    if (!node) this.nodes.set(index, (node = this.drawItem(index)));
    return node;
  }

  /** @param {number} index */
  drawItem(index) {
    const item = this.items[index];
    const key = this.options.key(item);
    return h(
      this.options.tag?.(item) || "div",
      { ...(this.options.props?.(item) || {}), key, "data-key": key, style: { transform: `translateY(${this.tops[index]}px)`, height: `${this.options.height(item)}px` } },
      ...this.options.draw(item),
    );
  }

  /** Focus the next or previous row that can have it. @param {number} step @param {(item: T) => boolean} [isStop] */
  move(step, isStop = () => true) {
    const focused = document.activeElement?.closest("[data-key]")?.getAttribute("data-key");
    let at = focused ? this.items.findIndex((item) => this.options.key(item) === focused) : -1;
    if (at < 0) at = step > 0 ? this.indexAt(Math.max(0, -this.element.getBoundingClientRect().top)) - 1 : this.items.length;
    for (at += step; at >= 0 && at < this.items.length; at += step) if (isStop(this.items[at])) return this.focus(at);
  }

  /** @param {number} index */
  focus(index) {
    const top = this.tops[index] + this.element.getBoundingClientRect().top;
    if (top < 120) scrollBy(0, top - 120);
    else if (top > innerHeight - 160) scrollBy(0, top - innerHeight + 160);
    this.draw();
    const row = this.element.querySelector(`[data-key="${CSS.escape(this.options.key(this.items[index]))}"]`);
    const link = /** @type {HTMLElement | null} */ (row?.querySelector("a, button") || null);
    link?.focus({ preventScroll: true });
  }
}
