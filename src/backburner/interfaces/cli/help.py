"""The overview that `backburner --help` prints, and the examples of single commands. Loaded only when help is printed."""

from backburner.interfaces.cli.parsers import VERBS

GROUPS = {
    "run and watch": ("run", "list", "status", "logs", "wait", "cancel", "restart", "send", "fetch", "batch", "top", "clear"),
    "agents": ("ask", "resume", "chat", "agents", "sessions", "install", "mcp"),
    "schedules": ("add", "propose", "edit", "pause", "unpause", "run-now", "compact"),
    "approval": ("approve", "reject", "apply", "check", "trust", "audit"),
    "inbox": ("inbox", "brief"),
    "several hosts": ("join", "worker", "hosts", "migrate"),
    "operate": (
        "web",
        "devices",
        "serve",
        "service",
        "setup",
        "doctor",
        "config",
        "events",
        "traces",
        "backup",
        "restore",
        "export",
        "completion",
    ),
}
_RECURRING = (
    "tests --every 30m -- make test",
    "report --cron '0 9 * * 1-5' --tz Europe/Berlin --prompt 'Summarise the commits of yesterday'",
    "build --on file:src -- make",
    "ci --every 5m --prompt 'Explain what failed' -- gh run list --branch main --limit 5",
    "backup --cron '0 3 * * 0' --dry-run -- ./backup.sh",
)
EXAMPLES: dict[str, tuple[str, ...]] = {
    "run": (
        "-- make test",
        "--wait -- pytest -q",
        "--name web --ready-when 8000 -- python3 -m http.server 8000",
        "--shell --timeout 10m -- 'make build | tee build.log'",
        "--after tests --batch release -- ./deploy.sh",
    ),
    "ask": (
        "'Find out why the tests fail'",
        "--wait 'Summarise README.md'",
        "--agent claude --worktree 'Fix the failing test'",
        "--budget tokens=50000 --timeout 10m - < prompt.txt",
    ),
    "add": _RECURRING,
    "propose": _RECURRING[:3],
    "edit": ("tests --every 1h", "report --cron '0 8 * * 1-5' --notify always", "build -- make -j4"),
}
_OVERVIEW = """usage: backburner COMMAND [OPTION]…

Run commands and agents in the background.
"""
_FOOTER = """global options:
  --home DIR  data directory (default: $BACKBURNER_HOME, else ~/.backburner)
  --json      print JSON

Commands that nobody approved run in a sandbox. What cannot run there needs
approval: at the terminal, or with `backburner approve ID`.
Run `backburner COMMAND --help` for the options of a command.

EXAMPLES
  backburner run --wait -- echo hello
  backburner list"""


def overview() -> str:
    """The text of `backburner --help`: every command in its group, with its description."""
    lines = [_OVERVIEW]
    for title, verbs in GROUPS.items():
        lines.append(f"{title}:")
        lines += [f"  {verb:<11} {VERBS[verb][0]}" for verb in verbs]
        lines.append("")
    return "\n".join([*lines, _FOOTER])


def examples(verb: str) -> str | None:
    """The EXAMPLES section of a command's help; None for a command without one."""
    if verb not in EXAMPLES:
        return None
    return "\n".join(["EXAMPLES", *(f"  backburner {verb} {words}" for words in EXAMPLES[verb])])
