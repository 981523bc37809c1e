// Backburner's plugin for OpenCode, installed by `backburner install opencode` and removed with `--undo`.
// It names the session of each call of a Backburner tool, and delivers notices about ended tasks to that session.
import { spawn } from "node:child_process"

const COMMAND = __BACKBURNER__

export const Backburner = async ({ client, directory }) => {
  const roots = new Map() // maps a session to its root session, which the user talks to
  const lastErrorAt = new Map()
  let child = null
  let starts = 0

  const send = (value) => {
    if (child?.stdin.writable) child.stdin.write(JSON.stringify(value) + "\n")
  }

  const startChild = () => {
    if (child || starts > 20) return
    starts += 1
    const started = spawn(COMMAND[0], [...COMMAND.slice(1), "inbox", "--hook", "opencode"], {
      cwd: directory,
      stdio: ["pipe", "pipe", "ignore"],
    })
    child = started
    let text = ""
    started.stdin.on("error", () => {})
    started.on("error", () => {})
    started.on("close", () => {
      child = null
      setTimeout(startChild, 1000 * starts).unref()
    })
    started.stdout.on("data", (piece) => {
      starts = Math.min(starts, 1) // the child process works
      const lines = (text + piece).split("\n")
      text = lines.pop()
      for (const line of lines) deliver(JSON.parse(line)).catch(() => {})
    })
    for (const root of new Set(roots.values())) send({ session: root })
  }

  const deliver = async ({ session, text, notices }) => {
    // A prompt right after an error would be stored and never answered.
    const delay = 1500 - (Date.now() - (lastErrorAt.get(session) ?? 0))
    if (delay > 0) await new Promise((done) => setTimeout(done, delay))
    const body = { parts: [{ type: "text", text, synthetic: true }] }
    const { error } = await client.session.promptAsync({ path: { id: session }, body })
    if (!error) send({ told: notices })
  }

  const rootOf = async (session) => {
    if (roots.has(session)) return roots.get(session)
    let root = session
    for (let depth = 0; depth < 10; depth++) {
      const { data } = await client.session.get({ path: { id: root } }).catch(() => ({}))
      if (!data?.parentID) break
      root = data.parentID
    }
    roots.set(session, root)
    startChild()
    send({ session: root })
    return root
  }

  return {
    "chat.message": async (input) => {
      await rootOf(input.sessionID)
    },
    "tool.execute.before": async (input, output) => {
      if (input.tool.startsWith("backburner_")) output.args._session = await rootOf(input.sessionID)
    },
    "shell.env": async (input, output) => {
      if (input.sessionID) output.env.BACKBURNER_SESSION = "opencode:" + (await rootOf(input.sessionID))
    },
    "experimental.session.compacting": async (_input, output) => {
      const brief = spawn(COMMAND[0], [...COMMAND.slice(1), "brief"], { cwd: directory, stdio: ["ignore", "pipe", "ignore"] })
      let text = ""
      brief.stdout.on("data", (piece) => (text += piece))
      await new Promise((done) => brief.on("close", done).on("error", done))
      if (text && !text.startsWith("No background")) output.context.push(text)
    },
    dispose: async () => {
      starts = Infinity
      child?.kill()
    },
    event: async ({ event }) => {
      const session = event.properties?.sessionID ?? event.properties?.info?.id
      if (event.type === "session.error") lastErrorAt.set(session, Date.now())
      if (event.type === "session.deleted") {
        roots.delete(session)
        send({ gone: session })
      }
    },
  }
}
