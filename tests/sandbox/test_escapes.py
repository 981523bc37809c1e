"""Attempts to leave the sandbox or to get past the gate: none of them reaches anything. Those that are asked about do not run.

Runs a part of the table, and all of it with BACKBURNER_LONG=1.
"""

import os
import re
import time
from collections import Counter
from pathlib import Path

import pytest
from conftest import NO_TERMINAL, HomeCli, caller, wait_until
from sandbox.escape_world import Attempt, World, attempts, make_template

from backburner.core.models import Entry
from backburner.core.sandbox import Level
from backburner.services.app import App, open_app
from backburner.testing import records

LONG = bool(os.environ.get("BACKBURNER_LONG"))
_BATCH = 12
_TIMEOUT_MS = 25_000
_EVERY = 13  # of the table, unless all of it is run
_ACTS_LATER = re.compile(r"setsid|nohup|sleep .*&|disown|at now|fork\(\)")
_SLOW = re.compile(r"sleep [3-9]|sleep\([3-9]|timeout 1?\d |fork|dd if=/dev/zero|head -c [0-9]+[MG]|range\(\d{5,}")


# Landlock cannot hide other processes: they and their connections can be listed, but not changed, traced or connected to. Nor does it change
# the answer to whether a file could be written.
_VISIBLE_WITH_LANDLOCK = {
    "rh-proc-cmdline-others",
    "rh-proc-count",
    "tcp-proc-net",
    "tcp-proc-victim-net",
    "abs-proc-net-unix",
    "pt-proc-task-children",
    "pt-pidfd-open-only",
    "mt-sys-writable",
    "sig-setpgid-getsid",
}


def chosen() -> list[Attempt]:
    every = [attempt for attempt in attempts() if LONG or not (attempt.goal == "exhaust" or _SLOW.search(attempt.line))]
    return every if LONG else every[::_EVERY]


@pytest.fixture
def app(home_cli: HomeCli, request: pytest.FixtureRequest):  # type: ignore[no-untyped-def]
    """An App of a home whose sandbox has the level of the test."""
    home_cli.configure(f'{NO_TERMINAL}[commands]\nmax_concurrent = 6\n[sandbox]\nlevel = "{request.param}"\n')
    with open_app(str(home_cli.root), home_cli.environ) as opened:
        yield opened


def submit(app: App, world: World, attempt: Attempt, *, trusted: bool) -> Entry:
    if trusted:
        app.approvals.trust_project(str(world.project), caller(app))
    environment = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": str(world.home), "LANG": "C.UTF-8"}
    submission = records.request(
        (world.expand(attempt.line),), str(world.project), environment, shell=True, opened=str(world.project), timeout_ms=_TIMEOUT_MS
    )
    return app.submissions.submit(submission, caller(app))


def run_batch(
    app: App, home_cli: HomeCli, template: Path, batch: list[Attempt], number: int, *, trusted: bool
) -> tuple[dict[str, list[str]], list[str]]:
    """Run attempts at the same time; returns what they reached, and the goals of those that ran."""
    worlds = {
        attempt: World(template, template.parent / f"w{number}-{at}", home_cli.root, f"bbmark{number}x{at}x{os.urandom(4).hex()}")
        for at, attempt in enumerate(batch)
    }
    try:
        entries = {attempt: submit(app, world, attempt, trusted=trusted) for attempt, world in worlds.items()}
        started = [entry.task.task_id for entry in entries.values() if entry.run]
        wait_until(
            lambda: all(app.queries.get(task_id).status not in ("pending", "running") for task_id in started), "the commands to end", 120
        )
        if any(_ACTS_LATER.search(attempt.line) for attempt, entry in entries.items() if entry.run):
            time.sleep(7)
        reached = {}
        for attempt, entry in entries.items():
            output = app.runs.tail(app.queries.get(entry.task.task_id), 2000, longest=1 << 20) if entry.run else b""
            if found := worlds[attempt].breaches(output.decode("utf-8", "replace"), trusted=trusted):
                reached[attempt.name] = found
        return reached, [attempt.goal for attempt, entry in entries.items() if entry.run]
    finally:
        for world in worlds.values():
            world.close()


@pytest.mark.parametrize(("app", "trusted"), [("full", False), ("full", True), ("partial", True)], indirect=["app"])
def test_no_attempt_reaches_anything(app: App, home_cli: HomeCli, tmp_path: Path, trusted: bool) -> None:
    template = tmp_path / "template"
    make_template(template)
    wanted = [attempt for attempt in chosen() if attempt.trust in ("both", "trusted" if trusted else "new")]
    if app.gate.support().level is Level.PARTIAL:
        wanted = [attempt for attempt in wanted if attempt.name not in _VISIBLE_WITH_LANDLOCK]
    if app.gate.support().level is Level.FULL:
        home_cli.await_sandbox_starter()
    reached: dict[str, list[str]] = {}
    ran: Counter[str] = Counter()
    for number, start in enumerate(range(0, len(wanted), _BATCH)):
        found, goals = run_batch(app, home_cli, template, wanted[start : start + _BATCH], number, trusted=trusted)
        reached |= found
        ran.update(goals)
    for goal, count in sorted(Counter(attempt.goal for attempt in wanted).items()):
        print(f"{goal}: {count} attempts, {ran[goal]} of them ran in the sandbox, the others were asked about")
    print(f"{len(wanted)} attempts, {ran.total()} of them ran in the sandbox, {len(reached)} reached something")
    assert reached == {}
    assert ran.total() > len(wanted) // 10, "most attempts were only asked about"
    if app.gate.support().level is Level.FULL:
        by_starter = sum(home_cli.uses_sandbox_starter(path.parent.name) for path in (home_cli.root / "tasks").glob("*/.exit"))
        print(f"{by_starter} of them were started by the sandbox starter")
        assert by_starter > ran.total() // 2
