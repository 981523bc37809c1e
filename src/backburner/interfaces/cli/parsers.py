"""The words of every verb: what it takes, and what `--help` says of it. Only the parser that is asked for is built."""

import argparse
from collections.abc import Callable

from backburner.core.models import NOTIFY, PRIORITIES

MISSED, WAKES = ("skip", "run_once", "run_all"), ("change", "success", "output")
CLIENTS = ("claude", "codex", "gemini", "opencode")
Parser = argparse.ArgumentParser


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < 1e8:
        raise argparse.ArgumentTypeError(f"'{text}' is not a number of seconds")
    return value


def _event_number(text: str) -> int:
    return -_count(text[1:]) if text.startswith("-") else _count(text)


def _count(text: str) -> int:
    if not text.isdecimal() or len(text) > 12:
        raise argparse.ArgumentTypeError(f"'{text}' is not a count")
    return int(text)


def _ids(parser: Parser, many: bool = True, optional: bool = False) -> None:
    about = "an id, a unique part of one, a label, or `last`"
    parser.add_argument("id", nargs=("*" if optional else "+") if many else None, metavar="ID", help=about)


def _starting(parser: Parser) -> None:
    parser.add_argument(
        "--wait",
        nargs="?",
        const=True,
        type=_seconds,
        metavar="SECONDS",
        help="follow the output to the end and exit with the command's code; with SECONDS leave it in the background after that",
    )
    parser.add_argument("--yes", action="store_true", help="approve it here and now; never overrides a deny")


def _run(parser: Parser) -> None:
    parser.usage = "backburner run [OPTION]… -- COMMAND ARG…"
    parser.add_argument("--name", metavar="LABEL", help="a label; it becomes part of the id and can be used for it")
    parser.add_argument("--description", metavar="TEXT", help="what it is for, shown in lists and notices")
    _starting(parser)
    _what(parser)
    order = parser.add_argument_group("when and with whom")
    order.add_argument("--batch", metavar="B", help="put it into a group that can be waited for, cancelled or cleared together")
    order.add_argument("--after", action="append", default=[], metavar="ID", help="start once that has completed; may be given again")
    at = order.add_mutually_exclusive_group()
    at.add_argument("--at", metavar="TIME", help="start at 18:30, or 2026-02-09 18:30, or with a zone 2026-02-09T18:30:00Z")
    at.add_argument("--in", dest="in_", metavar="10m", help="start after this long")
    order.add_argument("--priority", choices=list(PRIORITIES), default="normal", help="which of those that wait starts first")
    order.add_argument("--key", metavar="KEY", help="start it only once: a second call with the same key gives the first task's id")
    bounds = parser.add_argument_group("limits")
    bounds.add_argument("--timeout", metavar="5m", help="stop it after this long")
    bounds.add_argument("--memory", metavar="2G", help="most memory for each of its processes")
    bounds.add_argument("--cpu-time", metavar="10m", help="most CPU time for each of its processes")
    bounds.add_argument("--nice", type=_count, metavar="N", help="be nice to others: 0 to 19")
    server = parser.add_argument_group("servers and talking")
    server.add_argument("--ready-when", metavar="REGEX|PORT", help="it is ready when it prints a line like that, or listens on that port")
    server.add_argument("--restart", metavar="on-failure[:N]", help="run it again when it fails, up to N times in a row (10)")
    server.add_argument("--stdin", action="store_true", help="keep its input open for: backburner send")


def _what(parser: Parser) -> None:
    parser.add_argument("--cwd", metavar="DIR", help="where it would run (default: here)")
    parser.add_argument("--env", action="append", default=[], metavar="K=V", help="set a variable for it; may be given again")
    parser.add_argument("--shell", action="store_true", help="as a line of /bin/sh, with pipes and redirects")
    parser.add_argument("command", nargs="*", metavar="COMMAND ARG", help="the command, after `--`")


def _check(parser: Parser) -> None:
    parser.usage = "backburner check [OPTION]… -- COMMAND ARG…"
    _what(parser)


def _trust(parser: Parser) -> None:
    parser.add_argument("folder", nargs="?", metavar="DIR", help="a folder of the project (default: this one)")
    parser.add_argument("--list", action="store_true", help="show what was said for good")
    parser.add_argument("--revoke", type=_count, metavar="N", help="take grant N back")


def _audit(parser: Parser) -> None:
    parser.add_argument("--here", action="store_true", help="only of this project")
    parser.add_argument("--limit", type=_count, default=100, metavar="N", help="how many at the most, 0 for all (default: 100)")


def _list(parser: Parser) -> None:
    parser.add_argument(
        "status", nargs="?", metavar="STATUS", help="only those: pending, running, completed, failed, cancelled, proposed …"
    )
    parser.add_argument("--all", action="store_true", help="of all projects, not only of this one")
    parser.add_argument("--batch", metavar="B", help="only those of a batch")
    parser.add_argument("--limit", type=_count, metavar="N", help="how many at the most, 0 for all (default: 200)")


def _status(parser: Parser) -> None:
    _ids(parser, many=False)
    parser.add_argument("--runs", type=_count, default=10, metavar="N", help="how many runs of a standing task to show (default: 10)")


def _logs(parser: Parser) -> None:
    _ids(parser, many=False)
    parser.add_argument("-f", "--follow", action="store_true", help="go on until the task has ended")
    parser.add_argument("--tail", type=_count, metavar="N", help="only the last N lines")
    parser.add_argument("--since", metavar="CURSOR", help="only what came after a cursor, as `logs --json` gives one; 0 for all")
    parser.add_argument("--grep", metavar="REGEX", help="only lines like that")
    parser.add_argument("--run", type=_count, metavar="N", help="of the N-th run of a task that was restarted (default: the latest)")
    parser.add_argument("--raw", action="store_true", help="as the file has it: with the header, and with every control code")


def _approve(parser: Parser) -> None:
    _ids(parser)
    parser.add_argument("--seen", metavar="FINGERPRINT", help="what the question showed; refused where something else would run now")


def _of_batch(parser: Parser) -> None:
    _ids(parser, optional=True)
    parser.add_argument("--batch", metavar="B", help="all of a batch")


def _wait(parser: Parser) -> None:
    _of_batch(parser)
    parser.add_argument("--ready", action="store_true", help="only until they are ready, as `run --ready-when` says")
    parser.add_argument("--timeout", type=_seconds, metavar="S", help="give up after S seconds, with exit code 124")


def _restart(parser: Parser) -> None:
    _ids(parser, many=False)
    _starting(parser)


def _batch(parser: Parser) -> None:
    parser.add_argument("--all", action="store_true", help="of all projects, not only of this one")


def _send(parser: Parser) -> None:
    _ids(parser, many=False)
    parser.add_argument(
        "text", nargs="?", metavar="TEXT", help="what to send, as a line; without it everything from the input is sent as it is"
    )


def _traces(parser: Parser) -> None:
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--span", metavar="SPAN", help="the trace that this span belongs to")
    which.add_argument("--task", metavar="ID", help="the trace that this task belongs to (default: the last task's)")


def _chat(parser: Parser) -> None:
    parser.add_argument("-m", "--message", metavar="TEXT", help="say just this, print the answer and leave; piped input is added to it")
    parser.add_argument("--agent", default="default", metavar="NAME", help="who answers, from [agents.NAME] in config.toml")
    parser.add_argument("--resume", nargs="?", const="", metavar="CHAT", help="go on with the last chat of this project, or with that one")


def _top(parser: Parser) -> None:
    parser.add_argument("--all", action="store_true", help="of all projects, not only of this one")


def _clear(parser: Parser) -> None:
    _of_batch(parser)
    parser.add_argument("--ended", action="store_true", help="everything that has ended in this project")
    parser.add_argument("--all", action="store_true", help="with --ended: in all projects")
    parser.add_argument("--old", action="store_true", help="everything past its retention")


def _inbox(parser: Parser) -> None:
    parser.add_argument("--ack", action="store_true", help="mark what is shown as read")
    parser.add_argument("--read", action="store_true", help="show what was read before, too")
    parser.add_argument("--here", action="store_true", help="only of this project")
    parser.add_argument("-f", "--follow", action="store_true", help="show each in a box as it comes, until Ctrl-C; it then counts as read")
    parser.add_argument("--again", action="store_true", help="try again what could not be delivered to a channel")
    parser.add_argument(
        "--hook", choices=CLIENTS, metavar="CLIENT", help=f"answer a hook of an agent's client, and tell it once: {', '.join(CLIENTS)}"
    )


def _brief(parser: Parser) -> None:
    parser.add_argument("--all", action="store_true", help="of all projects, not only of this one")


def _events(parser: Parser) -> None:
    parser.add_argument("-f", "--follow", action="store_true", help="go on as things happen")
    parser.add_argument("--since", type=_event_number, default=0, metavar="N", help="only after event N; -10 for the last ten")


def _config(parser: Parser) -> None:
    parser.add_argument("what", choices=["show"], help="every setting, its value, and where that came from")


def _completion(parser: Parser) -> None:
    parser.add_argument("shell", choices=["bash", "zsh", "fish"])


def _mcp(parser: Parser) -> None:
    parser.add_argument("--tools", metavar="SETS", help="only these sets of tools: commands, agents, tasks (default: those of use)")
    parser.add_argument("--client", metavar="CLIENT", help="what the client is called (default: what it says)")


def _serve(parser: Parser) -> None:
    parser.add_argument("--http", metavar="PORT", help="also be an MCP server over HTTP on this port of 127.0.0.1, for who has the token")


def _install(parser: Parser) -> None:
    parser.add_argument("client", choices=CLIENTS, metavar="CLIENT", help=f"the agent to wire: {', '.join(CLIENTS)}")
    parser.add_argument("--undo", action="store_true", help="take out again what was put in")
    parser.add_argument("--yes", action="store_true", help="change the files without asking")


def _none(_: Parser) -> None:
    return


def _ask(parser: Parser) -> None:
    parser.add_argument("prompt", metavar="PROMPT", help="what to ask; - reads it from the input")
    parser.add_argument("--agent", default="default", metavar="NAME", help="which agent (default: default); see: backburner agents")
    parser.add_argument("--name", metavar="LABEL", help="a label; it becomes part of the id and can be used for it")
    parser.add_argument("--description", metavar="TEXT", help="what it is for, shown in lists and notices")
    parser.add_argument("--cwd", metavar="DIR", help="where it works (default: here)")
    parser.add_argument("--batch", metavar="B", help="put it into a group that can be waited for, cancelled or cleared together")
    parser.add_argument("--after", action="append", default=[], metavar="ID", help="start once that has completed; may be given again")
    parser.add_argument("--key", metavar="KEY", help="ask only once: a second call with the same key gives the first task's id")
    parser.add_argument("--timeout", metavar="5m", help="stop it after this long")
    parser.add_argument(
        "--budget", action="append", default=[], metavar="K=N", help="tokens, tool_calls, cost or seconds after which it waits and asks"
    )
    parser.add_argument("--worktree", action="store_true", help="have it work in a git worktree of its own, and leave a branch and a diff")
    parser.add_argument("--wait", action="store_true", help="wait for the answer and print it")


def _add(parser: Parser) -> None:
    when_, what_ = "(--every 30m | --cron '0 9 * * 1-5' | --at TIME | --after ID | --on SOURCE)", "(--prompt TEXT | -- COMMAND ARG…)"
    parser.usage = f"{parser.prog} NAME {when_} {what_} [OPTION]…"
    parser.add_argument("name", metavar="NAME", help="what it is called; it can be used for its id")
    when = parser.add_argument_group("when")
    one = when.add_mutually_exclusive_group()
    one.add_argument("--every", metavar="30m", help="in steps of 30s, 5m, 2h, 1d or 1w, from now on")
    one.add_argument("--cron", metavar="EXPR", help="five fields by the clock of a zone, or @hourly, @daily, @weekly, @monthly, @yearly")
    one.add_argument("--at", metavar="TIME", help="once, at 18:30, or 2026-02-09 18:30, or with a zone 2026-02-09T18:30:00Z")
    one.add_argument("--after", metavar="ID", help="each time another task has completed, with its result")
    one.add_argument(
        "--on",
        metavar="SOURCE",
        help="when something happens: file:PATH, command:'…', github:OWNER/REPO, webhook:NAME (see docs/channels.md)",
    )
    when.add_argument("--with", dest="with_", action="append", default=[], metavar="K=V", help="about that source; may be given again")
    when.add_argument("--tz", metavar="ZONE", help="the zone of --cron, such as Europe/Berlin (default: this machine's)")
    when.add_argument("--until", metavar="TIME", help="not after that")
    when.add_argument("--max-runs", type=_count, metavar="N", help="how often at the most")
    when.add_argument("--missed", choices=MISSED, default="run_once", help="what becomes of slots that were missed (default: run_once)")
    when.add_argument("--window", metavar="1d", help="with --missed run_all: how long ago a slot may be that is made up for (default: 1d)")
    when.add_argument("--jitter", metavar="30s", help="start up to this much later, so that many do not start at once")
    what = parser.add_argument_group("what")
    what.add_argument(
        "--prompt", metavar="TEXT", help="what an agent is asked each time; a command beside it decides whether it is; - reads it"
    )
    what.add_argument("--agent", default="default", metavar="NAME", help="which agent (default: default)")
    what.add_argument("--wake", choices=WAKES, help="when the command beside a prompt has the agent asked (default: change)")
    what.add_argument(
        "--field", action="append", default=[], metavar="NAME", help="a field of the agent's result, for on_change; may be given again"
    )
    what.add_argument(
        "--recall", action="append", default=[], metavar="KEY", help="tell the agent what is remembered as that; may be given again"
    )
    what.add_argument("--last-result", action="store_true", help="tell the agent what it found the last time")
    what.add_argument(
        "--tools", metavar="SETS", help="the agent's tools: read, files, commands, memory, background (default: read,commands,memory)"
    )
    _what(parser)
    told = parser.add_argument_group("telling, and limits")
    told.add_argument("--description", metavar="TEXT", help="what it is for, shown in lists and notices")
    told.add_argument("--notify", choices=NOTIFY, default="on_change", help="when somebody is told (default: on_change)")
    told.add_argument("--to", action="append", default=[], metavar="CHANNEL", help="also tell a channel of config.toml; may be given again")
    told.add_argument("--timeout", metavar="5m", help="stop a run after this long (default: 5m)")
    told.add_argument(
        "--budget", action="append", default=[], metavar="K=N", help="tokens, tool_calls, cost or seconds after which a run waits and asks"
    )
    told.add_argument(
        "--per-day",
        action="append",
        default=[],
        metavar="K=N",
        help="tokens, cost, runs or seconds in a day after which it pauses and asks",
    )
    told.add_argument("--yes", action="store_true", help="approve it here and now; never overrides a deny")


def _run_now(parser: Parser) -> None:
    _ids(parser, many=False)
    parser.add_argument("--wait", action="store_true", help="wait for its end and print its output")


def _compact(parser: Parser) -> None:
    _ids(parser, optional=True)
    parser.add_argument("--days", type=_seconds, metavar="N", help="older than this (default: the retention, 7)")


def _service(parser: Parser) -> None:
    parser.add_argument("what", choices=["install", "uninstall", "status"], help="a user service of systemd that keeps the engine up")
    parser.add_argument("--yes", action="store_true", help="change the files without asking")


def _resume(parser: Parser) -> None:
    _ids(parser, many=False)
    parser.add_argument("message", metavar="MESSAGE", help="what to say to it; - reads it from the input")
    parser.add_argument("--wait", action="store_true", help="wait for the answer and print it")


def _agents(parser: Parser) -> None:
    parser.add_argument("--check", action="store_true", help="ask each for a word, to see whether it answers")


def _sessions(parser: Parser) -> None:
    parser.add_argument("what", nargs="?", choices=["end"], help="end: cancel what a session asked for, and forget it")
    parser.add_argument("session", nargs="?", metavar="SESSION", help="which one")


VERBS: dict[str, tuple[str, Callable[[Parser], None]]] = {
    "run": ("Start a command in the background and print its id.", _run),
    "ask": ("Ask an agent in the background and print the task's id.", _ask),
    "add": ("Have a command or a prompt run by a schedule, from now on.", _add),
    "propose": ("The same as a proposal, which a person has to approve.", _add),
    "pause": ("Run a standing task no more for now.", _ids),
    "unpause": ("Let a paused task go on.", _ids),
    "run-now": ("Run a standing task once, out of turn.", _run_now),
    "resume": ("Talk on with an agent that has answered.", _resume),
    "list": ("Show the tasks of this project.", _list),
    "status": ("Show everything about one task.", _status),
    "logs": ("Print a task's output.", _logs),
    "wait": ("Wait for tasks to end; exit 1 if one did not complete.", _wait),
    "cancel": ("Stop tasks, and say so only once nothing of them is left.", _of_batch),
    "restart": ("Start a task's command again, as a new task.", _restart),
    "send": ("Write to the input of a command.", _send),
    "batch": ("Show the groups of tasks and how they stand.", _batch),
    "chat": ("Talk with an agent while work goes on behind it.", _chat),
    "top": ("Watch and steer everything on a live board.", _top),
    "approve": ("Say yes to what waits for approval; at a terminal it is shown first.", _approve),
    "reject": ("Say no to what waits for approval.", _ids),
    "check": ("Say what the gate would say to a command; run nothing.", _check),
    "trust": ("Let the code of this project run without asking, from now on.", _trust),
    "audit": ("Show who said yes to what, and by which rule.", _audit),
    "clear": ("Forget ended tasks and their output.", _clear),
    "compact": ("Forget old runs of standing tasks.", _compact),
    "inbox": ("Show what ended and was not told yet.", _inbox),
    "brief": ("Say in a few lines what is open, for an agent that has forgotten it.", _brief),
    "events": ("Show everything that happened, in order.", _events),
    "traces": ("Show what led to what, and how long each piece took.", _traces),
    "mcp": ("Be an MCP server for an agent, on standard input and output.", _mcp),
    "serve": ("Be the engine, in the foreground.", _serve),
    "service": ("Keep the engine up over logins and reboots.", _service),
    "install": ("Give an agent's client the tools and hooks of Backburner.", _install),
    "agents": ("Show the agents that can be asked.", _agents),
    "sessions": ("Show who asked for work, or end one of them.", _sessions),
    "config": ("Show the settings.", _config),
    "doctor": ("Check the home and say how to mend what is wrong.", _none),
    "completion": ("Print a completion script for a shell.", _completion),
}
