"""The lines of the result table: what is measured, how the figure of a round is calculated, and its limit."""

import statistics
from collections.abc import Callable
from typing import NamedTuple

from bench import (
    agents,
    chat,
    first,
    gate,
    history,
    hosts,
    latency,
    ledger,
    mcp,
    memory,
    million,
    opencode,
    output,
    queue,
    recovery,
    sandbox,
    schedules,
    startup,
    throughput,
    web,
)
from bench.home import MEMORY
from bench.rounds import Figures


class Line(NamedTuple):
    """A line of the table. `limit` is None for figures without a limit; `is_minimum` means that higher is better."""

    group: str
    what: str
    against: str
    figure: Callable[[Figures], float]
    unit: str = "×"
    limit: float | None = None
    is_minimum: bool = False


class Result(NamedTuple):
    """The median of all rounds and their quartiles. `figure` is None if a tool that it needs is not installed."""

    line: Line
    figure: float | None
    low: float = 0
    high: float = 0
    rounds: int = 0

    @property
    def met(self) -> bool | None:
        if self.figure is None or self.line.limit is None:
            return None
        return self.figure >= self.line.limit if self.line.is_minimum else self.figure <= self.line.limit


GROUPS: dict[str, Callable[[bool], list[Figures]]] = {
    "noop-disk": lambda quick: throughput.measure(2 if quick else 9, None),
    "noop-memory": lambda quick: throughput.measure(2 if quick else 9, MEMORY),
    "latency-disk": lambda quick: latency.measure(10 if quick else 100, None),
    "latency-memory": lambda quick: latency.measure(10 if quick else 100, MEMORY),
    "first": lambda quick: first.measure(1 if quick else 3),
    "startup": lambda quick: startup.measure(5 if quick else 40),
    "ledger": lambda quick: ledger.measure(2 if quick else 9),
    "output": lambda quick: output.measure(1 if quick else 5),
    "memory": lambda quick: memory.measure(1 if quick else 3, 5 if quick else 20),
    "queue": lambda quick: queue.measure(2 if quick else 9, 2_000 if quick else 10_000),
    "cancel": lambda quick: queue.measure_cancel(1 if quick else 3),
    "history": lambda quick: history.measure(3 if quick else 20),
    "million": lambda quick: million.measure(1 if quick else 5, million.SMALL_SIZE if quick else million.SIZE),
    "recovery": lambda quick: recovery.measure(1 if quick else 5),
    "mcp": lambda quick: mcp.measure(3 if quick else 15, 50 if quick else 200),
    "agents": lambda quick: agents.measure(1 if quick else 5),
    "opencode": lambda quick: opencode.measure(1 if quick else 5),
    "chat": lambda quick: chat.measure(3 if quick else 20),
    "sandbox": lambda quick: sandbox.measure(2 if quick else 10),
    "gate": lambda quick: gate.measure(2 if quick else 10),
    "schedules": lambda quick: schedules.measure(1 if quick else 5),
    "web": lambda quick: web.measure(1 if quick else 3),
    "hosts": lambda quick: hosts.measure(1 if quick else 5, 5 if quick else 30),
}


def _ratio(numerator: str, denominator: str) -> Callable[[Figures], float]:
    return lambda round: round[numerator] / round[denominator]


def _noops(group: str, where: str, limit: float) -> list[Line]:
    """The throughput ratio is the time of the other tool divided by the time of Backburner."""
    what = f"300 no-ops, 5 at a time, {where}: throughput"
    return [
        Line(group, f"{what}, TaskRunner", "task-spooler, 5 slots", _ratio("task-spooler", "backburner"), limit=limit, is_minimum=True),
        Line(group, f"{what}, engine", "task-spooler, 5 slots", _ratio("task-spooler", "engine"), limit=limit, is_minimum=True),
        Line(group, what, "nq, one at a time", _ratio("nq", "backburner")),
        Line(group, what, "a bare Popen loop", _ratio("bare loop", "backburner")),
        Line(
            group,
            what,
            "a loop with the same files, syncs and processes",
            _ratio("loop", "backburner"),
            limit=0.6 if group == "noop-disk" else None,
            is_minimum=True,
        ),
        Line(group, what, "the same loop without a shell for each command", _ratio("loop without shells", "backburner")),
        Line(group, f"300 no-ops, {where}: disk syncs per command", "", lambda round: round["syncs per command"], ""),
    ]


_OTHER_HOST = "Procrastinate alone, the same command"

LINES: list[Line] = [
    *_noops("noop-disk", "home on disk", 0.45),
    *_noops("noop-memory", "home in memory", 0.65),
    *(
        line
        for group, where in (("latency-disk", "home on disk"), ("latency-memory", "home in memory"))
        for line in (
            Line(group, f"submit until the command starts, {where}", "task-spooler", _ratio("backburner", "task-spooler"), limit=1.5),
            Line(group, f"submit until the command starts, {where}", "", lambda round: round["backburner"], "ms"),
        )
    ),
    Line("first", "first command in a fresh clone: CPU", "pip install of three packages", _ratio("backburner", "pip"), limit=1.5),
    Line("first", "first command in a fresh clone: size of .venv", "", lambda round: round["MB"], "MB", 30),
    Line("startup", "backburner list, engine warm", startup.BARE, _ratio("list", startup.BARE), limit=2.2),
    Line("startup", "backburner status, engine warm", startup.BARE, _ratio("status", startup.BARE), limit=2.2),
    Line("startup", "backburner inbox --hook claude, nothing waits", startup.BARE, _ratio("inbox --hook", startup.BARE), limit=2.2),
    Line("startup", "backburner run -- true, engine warm", startup.BARE, _ratio("run", startup.BARE), limit=4),
    Line("startup", "the hook after a tool call, nothing waits", "sh -c :", _ratio("quiet hook", "sh"), limit=2),
    Line(
        "ledger",
        "submit, claim and result in the ledger: throughput",
        "huey, fsync on",
        _ratio("huey", "backburner"),
        limit=1.5,
        is_minimum=True,
    ),
    Line("ledger", "the same, with five results per commit", "huey, fsync on", _ratio("huey", "backburner, five results per commit")),
    Line("output", "1 GB of output in 64 KB writes: time", "a plain file", _ratio("backburner", "plain file"), limit=3.5),
    Line("output", "1 GB of output in 64 KB writes: Backburner", "", lambda round: round["backburner"], "s"),
    Line("output", "1 GB of output in 64 KB writes: a plain file", "", lambda round: round["plain file"], "s"),
    Line("output", "1 GB of output in 64 KB writes: time", "a pipe and cat", _ratio("backburner", "pipe")),
    Line("output", "the same through a pipe and cat: time", "a plain file", _ratio("pipe", "plain file")),
    Line("output", "1 GB of lines of text: time", "a plain file", _ratio("backburner, lines", "plain file, lines")),
    Line("output", "CPU per GB of output, engine", "", lambda round: round["engine CPU"] * 1000, "ms"),
    Line("output", "CPU per GB of output, log writer and shim", "", lambda round: round["log writer CPU"] * 1000, "ms"),
    Line("memory", "idle engine and its supervisor: memory", "", lambda round: round["idle MB"], "MB", 40),
    Line("memory", "idle engine: CPU of one core", "", lambda round: round["idle CPU %"], "%", 0.1),
    Line("memory", "Backburner's memory per running command, 50 running", "", lambda round: round["MB per command"], "MB", 2),
    Line("queue", "engine CPU per command, 10,000 tasks due tomorrow", "no queue", _ratio("due tomorrow", "no queue"), limit=1.5),
    Line("queue", "engine CPU per command, 10,000 blocked tasks", "no queue", _ratio("waiting for another task", "no queue"), limit=1.5),
    Line("queue", "engine CPU per command, no queue", "", lambda round: round["no queue"], "ms"),
    Line("cancel", "cancelling 500 running commands", "", lambda round: round["seconds"], "s", 5),
    Line("cancel", "cancelling 500 running commands: engine CPU", "", lambda round: round["engine CPU"], "s", 3),
    Line("history", "list with 100,000 ended tasks", "one task", _ratio("list 100,000", "list one"), limit=2),
    Line("history", "list with 100,000 ended tasks", "200 tasks (the same number of lines)", _ratio("list 100,000", "list 200")),
    Line("history", "status with 100,000 ended tasks", "one task", _ratio("status 100,000", "status one"), limit=2),
    Line("history", "status with a partial id, 100,000", "one task", _ratio("status by partial id 100,000", "status by partial id one")),
    Line("history", "claim with 100,000 ended tasks", "one task", _ratio("claim 100,000", "claim one"), limit=2),
    Line("history", "run --wait with 100,000 ended tasks", "one task", _ratio("run --wait 100,000", "run --wait one")),
    *(
        Line("million", f"{verb}: a million ended tasks", million.EMPTY, _ratio(f"{verb}, {million.LARGE}", f"{verb}, {million.EMPTY}"))
        for verb in million.VERBS
    ),
    Line("million", "doctor with a million ended tasks", "", lambda round: round[f"doctor, {million.LARGE}"] / 1000, "s", 5),
    Line("recovery", "recovery after the engine is killed, 50 commands running", "", lambda round: round["backburner"], "s", 2),
    Line("chat", "backburner chat: time to prompt", "import prompt_toolkit", _ratio("chat", "import prompt_toolkit"), limit=2),
    Line("chat", "backburner chat: time to prompt", "", lambda round: round["chat"], "ms"),
    Line(
        "mcp",
        "backburner mcp: time to initialize response",
        "python -IS -c pass",
        _ratio("backburner initialize", "python -IS -c pass"),
        limit=5,
    ),
    Line("mcp", "backburner mcp: time to initialize response", "an empty server", _ratio("backburner initialize", "empty initialize")),
    Line("mcp", "backburner mcp: memory after ten calls", "", lambda round: round["MB"], "MB", 30),
    Line("mcp", "all tools, as listed", "", lambda round: round["all tools"], "bytes", 12_000),
    Line("mcp", "the tools for commands, as listed", "", lambda round: round["command tools"], "bytes", 4_500),
    Line("mcp", "check_task_status over MCP, p95", "an empty tool", _ratio("backburner call p95", "empty call p95"), limit=2),
    Line("mcp", "check_task_status over MCP, median", "an empty tool", _ratio("backburner call", "empty call")),
    Line("mcp", "check_task_status over MCP, median", "", lambda round: round["backburner call"], "ms"),
    Line("agents", "last byte of the model to the notice, median", "", lambda round: round["last byte to notice"], "ms", 20),
    Line("agents", "background_task returns, median", "", lambda round: round["background_task"], "ms", 10),
    Line("agents", "agent process with one session: RSS", "", lambda round: round["RSS MB"], "MB", 90),
    Line("agents", "memory per session, 50 at once", "", lambda round: round["MB per session"], "MB", 2),
    Line("agents", "growth of the agent process per task", "", lambda round: round["KB per task"], "KB", 20),
    Line("agents", "CPU per turn, 50 at once", "", lambda round: round["CPU ms per turn"], "ms"),
    Line("opencode", "OpenCode's session.idle to the notice, median", "", lambda round: round["idle to notice"], "ms", 50),
    Line("opencode", "the same, 20 sessions at once", "", lambda round: round["idle to notice, 20 at once"], "ms", 50),
    Line("opencode", "20 sessions at once, with a tool call each", "", lambda round: round["seconds"], "s"),
    Line("agents", "background_block on 20: delay after the last task ended", "", lambda round: round["block wakes"], "ms", 20),
    Line("sandbox", "CPU of a start in a full sandbox, above a plain one", "", lambda round: round["full"] - round["plain"], "ms", 2),
    Line(
        "sandbox", "CPU of a start in a partial sandbox, above a plain one", "", lambda round: round["partial"] - round["plain"], "ms", 0.5
    ),
    Line("sandbox", "CPU of a plain start", "", lambda round: round["plain"], "ms"),
    Line(
        "sandbox", "CPU of bubblewrap with one mount, above the command alone", "", lambda round: round["bubblewrap"] - round["true"], "ms"
    ),
    Line(
        "sandbox",
        "CPU of a start in a full sandbox, above a plain one",
        "bubblewrap with one mount",
        lambda round: (round["full"] - round["plain"]) / (round["bubblewrap"] - round["true"]),
    ),
    Line("gate", "approval decision, slowest of the common commands", "", lambda round: max(round.values()), "ms", 1),
    Line("schedules", "scheduler tick, none of 10,000 due", "10 schedules", _ratio("nothing 10,000", "nothing 10"), limit=10),
    Line("schedules", "scheduler tick, none of 10,000 due", "", lambda round: round["nothing 10,000"], "ms"),
    Line("schedules", "scheduler tick that starts one of 10,000", "one of 10", _ratio("one 10,000", "one 10")),
    Line("schedules", "scheduler tick that starts one of 10,000", "", lambda round: round["one 10,000"], "ms"),
    Line("schedules", "scheduler tick that starts one of 10", "", lambda round: round["one 10"], "ms"),
    Line("schedules", "first tick after a start, 10,000 schedules", "", lambda round: round["first 10,000"], "ms"),
    Line("schedules", "engine with 10 schedules: memory", "", lambda round: round["MB 10"], "MB"),
    Line("schedules", "engine with 10,000 schedules: memory", "", lambda round: round["MB 10,000"], "MB"),
    *(
        Line("web", what, "", lambda round, name=name: round[name], unit, limit)
        for what, name, unit, limit in (
            ("backburner web until it answers", "server start", "ms", 250),
            ("first paint of the board, 10,000 tasks", "paint", "ms", 200),
            ("first rows of the board, 10,000 tasks", "rows", "ms", None),
            ("backburner web until the page is painted", "start and paint", "ms", 700),
            ("requests until the first paint", "requests", "", 4),
            ("scripts of the first view", "JS", "kB", 90),
            ("scripts of the first view, compressed", "JS, gzip", "kB", 30),
            ("scripts of all views", "JS, all", "kB", None),
            ("styles of the first view", "CSS", "kB", 24),
            ("styles of the first view, compressed", "CSS, gzip", "kB", 6),
            ("styles of all views", "CSS, all", "kB", None),
            ("board, 10,000 tasks: time of the server", "board", "ms", None),
            ("filter of 10,000 tasks: time of the server", "filter, server", "ms", None),
            ("filter of 10,000 tasks until it is painted", "filter", "ms", 100),
            ("scrolling through 10,000 tasks: frame, 95th percentile", "frame p95", "ms", 32),
            ("task submitted until painted, 50 live runs: median", "event p50", "ms", 40),
            ("task submitted until painted, 50 live runs: worst of 20", "event p99", "ms", 150),
            ("line written until painted: median", "line p50", "ms", 80),
            ("5,000 lines per second: worst delay", "flood worst", "ms", 1000),
            ("log of 100,000 lines: its end", "tail", "ms", 200),
            ("log of 100,000 lines: jump to a line", "jump", "ms", 100),
            ("log of 100,000 lines: find 25,000 matches", "find all", "ms", 400),
            ("memory of the page: board", "heap", "MB", 60),
            ("memory of the page: log of 100,000 lines", "heap, log", "MB", 60),
            ("memory of the web process", "RSS", "MB", 45),
            ("memory of the web process for each client", "RSS per client", "MB", 1),
            ("idle web process: wake-ups per second", "wake-ups", "", 0.2),
            ("nine more tabs until all are live", "ten tabs", "ms", None),
        )
    ),
    *(
        Line("web", f"engine, 1,000 no-ops with {watcher}: {kind}", "without", lambda round, name=name: round[name], limit=limit)
        for watcher, who in (("the board in a browser", "page"), ("one client of the stream", "stream"))
        for kind, name, limit in (("time", f"engine, {who} time", 1.02), ("CPU time of all processes", f"engine, {who} CPU", None))
    ),
    Line("hosts", "submit until the command starts on another host, idle (or at most 4 ×)", "", lambda round: round["start"], "ms", 40),
    Line("hosts", "submit until the command starts on another host, idle", _OTHER_HOST, _ratio("start", "peer start")),
    Line(
        "hosts",
        "300 no-ops over three hosts (or at least 0.5 ×)",
        "",
        lambda round: 300 / round["300 no-ops"],
        "runs/s",
        60,
        is_minimum=True,
    ),
    Line("hosts", "300 no-ops over three hosts: throughput", _OTHER_HOST, _ratio("peer 300 no-ops", "300 no-ops")),
    Line(
        "hosts", "300 no-ops over three hosts: throughput", "Procrastinate alone, empty jobs", _ratio("peer 300 empty jobs", "300 no-ops")
    ),
    Line("hosts", "cancel from another host until the process is dead", "", lambda round: round["cancel"], "ms", 60),
    Line("hosts", "dead host noticed by another", "", lambda round: round["dead host"], "s", 10),
    Line("hosts", "a line until logs -f on another host shows it", "", lambda round: round["line"], "ms", 30),
    Line("hosts", "logs of another host", "", lambda round: round["logs"], "MiB/s", 20, is_minimum=True),
    Line("hosts", "idle worker: CPU of one core", "", lambda round: round["idle CPU %"], "%", 0.2),
    Line("hosts", "idle worker: memory", "", lambda round: round["idle MB"], "MB", 60),
    Line("hosts", "idle worker: connections", "", lambda round: round["connections"], "", 4),
]


def results(group: str, rounds: list[Figures]) -> list[Result]:
    """Return the results of the lines of a group."""
    return [_result(line, rounds) for line in LINES if line.group == group]


def _result(line: Line, rounds: list[Figures]) -> Result:
    try:
        figures = [line.figure(round) for round in rounds]
    except KeyError:
        return Result(line, None)
    if not figures:
        return Result(line, None)
    low, middle, high = statistics.quantiles(figures, n=4, method="inclusive") if len(figures) > 1 else figures * 3
    return Result(line, middle, low, high, len(figures))
