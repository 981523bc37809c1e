// Settings: paired devices and their passkeys, looks, grants, agents and channels. Pairing: the number, and nothing else.

import { dialog } from "../app.js";
import { h, icon } from "../dom.js";
import { ApiError, errorText, get, keepCredential, post, remove, signed } from "../net.js";
import { changed, loadHome, setSetting, setting, store } from "../store.js";
import { announce, cliLine, serverNow, visible, visibleText, when } from "../text.js";

const POLL = 1000;
const TYPE_NUMBER = ["Type this number at the terminal where ", h("code", null, "backburner web"), " runs."];

/** @returns {import("../app.js").View} */
export function settingsView() {
  /** @type {Record<string, any>} */
  const loaded = {};
  let problem = "";
  let passkeyProblem = "";
  /** @type {any} a passkey that waits for its confirmation */
  let pending = null;
  let isOpen = true;
  let isLoaded = false;

  const load = async () => {
    const parts = ["devices", "grants", "projects", "agents", "channels", "config", "doctor"];
    await Promise.all(parts.map(async (part) => {
      try {
        loaded[part] = await get(`/${part}`);
      } catch (error) {
        if (!(error instanceof ApiError)) throw error;
        if (part === "devices") problem = error.message;
      }
    }));
    isLoaded = true; // the parts appear together, so that none moves another
    changed();
  };
  void load();

  const untrusted = () => (loaded.projects?.items || []).filter((project) => !project.trusted);
  const own = () => loaded.devices?.items.find((device) => device.own);

  async function addPasskey() {
    passkeyProblem = "";
    try {
      const options = await post("/passkeys/options");
      const made = /** @type {any} */ (await navigator.credentials.create({ publicKey: PublicKeyCredential.parseCreationOptionsFromJSON(options.publicKey) }));
      pending = await post("/passkeys", { nonce: options.nonce, credential: made.toJSON(), name: deviceName() });
      changed();
      await untilActive(pending.passkey_id);
    } catch (error) {
      passkeyProblem = error instanceof DOMException ? "No passkey was added: the dialog was cancelled, or this passkey is already there." : errorText(error);
    }
    pending = null;
    await Promise.all([load(), loadHome()]);
  }

  async function untilActive(id) {
    while (isOpen && pending) {
      await new Promise((resolve) => setTimeout(resolve, POLL));
      loaded.devices = await get("/devices");
      const found = loaded.devices.items.flatMap((device) => device.passkeys).find((key) => key.passkey_id === id);
      if (found?.state === "active") return announce("The passkey was added.");
      if (!found) throw new Error("The passkey was not confirmed in time.");
      changed();
    }
  }

  async function confirmPasskey(id) {
    passkeyProblem = "";
    try {
      const challenge = await post(`/passkeys/${id}/challenge`);
      await post(`/passkeys/${id}/confirm`, await signed(challenge));
    } catch (error) {
      passkeyProblem = error instanceof DOMException ? "The passkey was not used." : errorText(error);
    }
    await load();
  }

  async function trust(cwd) {
    problem = "";
    try {
      const wanted = { kind: "trust", cwd };
      const challenge = await post("/grants/challenge", wanted);
      await post("/grants", { ...wanted, ...(await signed(challenge)) });
      announce("The project is trusted.");
    } catch (error) {
      problem = error instanceof DOMException ? "The passkey was not used. Nothing was changed." : errorText(error);
    }
    await load();
  }

  async function drop(address, isOwnDevice = false) {
    problem = "";
    try {
      await remove(address);
      if (isOwnDevice) {
        await keepCredential("");
        return location.reload();
      }
    } catch (error) {
      problem = errorText(error);
    }
    await load();
  }

  const choice = (name, fallback, values) => h("div.choice", { role: "group", "aria-label": name }, ...values.map(([value, label]) => h("button.toggle", { type: "button", "aria-pressed": String(setting(name, fallback) === value), onclick: () => setSetting(name, value) }, label)));
  const group = (name, /** @type {any[]} */ ...content) => h("section.group", { key: name }, h("h2", null, name), ...content);

  return {
    title: () => "Settings",
    close: () => void (isOpen = false),
    draw: () => {
      const mine = own();
      const keys = mine?.passkeys.filter((key) => key.state === "active") || [];
      const config = loaded.config;
      return [
        problem && h("p.problem", { role: "alert" }, icon("warning"), ...visible(problem)),
        group(
          "Looks",
          h("div.option", null, h("span", null, "Colours"), choice("theme", "system", [["system", "System"], ["light", "Light"], ["dark", "Dark"]])),
          h("div.option", null, h("span", null, "Rows"), choice("density", "normal", [["normal", "Normal"], ["compact", "Compact"]])),
        ),
        isLoaded && group(
          "Passkey of this browser",
          pending
            ? h("div.panel.pairing", null, h("p", null, ...(pending.confirm === "terminal" ? TYPE_NUMBER : ["Confirm this number on a paired page that has a passkey, in its settings:"])), bigNumber(pending.number), pending.confirm === "passkey" && keys.length ? h("button.primary", { type: "button", onclick: () => confirmPasskey(pending.passkey_id) }, "Confirm with the passkey that is here") : null)
            : keys.length
              ? h("ul.plain.rows", null, ...keys.map((key) => h("li", { key: key.passkey_id }, icon("key"), h("span.grow", null, ...visible(key.name, true), h("span.muted", null, ` · ${visibleText(key.rp_id)} · added `, when(key.created_at), key.last_used_at ? [" · last used ", when(key.last_used_at)] : null)), h("button.ghost", { type: "button", onclick: () => drop(`/passkeys/${key.passkey_id}`) }, "Remove"))))
              : h("p.hint", null, "With a passkey (finger, face, PIN or security key) you can approve commands here. Without one, approve them in a terminal."),
          !pending && (store.home?.passkeys_here === false ? h("p.hint", null, "Passkeys do not work at this address. ", h("a", { href: `${store.home.address}/settings` }, `Open ${store.home.address}`)) : h("p", null, h("button", { class: keys.length ? "" : "primary", type: "button", disabled: store.connection !== "live" || navigator.webdriver, onclick: addPasskey }, icon("key"), keys.length ? "Add another passkey" : "Add a passkey"))),
          passkeyProblem && h("p.problem", { role: "alert" }, icon("warning"), ...visible(passkeyProblem)),
        ),
        isLoaded && group("Devices", h("ul.plain.rows.tall", null, ...(loaded.devices?.items || []).map(device)), h("p.hint", null, "Pair another browser, for example on a phone:"), cliLine("backburner web")),
        isLoaded && loaded.grants?.items.length ? group("Allowed without asking", h("ul.plain.rows", null, ...loaded.grants.items.map((grant) => h("li", { key: grant.grant_id }, h("span.grow.cut", null, grant.kind === "trust" || !grant.command ? "Trusted project " : "", h("code", null, ...visible(Array.isArray(grant.command) ? grant.command.join(" ") : grant.command || grant.project, true)), grant.command ? h("span.muted", null, " in ", ...visible(grant.project, true)) : null), when(grant.created_at), h("button.ghost", { type: "button", onclick: () => drop(`/grants/${grant.grant_id}`) }, "Revoke"))))) : null,
        isLoaded && store.home?.may?.approve === "passkey" && untrusted().length ? group("Projects that are not trusted", h("p.hint", null, "Commands of a trusted project may run its own code without approval."), h("ul.plain.rows", null, ...untrusted().map((project) => h("li", { key: project.project }, h("code.grow.cut", null, ...visible(project.project, true)), h("button.ghost", { type: "button", disabled: navigator.webdriver, "aria-label": `Trust ${visibleText(project.project)}`, onclick: () => trust(project.project) }, icon("key"), "Trust"))))) : null,
        isLoaded && loaded.agents?.items.length ? group("Agents", h("ul.plain.rows", null, ...loaded.agents.items.map((agent) => h("li", { key: agent.name }, sign(!agent.problem), h("b", null, agent.name), h("span.muted.grow", null, ...visible(agent.problem || agent.description || agent.model || "", true)))))) : null,
        isLoaded && loaded.channels?.items.length ? group("Channels", h("ul.plain.rows", null, ...loaded.channels.items.map((channel) => h("li", { key: channel.name }, h("b", null, ...visible(channel.name, true)), h("span.muted.grow", null, channel.type), h("span.num.muted", null, `${channel.pending} pending, ${channel.failed} not delivered`))))) : null,
        isLoaded && loaded.doctor ? group("Doctor", h("ul.plain.rows", null, ...loaded.doctor.findings.map((finding) => h("li", { key: finding.what }, sign(finding.ok), h("span.grow", null, ...visible(finding.what, true), finding.fix ? h("span.muted", null, " ", ...visible(finding.fix, true)) : null))))) : null,
        isLoaded && config ? group("Configuration", h("p.hint", null, "The file is the truth: ", h("code.break", null, ...visible(config.path, true))), h("details", null, h("summary", null, `${config.items.length} settings`), h("dl.facts.details", null, ...config.items.map((item) => h("div", { key: item.name }, h("dt.mono", null, item.name), h("dd.break", null, h("code", null, ...visible(typeof item.value === "string" ? item.value : JSON.stringify(item.value))), h("span.muted", null, ` ${item.origin || ""}`))))))) : null,
        isLoaded && group("About", h("p.muted", null, `Backburner ${store.home?.version || ""} · `, h("code.break", null, ...visible(store.home?.home || ""))),),
      ];
    },
  };

  function device(one) {
    const waiting = one.passkeys.filter((key) => key.state === "pending" && key.passkey_id !== pending?.passkey_id);
    const active = one.passkeys.filter((key) => key.state === "active").length;
    return h(
      "li",
      { key: one.device_id, class: one.revoked_at ? "revoked" : null },
      h("div.grow", null, h("p", null, ...visible(one.name, true), " ", one.own ? h("span.tag", null, "this browser") : null), h("p.muted", null, one.revoked_at ? ["revoked ", when(one.revoked_at)] : ["last seen ", when(one.last_seen_at), active ? ` · ${active} ${active === 1 ? "passkey" : "passkeys"}` : " · no passkey: cannot approve"])),
      ...waiting.map((key) => h("span", null, `New passkey ${key.number || ""} `, h("button", { type: "button", onclick: () => confirmPasskey(key.passkey_id) }, "Confirm"))),
      one.revoked_at ? h("span") : one.own ? h("button.ghost", { type: "button", onclick: () => void dialog("Unpair this browser?", [h("p", null, "It must be paired again before it shows anything.")], [["Unpair", () => drop(`/devices/${one.device_id}`, true)]]) }, "Unpair") : h("button.ghost", { type: "button", onclick: () => drop(`/devices/${one.device_id}`) }, "Revoke"),
    );
  }
}

/** @param {boolean} ok */
const sign = (ok) => h("span", { class: `state ${ok ? "done" : "failed"}` }, icon(ok ? "done" : "failed"), h("span.sr", null, ok ? "works" : "does not work"));

/** @param {string} digits */
const bigNumber = (digits) => h("p.number.num", { "aria-label": digits.split("").join(" ") }, digits.slice(0, 3), h("span", null), digits.slice(3));

/** @param {() => Promise<void>} paired @returns {import("../app.js").View} */
export function pairView(paired) {
  /** @type {any} */
  let pairing = null;
  let problem = "";
  let help = "";
  let isOpen = true;

  async function pair() {
    [pairing, problem, help] = [null, "", ""];
    changed();
    try {
      const random = btoa(String.fromCharCode(...crypto.getRandomValues(new Uint8Array(32)))).replaceAll("+", "-").replaceAll("/", "_").replaceAll("=", "");
      const credential = `dev_${random}`;
      const digest = new Uint8Array(await crypto.subtle.digest("SHA-256", new TextEncoder().encode(credential)));
      pairing = await post("/pair", { commitment: Array.from(digest, (byte) => byte.toString(16).padStart(2, "0")).join(""), name: deviceName() });
      changed();
      for (;;) {
        await new Promise((resolve) => setTimeout(resolve, POLL));
        if (!isOpen) return;
        const { state } = await get(`/pair/${encodeURIComponent(pairing.pairing)}`);
        if (state === "paired") {
          await keepCredential(credential);
          return void (await paired());
        }
        if (state === "expired") throw new ApiError(410, { message: "The number was not typed in time." });
        changed();
      }
    } catch (error) {
      pairing = null;
      problem = error instanceof Error ? error.message : String(error);
      help = error instanceof ApiError ? error.fields.do || "" : "";
    }
    changed();
  }
  void pair();

  return {
    title: () => "Pair this browser",
    close: () => void (isOpen = false),
    draw: () => {
      const left = pairing ? Math.max(0, Math.round((Date.parse(pairing.expires_at) - serverNow()) / 1000)) : 0;
      return [
        h(
          "div.pair",
          null,
          h("p.brand", null, icon("burner"), h("span", null, "backburner")),
          h("h1", { tabindex: "-1" }, "Pair this browser"),
          pairing && [h("p", null, ...TYPE_NUMBER), bigNumber(pairing.number), h("p.muted.num", { role: "timer" }, `${Math.floor(left / 60)}:${String(left % 60).padStart(2, "0")} left`)],
          problem && [h("p.problem", { role: "alert" }, ...visible(problem)), h("p", null, "Run this in a terminal, then try again:"), cliLine(help || "backburner web"), h("p", null, h("button.primary", { type: "button", onclick: pair }, "Try again"))],
        ),
      ];
    },
  };
}

/** "Chromium 150 on Linux": what the terminal and the list of devices show. */
function deviceName() {
  const agent = navigator.userAgent;
  const [, name, version] = /(Firefox|Edg|OPR|HeadlessChrome|Chrome|Safari)\/(\d+)/.exec(agent.replace(/Version\/(\d+).*Safari\/\d+/, "Safari/$1")) || ["", "Browser", ""];
  const system = /Android|iPhone|iPad|Mac OS X|Windows|Linux/.exec(agent)?.[0].replace("Mac OS X", "macOS") || "";
  return `${{ Edg: "Edge", OPR: "Opera", HeadlessChrome: "Chromium" }[name] || name} ${version}${system ? ` on ${system}` : ""}`.trim();
}
