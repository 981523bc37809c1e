"""The arguments and the help text of every command. A call builds only the parser of the command that was given."""

import argparse
from collections.abc import Callable

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
        raise argparse.ArgumentTypeError(f"'{text}' is not a whole number")
    return int(text)


_ID_HELP = "task ID, a unique part of one, a label (its newest task), or `last`"


def _ids(parser: Parser, many: bool = True, optional: bool = False) -> None:
    parser.add_argument("id", nargs=("*" if optional else "+") if many else None, metavar="ID", help=_ID_HELP)


def _reject(parser: Parser) -> None:
    _ids(parser)
    parser.add_argument("--reason", metavar="TEXT", help="tell the agent that asked why")


def _id_or_last(parser: Parser) -> None:
    parser.add_argument("id", nargs="?", default="last", metavar="ID", help=f"{_ID_HELP} (default: last)")


def _start_options(parser: Parser) -> None:
    parser.add_argument(
        "--wait",
        nargs="?",
        const=True,
        type=_seconds,
        metavar="SECONDS",
        help="show the output until the command ends and exit with its exit code; with SECONDS, stop waiting after this time",
    )
    parser.add_argument(
        "--yes", action="store_true", help="approve without prompting, and run without a sandbox; does not override deny rules"
    )


def _run(parser: Parser) -> None:
    from backburner.core.models import PRIORITIES  # slow to import, and other commands do not need it

    parser.usage = "backburner run [OPTION]… [--] COMMAND ARG…"
    parser.add_argument("--name", metavar="LABEL", help="a label; it is part of the task ID and accepted in place of it")
    parser.add_argument("--description", metavar="TEXT", help="description shown in lists and notices")
    _start_options(parser)
    _command_options(parser)
    scheduling = parser.add_argument_group("scheduling and grouping")
    scheduling.add_argument("--batch", metavar="B", help="add the task to a batch; `wait`, `cancel` and `clear` accept a batch")
    scheduling.add_argument(
        "--after", action="append", default=[], metavar="ID", help="start after this task has completed; can be repeated"
    )
    at = scheduling.add_mutually_exclusive_group()
    at.add_argument(
        "--at", metavar="TIME", help="start at this time: 18:30, tomorrow 9am, 2026-02-09 18:30, or with a zone 2026-02-09T18:30:00Z"
    )
    at.add_argument("--in", dest="in_", metavar="DURATION", help="start after this delay, for example 10m or 1h30m")
    scheduling.add_argument("--priority", choices=list(PRIORITIES), default="normal", help="priority among pending tasks (default: normal)")
    scheduling.add_argument("--key", metavar="KEY", help="idempotency key: a second call with the same key returns the existing task")
    _place_options(parser, rerun=True)
    limits = parser.add_argument_group("limits")
    limits.add_argument("--timeout", metavar="DURATION", help="stop the task after this time, for example 5m")
    limits.add_argument("--memory", metavar="SIZE", help="memory limit of each process, for example 2G")
    limits.add_argument("--cpu-time", metavar="DURATION", help="CPU time limit of each process, for example 10m")
    limits.add_argument("--nice", type=_count, metavar="N", help="CPU niceness, 0 to 19")
    server = parser.add_argument_group("servers and input")
    server.add_argument(
        "--ready-when", metavar="REGEX|PORT", help="the task is ready when it prints a line that matches REGEX or listens on PORT"
    )
    server.add_argument(
        "--restart", metavar="on-failure[:N]", help="restart the command when it fails, at most N times in a row (default: 10)"
    )
    server.add_argument("--stdin", action="store_true", help="keep stdin open for `backburner send`")
    server.add_argument("--tty", action="store_true", help="run the command in a terminal, for colours and progress bars")


def _place_options(parser: Parser, *, rerun: bool = False) -> None:
    places = parser.add_argument_group("where it runs")
    places.add_argument(
        "--lane", action="append", default=[], metavar="L", help="run it in this lane, on a host that serves it; can be repeated"
    )
    places.add_argument("--host", metavar="NAME", help="run it on this host (see `backburner hosts`)")
    if rerun:
        places.add_argument(
            "--rerun", action="store_true", help="it may run twice: if its host does not answer, run it again on another one"
        )


def _command_options(parser: Parser, shell: str = "run the command with /bin/sh, so that pipes and redirects work") -> None:
    parser.add_argument("--cwd", metavar="DIR", help="working directory (default: the current directory)")
    parser.add_argument("--env", action="append", default=[], metavar="K=V", help="set an environment variable; can be repeated")
    parser.add_argument("--shell", action="store_true", help=shell)
    parser.add_argument("command", nargs="*", metavar="COMMAND ARG", help="the command, after `--`")


def _check(parser: Parser) -> None:
    parser.usage = "backburner check [OPTION]… [--] COMMAND ARG…"
    _command_options(parser, shell="check the command as a /bin/sh command line")


def _trust(parser: Parser) -> None:
    parser.add_argument("folder", nargs="?", metavar="DIR", help="a directory of the project (default: the current directory)")
    parser.add_argument(
        "--connect", type=_count, metavar="PORT", help="also permit sandboxed commands to connect to a port of this machine"
    )
    parser.add_argument("--list", action="store_true", help="list the permanent permissions")
    parser.add_argument("--revoke", type=_count, metavar="N", help="revoke permanent permission N")


def _setup(parser: Parser) -> None:
    parser.add_argument("parts", nargs="*", metavar="PART", help="agent, integrations, mcp, telemetry or tui")
    parser.add_argument("--all", action="store_true", help="all parts but telemetry")


def _audit(parser: Parser) -> None:
    parser.add_argument("--here", action="store_true", help="only the current project")
    parser.add_argument("--limit", type=_count, default=100, metavar="N", help="maximum number of entries, 0 for all (default: 100)")


def _list(parser: Parser) -> None:
    parser.add_argument(
        "status",
        nargs="?",
        metavar="STATUS",
        help="only tasks with this status: pending, running, completed, failed, cancelled, proposed …",
    )
    parser.add_argument("--all", action="store_true", help="include all projects")
    parser.add_argument("--batch", metavar="B", help="only tasks of this batch")
    parser.add_argument("--limit", type=_count, metavar="N", help="maximum number of tasks, 0 for all (default: 200)")


def _status(parser: Parser) -> None:
    _id_or_last(parser)
    parser.add_argument("--runs", type=_count, default=10, metavar="N", help="number of runs to show for a recurring task (default: 10)")


def _logs(parser: Parser) -> None:
    _id_or_last(parser)
    parser.add_argument("-f", "--follow", action="store_true", help="follow the output until the task ends")
    parser.add_argument("--tail", type=_count, metavar="N", help="only the last N lines")
    parser.add_argument("--since", metavar="CURSOR", help="only output after this cursor, as printed by `logs --json`; 0 for all output")
    parser.add_argument("--grep", metavar="REGEX", help="only lines that match REGEX")
    parser.add_argument("--run", type=_count, metavar="N", help="show the output of run N of a restarted task (default: the latest run)")
    parser.add_argument("--raw", action="store_true", help="print the log file unchanged, with its header and control codes")


def _approve(parser: Parser) -> None:
    _ids(parser)
    parser.add_argument(
        "--seen", metavar="FINGERPRINT", help="fingerprint that the approval prompt showed; fails if the command has changed since"
    )


def _apply(parser: Parser) -> None:
    _ids(parser, many=False)
    parser.add_argument("--diff", action="store_true", help="only show the changes")
    parser.add_argument("--seen", metavar="FINGERPRINT", help="fingerprint that --diff showed; fails if the changes are different now")


def _ids_or_batch(parser: Parser, default: str = " (default: last)") -> None:
    parser.add_argument("id", nargs="*", metavar="ID", help=f"{_ID_HELP}{default}")
    parser.add_argument("--batch", metavar="B", help="all tasks of this batch")


def _wait(parser: Parser) -> None:
    _ids_or_batch(parser)
    parser.add_argument("--ready", action="store_true", help="wait only until the tasks are ready (see `run --ready-when`)")
    parser.add_argument("--timeout", type=_seconds, metavar="S", help="stop waiting after S seconds and exit with code 124")


def _restart(parser: Parser) -> None:
    _ids(parser, many=False)
    _start_options(parser)


def _batch(parser: Parser) -> None:
    parser.add_argument("--all", action="store_true", help="include all projects")


def _send(parser: Parser) -> None:
    _ids(parser, many=False)
    parser.add_argument("text", nargs="?", metavar="TEXT", help="line to send; without it, stdin is sent unchanged")
    parser.add_argument("--eof", action="store_true", help="close the stdin of the command, after TEXT if it is given")


def _traces(parser: Parser) -> None:
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--span", metavar="SPAN", help="show the trace that contains this span")
    which.add_argument("--task", metavar="ID", help="show the trace of this task (default: the last task)")


def _chat(parser: Parser) -> None:
    parser.add_argument(
        "-m", "--message", metavar="TEXT", help="send one message, print the answer and exit; piped input is added to the message"
    )
    parser.add_argument("--agent", default="default", metavar="NAME", help="agent to use, from [agents.NAME] in config.toml")
    parser.add_argument("--resume", nargs="?", const="", metavar="CHAT", help="continue the last chat of this project, or CHAT")


def _top(parser: Parser) -> None:
    parser.add_argument("--all", action="store_true", help="include all projects")


def _clear(parser: Parser) -> None:
    _ids_or_batch(parser, default="")
    parser.add_argument("--ended", action="store_true", help="all ended tasks of this project")
    parser.add_argument("--all", action="store_true", help="with --ended: include all projects")
    parser.add_argument("--old", action="store_true", help="all tasks older than the retention period")


def _inbox(parser: Parser) -> None:
    parser.add_argument("--ack", action="store_true", help="acknowledge the notices that are shown")
    parser.add_argument("--read", action="store_true", help="also show acknowledged notices; the newest 200")
    parser.add_argument("--here", action="store_true", help="only the current project")
    parser.add_argument("-f", "--follow", action="store_true", help="show and acknowledge each new notice until Ctrl-C")
    parser.add_argument("--again", action="store_true", help="retry failed deliveries to channels")
    parser.add_argument(
        "--hook", choices=CLIENTS, metavar="CLIENT", help=f"answer a hook of a client with its new notices: {', '.join(CLIENTS)}"
    )


def _brief(parser: Parser) -> None:
    parser.add_argument("--all", action="store_true", help="include all projects")


def _events(parser: Parser) -> None:
    parser.add_argument("-f", "--follow", action="store_true", help="follow new events")
    parser.add_argument("--since", type=_event_number, metavar="N", help="only events after number N; -10 for the last ten")
    parser.add_argument(
        "--limit", type=_count, metavar="N", help="maximum number of events, 0 for all (default: 200; the last ones without --since)"
    )


def _config(parser: Parser) -> None:
    parser.add_argument("what", choices=["show"], help="show all settings with their values and origins")


def _doctor(parser: Parser) -> None:
    parser.add_argument(
        "--full", action="store_true", help="check the whole ledger and all folders, which may take minutes in a large home"
    )


def _backup(parser: Parser) -> None:
    parser.add_argument("file", metavar="FILE", help="file to write; an existing file is replaced once the new one is complete")
    parser.add_argument("--no-output", action="store_true", help="leave out the output and the work files of tasks")


def _restore(parser: Parser) -> None:
    parser.add_argument("file", metavar="FILE", help="file that `backburner backup` has written")


def _completion(parser: Parser) -> None:
    parser.add_argument("shell", choices=["bash", "zsh", "fish"])


def _mcp(parser: Parser) -> None:
    parser.add_argument(
        "--tools",
        metavar="SETS",
        help="offer only these tool sets: commands, agents, tasks, memory, inbox (default: all; agents only if an agent is available)",
    )
    parser.add_argument("--client", metavar="CLIENT", help="name of the client (default: the name that it sends)")


def _join(parser: Parser) -> None:
    parser.add_argument("url", metavar="URL", help="address of the ledger, such as postgresql://backburner@db.example.net/backburner")
    parser.add_argument("--name", metavar="NAME", help="name of this host (default: that of the machine)")


def _migrate(parser: Parser) -> None:
    parser.add_argument("url", nargs="?", default="", metavar="URL", help="address of the ledger (default: `url` under [store])")


def _worker(parser: Parser) -> None:
    parser.add_argument(
        "--lane",
        action="append",
        default=[],
        metavar="L",
        help="a label of the lanes to serve (default: `lanes` under [worker]); can be repeated",
    )
    parser.add_argument("--capacity", type=_count, metavar="N", help="how many of their commands run at the same time (default: 5)")
    parser.add_argument("--drain", action="store_true", help="let the worker that is running here finish, and take nothing else")


def _hosts(parser: Parser) -> None:
    parser.add_argument(
        "what",
        nargs="?",
        choices=["forget", "drain"],
        help="forget: the runs of a host that does not answer are lost; drain: it takes no more",
    )
    parser.add_argument("name", nargs="?", metavar="NAME", help="the host")


def _serve(parser: Parser) -> None:
    parser.add_argument("--http", metavar="PORT", help="also serve the web interface, its API and MCP over HTTP on this port of 127.0.0.1")


def _web(parser: Parser) -> None:
    parser.add_argument("--port", type=int, metavar="PORT", help="port of 127.0.0.1 (default: a fixed one of this home)")
    parser.add_argument("--no-open", action="store_true", help="do not open the page in a browser")


def _devices(parser: Parser) -> None:
    parser.add_argument("what", nargs="?", choices=["revoke"], help="revoke: a page can no longer be used, nor its passkeys")
    parser.add_argument("device", nargs="?", metavar="DEVICE", help="device to revoke")


def _install(parser: Parser) -> None:
    parser.add_argument("client", choices=CLIENTS, metavar="CLIENT", help=f"client to configure: {', '.join(CLIENTS)}")
    parser.add_argument("--undo", action="store_true", help="remove Backburner from the client's configuration")
    parser.add_argument("--yes", action="store_true", help="change the files without confirmation")


def _no_arguments(_: Parser) -> None:
    return


def _ask(parser: Parser) -> None:
    parser.add_argument("prompt", nargs="?", metavar="PROMPT", help="the prompt; - reads it from stdin")
    parser.add_argument(
        "--agent", default="default", metavar="NAME", help="agent to use (default: the agent named default); see `backburner agents`"
    )
    parser.add_argument("--name", metavar="LABEL", help="a label; it is part of the task ID and accepted in place of it")
    parser.add_argument("--description", metavar="TEXT", help="description shown in lists and notices")
    parser.add_argument("--cwd", metavar="DIR", help="working directory (default: the current directory)")
    parser.add_argument("--batch", metavar="B", help="add the task to a batch; `wait`, `cancel` and `clear` accept a batch")
    parser.add_argument("--after", action="append", default=[], metavar="ID", help="start after this task has completed; can be repeated")
    parser.add_argument("--key", metavar="KEY", help="idempotency key: a second call with the same key returns the existing task")
    parser.add_argument("--timeout", metavar="DURATION", help="stop the task after this time, for example 5m")
    parser.add_argument(
        "--budget",
        action="append",
        default=[],
        metavar="K=N",
        help="limit of tokens, tool_calls, cost or seconds, after which the run waits for approval; can be repeated",
    )
    parser.add_argument("--worktree", action="store_true", help="run in a separate git worktree; the result is a branch and a diff")
    _place_options(parser)
    _wait_for_answer(parser)


def _add(parser: Parser, yes: str = "approve without prompting; does not override deny rules") -> None:
    from backburner.core.models import NOTIFY  # slow to import, and other commands do not need it

    schedule_usage, work_usage = (
        "(--every 30m | --cron '0 9 * * 1-5' | --at TIME | --in DURATION | --after ID | --on SOURCE)",
        "(--prompt TEXT | -- COMMAND ARG…)",
    )
    parser.usage = f"{parser.prog} NAME {schedule_usage} {work_usage} [OPTION]…"
    parser.add_argument("name", metavar="NAME", help="name of the task; accepted in place of its ID")
    schedule = parser.add_argument_group("schedule")
    kind = schedule.add_mutually_exclusive_group()
    kind.add_argument("--every", metavar="INTERVAL", help="run at this interval, starting now: 30s, 5m, 1h30m, 1d or 1w")
    kind.add_argument("--cron", metavar="EXPR", help="cron expression with five fields, or @hourly, @daily, @weekly, @monthly, @yearly")
    kind.add_argument(
        "--at", metavar="TIME", help="run once at this time: 18:30, tomorrow 9am, 2026-02-09 18:30, or with a zone 2026-02-09T18:30:00Z"
    )
    kind.add_argument("--in", dest="in_", metavar="DURATION", help="run once after this delay, for example 10m or 1h30m")
    kind.add_argument("--after", metavar="ID", help="run each time this task completes; the run receives the result of that task")
    kind.add_argument(
        "--on",
        metavar="SOURCE",
        help="run on events of this source: file:PATH, command:'…', github:OWNER/REPO, webhook:NAME (see docs/channels.md)",
    )
    schedule.add_argument("--with", dest="with_", action="append", default=[], metavar="K=V", help="option of the source; can be repeated")
    schedule.add_argument("--tz", metavar="ZONE", help="time zone of --cron, for example Europe/Berlin (default: the zone of this machine)")
    schedule.add_argument("--until", metavar="TIME", help="do not run after this time")
    schedule.add_argument("--max-runs", type=_count, metavar="N", help="maximum number of runs")
    schedule.add_argument(
        "--missed", choices=MISSED, default="run_once", help="what to do with runs missed while the engine was off (default: run_once)"
    )
    schedule.add_argument("--window", metavar="DURATION", help="with --missed run_all: maximum age of a missed run (default: 1d)")
    schedule.add_argument("--jitter", metavar="DURATION", help="maximum random delay of each start, for example 30s")
    work = parser.add_argument_group("command or prompt")
    work.add_argument(
        "--prompt",
        metavar="TEXT",
        help="prompt for an agent; if a command is also given, it runs first and decides whether the agent runs; - reads stdin",
    )
    work.add_argument("--agent", default="default", metavar="NAME", help="agent to use (default: the agent named default)")
    work.add_argument(
        "--wake",
        choices=WAKES,
        help="when the agent runs: if the command's output changed, if it succeeded, or if it printed output (default: change)",
    )
    work.add_argument(
        "--field", action="append", default=[], metavar="NAME", help="field of the agent's result to compare for on_change; can be repeated"
    )
    work.add_argument("--recall", action="append", default=[], metavar="KEY", help="add this memory entry to the prompt; can be repeated")
    work.add_argument("--last-result", action="store_true", help="add the previous result to the prompt")
    work.add_argument(
        "--tools", metavar="SETS", help="tools of the agent: read, files, commands, memory, background (default: read,commands,memory)"
    )
    _command_options(parser)
    _place_options(parser, rerun=True)
    limits = parser.add_argument_group("notices and limits")
    limits.add_argument("--description", metavar="TEXT", help="description shown in lists and notices")
    limits.add_argument("--notify", choices=NOTIFY, default="on_change", help="when to create a notice (default: on_change)")
    limits.add_argument(
        "--to",
        action="append",
        default=[],
        metavar="CHANNEL",
        help="channel of config.toml that receives the notices, instead of [notify] to; can be repeated",
    )
    limits.add_argument("--timeout", metavar="DURATION", help="stop a run after this time (default: 5m)")
    limits.add_argument(
        "--budget",
        action="append",
        default=[],
        metavar="K=N",
        help="limit of tokens, tool_calls, cost or seconds, after which the run waits for approval; can be repeated",
    )
    limits.add_argument(
        "--per-day",
        action="append",
        default=[],
        metavar="K=N",
        help="daily limit of tokens, cost, runs or seconds, after which the task is paused; can be repeated",
    )
    limits.add_argument("--dry-run", action="store_true", help="show the next five runs and whether approval is needed, and add nothing")
    limits.add_argument("--yes", action="store_true", help=yes)


def _propose(parser: Parser) -> None:
    _add(parser, yes="no effect: a proposal always waits for approval")


def _edit(parser: Parser) -> None:
    from backburner.core.models import NOTIFY  # slow to import, and other commands do not need it

    parser.usage = f"{parser.prog} ID [OPTION]… [-- COMMAND ARG…]"
    _ids(parser, many=False)
    schedule = parser.add_argument_group("schedule")
    kind = schedule.add_mutually_exclusive_group()
    kind.add_argument("--every", metavar="INTERVAL", help="run at this interval, starting now")
    kind.add_argument("--cron", metavar="EXPR", help="run at the times of this cron expression")
    kind.add_argument("--at", metavar="TIME", help="run once at this time")
    kind.add_argument("--in", dest="in_", metavar="DURATION", help="run once after this delay")
    schedule.add_argument("--tz", metavar="ZONE", help="time zone of --cron")
    schedule.add_argument("--until", metavar="TIME", help="do not run after this time")
    schedule.add_argument("--max-runs", type=_count, metavar="N", help="maximum number of runs")
    schedule.add_argument("--missed", choices=MISSED, help="what to do with runs missed while the engine was off")
    schedule.add_argument("--window", metavar="DURATION", help="with --missed run_all: maximum age of a missed run")
    schedule.add_argument("--jitter", metavar="DURATION", help="maximum random delay of each start")
    work = parser.add_argument_group("command or prompt")
    work.add_argument("--prompt", metavar="TEXT", help="new prompt for its agent; - reads stdin")
    work.add_argument("--shell", action="store_true", help="run the new command with /bin/sh, so that pipes and redirects work")
    work.add_argument("command", nargs="*", metavar="COMMAND ARG", help="the new command, after `--`")
    limits = parser.add_argument_group("notices and limits")
    limits.add_argument("--description", metavar="TEXT", help="description shown in lists and notices")
    limits.add_argument("--notify", choices=NOTIFY, help="when to create a notice")
    limits.add_argument("--to", action="append", default=[], metavar="CHANNEL", help="channel that receives the notices; can be repeated")
    limits.add_argument("--timeout", metavar="DURATION", help="stop a run after this time")
    limits.add_argument("--yes", action="store_true", help="approve the new command without prompting; does not override deny rules")


def _run_now(parser: Parser) -> None:
    _ids(parser, many=False)
    parser.add_argument("--wait", action="store_true", help="wait until the run ends and print its output")


def _compact(parser: Parser) -> None:
    _ids(parser, optional=True)
    parser.add_argument("--days", type=_seconds, metavar="N", help="delete runs older than N days (default: the retention period, 7)")


def _service(parser: Parser) -> None:
    parser.add_argument("what", choices=["install", "uninstall", "status"], help="manage a systemd user service that runs the engine")
    parser.add_argument("--yes", action="store_true", help="change the files without confirmation")


def _wait_for_answer(parser: Parser) -> None:
    parser.add_argument(
        "--wait",
        nargs="?",
        const=True,
        metavar="SECONDS",
        help="wait for the answer and print it; with SECONDS, stop waiting after this time and exit with code 124",
    )


def _resume(parser: Parser) -> None:
    _ids(parser, many=False)
    parser.add_argument("message", nargs="?", metavar="MESSAGE", help="message for the agent; - reads it from stdin")
    _wait_for_answer(parser)


def _agents(parser: Parser) -> None:
    parser.add_argument("--check", action="store_true", help="send each agent a test prompt")


def _sessions(parser: Parser) -> None:
    parser.add_argument("what", nargs="?", choices=["end"], help="end: cancel and delete the tasks of a session")
    parser.add_argument("session", nargs="?", metavar="SESSION", help="session to end")


VERBS: dict[str, tuple[str, Callable[[Parser], None]]] = {
    "run": ("Start a command in the background and print its task ID.", _run),
    "list": ("List the tasks of this project.", _list),
    "status": ("Show the details of a task.", _status),
    "logs": ("Print the output of a task.", _logs),
    "wait": ("Wait for tasks to end; exit 1 if one did not complete.", _wait),
    "cancel": ("Cancel tasks and wait until all their processes have exited.", _ids_or_batch),
    "restart": ("Start the command of a task again, as a new task.", _restart),
    "send": ("Send text to the stdin of a running command.", _send),
    "batch": ("List batches and the status of their tasks.", _batch),
    "top": ("Show a live view of all tasks.", _top),
    "clear": ("Delete finished tasks and their output.", _clear),
    "ask": ("Start an agent task in the background and print its ID.", _ask),
    "resume": ("Send another message to a finished agent task.", _resume),
    "chat": ("Chat with an agent while tasks run in the background.", _chat),
    "agents": ("List the available agents.", _agents),
    "sessions": ("List the sessions that started tasks, or end one.", _sessions),
    "install": ("Set up Backburner in an agent's client.", _install),
    "mcp": ("Run an MCP server.", _mcp),
    "add": ("Add a recurring task: a command or a prompt with a schedule.", _add),
    "propose": ("Propose a recurring task for a person to approve.", _propose),
    "edit": ("Change the schedule, command or notices of a recurring task.", _edit),
    "pause": ("Pause a recurring task.", _ids),
    "unpause": ("Continue a paused recurring task.", _ids),
    "run-now": ("Run a recurring task now, once.", _run_now),
    "compact": ("Delete old runs of recurring tasks.", _compact),
    "approve": ("Approve waiting tasks; on a terminal, each is shown first.", _approve),
    "reject": ("Reject waiting tasks.", _reject),
    "apply": ("Apply what a sandboxed command changed in its copy of the project.", _apply),
    "check": ("Show whether a command would run, and where, without running it.", _check),
    "trust": ("Trust a project: sandboxed commands may change its files.", _trust),
    "audit": ("Show approvals and the rules that were applied.", _audit),
    "inbox": ("Show notices about finished tasks.", _inbox),
    "brief": ("Print a short summary of open work, for an agent's context.", _brief),
    "web": ("Serve the web interface, and pair browsers with it.", _web),
    "devices": ("List the browsers that are paired with `web`, or revoke one.", _devices),
    "serve": ("Run the engine in the foreground.", _serve),
    "service": ("Manage a systemd service that runs the engine.", _service),
    "setup": ("Install the packages of optional parts (in a clone).", _setup),
    "doctor": ("Check the setup and suggest fixes.", _doctor),
    "config": ("Show the settings.", _config),
    "events": ("Show the event log.", _events),
    "traces": ("Show a trace as a tree of spans with their durations.", _traces),
    "join": ("Share a ledger on Postgres with other hosts.", _join),
    "worker": ("Run the engine in the foreground, and tasks of other hosts.", _worker),
    "hosts": ("List the hosts that share the ledger, or give one up.", _hosts),
    "migrate": ("Create or upgrade the tables of a ledger on Postgres.", _migrate),
    "backup": ("Write a backup of the home to a file.", _backup),
    "restore": ("Replace the home by a backup; the previous home is kept.", _restore),
    "export": ("Print all tasks, runs, notices, memory entries and events as JSON.", _no_arguments),
    "completion": ("Print a shell completion script.", _completion),
}
