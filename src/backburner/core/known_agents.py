"""Agents that people already have on their machines: how each is started, and how it is made to ask before it acts.

A name here can be asked wherever its program is on the PATH. `[agents.NAME]` with the same `type` changes single words of it.
"""

OPENCODE, ACP = "opencode", "acp"
TYPES = (OPENCODE, ACP)

# What OpenCode may do without asking: look around in the project, and keep its own list. All else it asks for; the last rule that fits
# counts. Nobody sits there to answer a question of its own, and what a subagent does would not be asked for.
OPENCODE_RULES = {
    "*": "ask",
    **dict.fromkeys(("bash", "edit", "read", "grep", "webfetch", "websearch", "external_directory"), "ask"),
    **dict.fromkeys(("glob", "list", "lsp", "todoread", "todowrite", "skill"), "allow"),
    **dict.fromkeys(("question", "task"), "deny"),
}

KNOWN_AGENTS: dict[str, dict[str, str]] = {
    "opencode": {
        "type": OPENCODE,
        "description": "OpenCode, over a server of its own",
        "command": "opencode",
        "package": "opencode-ai",
    },
    "opencode-acp": {"type": ACP, "description": "OpenCode", "command": "opencode acp", "package": "opencode-ai"},
    "claude": {
        "type": ACP,
        "description": "Claude Code",
        "command": "claude-agent-acp",
        "mode": "default",
        "package": "@agentclientprotocol/claude-agent-acp",
    },
    "codex": {
        "type": ACP,
        "description": "Codex",
        "command": "codex-acp",
        "mode": "read-only",
        "package": "@agentclientprotocol/codex-acp",
    },
    "gemini": {"type": ACP, "description": "Gemini CLI", "command": "gemini --acp", "mode": "default", "package": "@google/gemini-cli"},
    "goose": {
        "type": ACP,
        "description": "goose",
        "command": "goose acp --with-builtin developer",
        "mode": "approve",
        "package": "@aaif/goose",
    },
    "qwen": {"type": ACP, "description": "Qwen Code", "command": "qwen --acp", "mode": "default", "package": "@qwen-code/qwen-code"},
}


def asks_before_acting(settings: dict[str, str]) -> bool:
    """Whether an agent asks for permission before it acts, so that the gate is in front of what it does."""
    if settings["type"] in ("", OPENCODE) or settings.get("asks") == "yes":
        return True  # our own has a gate in front of every step, and a session in OpenCode is told to ask
    ready = KNOWN_AGENTS.get(settings["name"])
    return ready is not None and all(settings.get(word, "") == ready.get(word, "") for word in ("command", "mode"))
