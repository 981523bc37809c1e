"""External agents that Backburner knows: how to start each one, and how to make it ask for permission before it acts.

Such an agent can be used without configuration if its program is on the PATH. `[agents.NAME]` with the same `type` overrides single
settings.
"""

OPENCODE, ACP = "opencode", "acp"
TYPES = (OPENCODE, ACP)

# OpenCode may list files in the project and edit its own todo list without permission; everything else needs permission. The last
# matching rule applies. `question` is denied because no user is present to answer, `task` because OpenCode asks no permission for
# what a subagent does.
OPENCODE_RULES = {
    "*": "ask",
    **dict.fromkeys(("bash", "edit", "read", "grep", "webfetch", "websearch", "external_directory"), "ask"),
    **dict.fromkeys(("glob", "list", "lsp", "todoread", "todowrite", "skill"), "allow"),
    **dict.fromkeys(("question", "task"), "deny"),
}

KNOWN_AGENTS: dict[str, dict[str, str]] = {
    "opencode": {
        "type": OPENCODE,
        "description": "OpenCode, with its own server",
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
    """Return whether an agent asks for permission before it acts, so that the gate can judge every action."""
    if settings["type"] in ("", OPENCODE) or settings.get("asks") == "yes":
        return True  # the built-in agent passes the gate with every step, and OpenCode sessions are configured to ask
    known = KNOWN_AGENTS.get(settings["name"])
    return known is not None and all(settings.get(key, "") == known.get(key, "") for key in ("command", "mode"))
