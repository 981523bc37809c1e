"""Exports the records of a home as JSON: tasks with their runs, notices, memory and events. Environments are left out."""

import json
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from backburner.core import formatting, task_text
from backburner.core.models import Clock, Entry, Run
from backburner.system.home import Home

if TYPE_CHECKING:
    from backburner.core.store_ports import RecordStore

FORMAT = 1


class Export:
    """Exports one home."""

    def __init__(self, home: Home, records: "RecordStore", clock: Clock) -> None:
        self._home, self._records, self._clock = home, records, clock

    def pieces(self) -> Iterator[str]:
        """Yield one JSON object in pieces, so that the memory does not grow with the ledger."""
        now = self._clock()
        yield f'{{"format": {FORMAT}, "exported_at": {json.dumps(formatting.iso(now))}, "home": {json.dumps(self._home.root)}'
        yield from _array("tasks", (_task(entry, runs, now) for entry, runs in self._records.all_tasks()))
        yield from _array("notices", map(task_text.notice_json, self._records.all_notices()))
        yield from _array(
            "memory",
            (
                {"project": project, "key": key, "value": value, "set_at": formatting.iso(set_at)}
                for project, key, value, set_at in self._records.all_memory()
            ),
        )
        yield from _array("events", map(task_text.event_json, self._records.all_events()))
        yield "}\n"


def _task(entry: Entry, runs: Iterable[Run], now: int) -> dict[str, object]:
    return {**task_text.as_json(entry, now), "runs": [{"n": run.n, "folder": run.folder, **task_text.run_json(run)} for run in runs]}


def _array(name: str, items: Iterable[dict[str, object]]) -> Iterator[str]:
    yield f",\n{json.dumps(name)}: ["
    for number, item in enumerate(items):
        yield f"{',' if number else ''}\n{json.dumps(item)}"
    yield "]"
