"""An app with a fake clock for tests of proposals, channel replies, trigger events and suggestions."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import caller

from backburner.coordination.supervision import EngineSupervisor
from backburner.core.models import Entry, ProcessId, Submission
from backburner.core.schedule import every
from backburner.services.app import App, open_app
from backburner.testing import FakeClock
from backburner.testing.records import request

MINUTE, HOUR, DAY = 60_000, 3_600_000, 86_400_000
ME = ProcessId(1, "1", "boot")
CONFIG = """[models]
local = "ollama:small"
default = "ollama:small"
[channels.chat]
type = "discord"
target = "1"
"""


@pytest.fixture
def app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[App]:
    """An app with a fake clock, in which no engine is started."""
    monkeypatch.setattr(EngineSupervisor, "start_engine", lambda self: None)
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "config.toml").write_text(CONFIG)
    with open_app(str(tmp_path / "home"), {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path)}) as opened:
        opened.clock = FakeClock()
        monkeypatch.chdir(tmp_path)
        yield opened


def make_submission(app: App, name: str, /, *, session: str | None = "claude:1", **fields: Any) -> Submission:
    """Return a request for a recurring agent task, by default from an agent session."""
    defaults = {"name": name, "agent": "default", "prompt": f"Look at {name}.", "schedule": every(HOUR, app.now()), "notify": "on_change"}
    return request(cwd=os.getcwd(), session=session, **{**defaults, **fields})


def propose(app: App, name: str, **fields: Any) -> Entry:
    return app.submissions.submit(make_submission(app, name, proposed=True, **fields), caller(app))
