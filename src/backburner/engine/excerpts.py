"""Reports the beginning and the end of the output of this host's runs to the ledger, so that others can read them when this host is gone."""

import json
import os
from typing import TYPE_CHECKING, NamedTuple

from backburner.core.host_records import HEAD_BYTES, TAIL_BYTES, OutputExcerpt, RunOutput
from backburner.core.models import Clock
from backburner.engine.host_answers import run_details
from backburner.system import run_files, run_inspection
from backburner.system.home import Home
from backburner.system.log_file import Log

if TYPE_CHECKING:
    from backburner.core.store_ports import OutputExcerptStore

_FIRST_LOOK_MS = 3_600_000  # how far back a new engine looks for runs that ended while there was none
_OVERLAP_MS = 60_000  # the end of a run may be stored a little later than its time


class _Signature(NamedTuple):
    """What tells whether there is something new to report."""

    size: int
    changes: tuple[int, ...]
    has_ended: bool


class ExcerptReporter:
    """Compares what was reported with what is there."""

    def __init__(self, excerpts: "OutputExcerptStore", home: Home, clock: Clock) -> None:
        self._excerpts, self._home, self._clock = excerpts, home, clock
        self._since = clock() - _FIRST_LOOK_MS
        self._reported: dict[str, _Signature] = {}

    def report(self) -> bool:
        """Report what is new; returns whether anything runs here that others could ask about."""
        if not self._excerpts.has_other_hosts():
            return False
        began = self._clock()
        outputs = self._excerpts.outputs(self._since)
        signatures = {output.run_id: self._report(output) for output in outputs}
        self._since, self._reported = began - _OVERLAP_MS, signatures
        return any(output.ended_at is None for output in outputs)

    def _report(self, output: RunOutput) -> _Signature:
        folder = self._home.folder(output.folder)
        try:
            with Log(folder) as log:
                signature = _Signature(log.size, _times(folder), output.ended_at is not None)
                if signature == self._reported.get(output.run_id):
                    return signature
                head, tail, size = excerpt_of(log)
                is_empty = log.size <= log.body_start()
        except OSError:
            return _Signature(-1, (), output.ended_at is not None)
        details = run_details(folder, None if output.ended_at else output.process, output.process_tag)
        if not is_empty or any(details.values()):
            stored = OutputExcerpt(head, tail, size, json.dumps(details), self._clock())
            self._excerpts.store(output.run_id, stored)
        return signature


def excerpt_of(log: Log) -> tuple[bytes, bytes, int]:
    """The beginning and the end of a log, which do not overlap, and its size by cursor."""
    ranges = log.data_ranges()
    if not ranges:
        return b"", b"", 0
    first, last, offset = ranges[0]
    head = log.read(offset, min(HEAD_BYTES, last - first)) if first == 0 else b""
    begin, size, offset = ranges[-1]
    start = max(begin, min(size, len(head)), size - TAIL_BYTES)
    return head, log.read(offset + start - begin, size - start), size


def _times(folder: str) -> tuple[int, ...]:
    """When the files that report progress were last changed."""
    found = []
    for name in (os.path.join(run_files.WORK, run_inspection.PROGRESS), run_files.ACTIVITY, run_files.WORK):
        try:
            found.append(os.stat(os.path.join(folder, name), follow_symlinks=False).st_mtime_ns)
        except OSError:
            found.append(0)
    return tuple(found)
