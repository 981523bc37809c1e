"""The lines of the table: what is measured, how a round becomes one figure, and what it must reach."""

import statistics
from collections.abc import Callable
from typing import NamedTuple

from bench import agents, chat, gate, history, latency, ledger, mcp, memory, opencode, output, recovery, schedules, startup, throughput
from bench.place import MEMORY
from bench.turns import Figures


class Line(NamedTuple):
    """`limit` is None where a figure is only stated; `least` says that more is better."""

    group: str
    what: str
    against: str
    figure: Callable[[Figures], float]
    unit: str = "×"
    limit: float | None = None
    least: bool = False


class Result(NamedTuple):
    """The median over the rounds, and the middle half of them; `figure` is None where a peer was missing."""

    line: Line
    figure: float | None
    low: float = 0
    high: float = 0
    rounds: int = 0

    @property
    def met(self) -> bool | None:
        if self.figure is None or self.line.limit is None:
            return None
        return self.figure >= self.line.limit if self.line.least else self.figure <= self.line.limit


GROUPS: dict[str, Callable[[bool], list[Figures]]] = {
    "noop-disk": lambda quick: throughput.measure(2 if quick else 9, None),
    "noop-memory": lambda quick: throughput.measure(2 if quick else 9, MEMORY),
    "latency": lambda quick: latency.measure(10 if quick else 100),
    "startup": lambda quick: startup.measure(5 if quick else 40),
    "ledger": lambda quick: ledger.measure(2 if quick else 9),
    "output": lambda quick: output.measure(1 if quick else 5),
    "memory": lambda quick: memory.measure(1 if quick else 3, 5 if quick else 20),
    "history": lambda quick: history.measure(3 if quick else 20),
    "recovery": lambda quick: recovery.measure(1 if quick else 5),
    "mcp": lambda quick: mcp.measure(3 if quick else 15, 50 if quick else 200),
    "agents": lambda quick: agents.measure(1 if quick else 5),
    "opencode": lambda quick: opencode.measure(1 if quick else 5),
    "chat": lambda quick: chat.measure(3 if quick else 20),
    "gate": lambda quick: gate.measure(2 if quick else 10),
    "schedules": lambda quick: schedules.measure(1 if quick else 5),
}


def _share(ours: str, theirs: str) -> Callable[[Figures], float]:
    return lambda round: round[ours] / round[theirs]


def _noops(group: str, where: str, limit: float) -> list[Line]:
    """Throughput is what theirs took over what ours took."""
    what = f"300 no-ops, 5 at a time, {where}: throughput"
    return [
        Line(group, what, "task-spooler, 5 slots", _share("task-spooler", "ours"), limit=limit, least=True),
        Line(group, what, "nq, one at a time", _share("nq", "ours")),
        Line(group, what, "a bare Popen loop", _share("bare loop", "ours")),
        Line(group, what, "a loop with the same files and syncs", _share("loop with files", "ours")),
        Line(group, f"300 no-ops, {where}: waits for the disk per command", "", lambda round: round["syncs per command"], ""),
    ]


LINES: list[Line] = [
    *_noops("noop-disk", "home on disk", 0.5),
    *_noops("noop-memory", "home in memory", 0.7),
    Line("latency", "submit to the command's first act, warm", "task-spooler", _share("ours", "task-spooler"), limit=1.5),
    Line("latency", "submit to the command's first act, warm", "", lambda round: round["ours"], "ms"),
    Line("startup", "backburner list, engine warm", "python -c pass", _share("list", "python -c pass"), limit=4),
    Line("startup", "backburner status, engine warm", "python -c pass", _share("status", "python -c pass"), limit=4),
    Line("startup", "backburner run, engine warm", "python -c pass", _share("run", "python -c pass"), limit=5),
    Line("ledger", "submit + claim + end in the ledger: throughput", "huey, fsync on", _share("huey", "ours"), limit=2, least=True),
    Line("ledger", "the same with five at work, so that ends come together", "huey, fsync on", _share("huey", "ours, five at a time")),
    Line("output", "1 GB of output in 64 KB writes: time", "a plain file", _share("ours", "plain file")),
    Line("output", "1 GB of output in 64 KB writes: ours", "", lambda round: round["ours"], "s"),
    Line("output", "1 GB of output in 64 KB writes: a plain file", "", lambda round: round["plain file"], "s"),
    Line("output", "CPU per GB of output, engine", "", lambda round: round["engine CPU"] * 1000, "ms"),
    Line("output", "CPU per GB of output, shim and cat", "", lambda round: round["carrier CPU"] * 1000, "ms"),
    Line("memory", "idle engine and its keeper: memory", "", lambda round: round["idle MB"], "MB", 40),
    Line("memory", "idle engine: CPU of one core", "", lambda round: round["idle CPU %"], "%", 0.1),
    Line("memory", "our memory per running command, 50 at work", "", lambda round: round["MB per command"], "MB", 2),
    Line("history", "list with 100,000 ended tasks", "one task", _share("list 100,000", "list one"), limit=2),
    Line("history", "list with 100,000 ended tasks", "200 tasks, as many lines shown", _share("list 100,000", "list 200")),
    Line("history", "status with 100,000 ended tasks", "one task", _share("status 100,000", "status one"), limit=2),
    Line("history", "status by a part of the id, 100,000", "one task", _share("status by a part 100,000", "status by a part one")),
    Line("history", "claim with 100,000 ended tasks", "one task", _share("claim 100,000", "claim one"), limit=2),
    Line("history", "run --wait with 100,000 ended tasks", "one task", _share("run to its end 100,000", "run to its end one")),
    Line("recovery", "engine killed, 50 at work: until all are known", "", lambda round: round["ours"], "s", 2),
    Line("chat", "backburner chat: until its prompt", "import prompt_toolkit", _share("chat", "import prompt_toolkit"), limit=2),
    Line("chat", "backburner chat: until its prompt", "", lambda round: round["chat"], "ms"),
    Line("mcp", "backburner mcp: until initialize is answered", "an empty server", _share("ours initialize", "empty initialize"), limit=2),
    Line("mcp", "check_task_status over MCP, p95", "an empty tool", _share("ours call p95", "empty call p95"), limit=2),
    Line("mcp", "check_task_status over MCP, median", "an empty tool", _share("ours call", "empty call")),
    Line("mcp", "check_task_status over MCP, median", "", lambda round: round["ours call"], "ms"),
    Line("agents", "model's last byte to the notice, median", "", lambda round: round["last byte to notice"], "ms", 20),
    Line("agents", "background_task returns, median", "", lambda round: round["background_task"], "ms", 10),
    Line("agents", "memory per session, 50 at once", "", lambda round: round["MB per session"], "MB", 2),
    Line("agents", "CPU per turn, 50 at once", "", lambda round: round["CPU ms per turn"], "ms"),
    Line("opencode", "OpenCode's session.idle to the notice, median", "", lambda round: round["idle to notice"], "ms", 50),
    Line("opencode", "the same, 20 sessions at once", "", lambda round: round["idle to notice, 20 at once"], "ms", 50),
    Line("opencode", "20 sessions at once, with a tool call each", "", lambda round: round["seconds"], "s"),
    Line("agents", "background_block on 20: after the last end", "", lambda round: round["block wakes"], "ms", 20),
    Line("gate", "a decision of the gate, the slowest of everyday lines", "", lambda round: max(round.values()), "ms", 1),
    Line("schedules", "tick of the scheduler, none of 10,000 due", "10 schedules", _share("nothing 10,000", "nothing 10"), limit=10),
    Line("schedules", "tick of the scheduler, none of 10,000 due", "", lambda round: round["nothing 10,000"], "ms"),
    Line("schedules", "tick of the scheduler that fires one of 10,000", "one of 10", _share("one 10,000", "one 10")),
    Line("schedules", "tick of the scheduler that fires one of 10,000", "", lambda round: round["one 10,000"], "ms"),
    Line("schedules", "tick of the scheduler that fires one of 10", "", lambda round: round["one 10"], "ms"),
    Line("schedules", "first tick after a start, 10,000 schedules", "", lambda round: round["first 10,000"], "ms"),
    Line("schedules", "engine with 10 schedules: memory", "", lambda round: round["MB 10"], "MB"),
    Line("schedules", "engine with 10,000 schedules: memory", "", lambda round: round["MB 10,000"], "MB"),
]


def results(group: str, rounds: list[Figures]) -> list[Result]:
    """The lines of a group, from its rounds."""
    return [_result(line, rounds) for line in LINES if line.group == group]


def _result(line: Line, rounds: list[Figures]) -> Result:
    try:
        figures = [line.figure(one) for one in rounds]
    except KeyError:
        return Result(line, None)
    low, middle, high = statistics.quantiles(figures, n=4, method="inclusive") if len(figures) > 1 else figures * 3
    return Result(line, middle, low, high, len(figures))
