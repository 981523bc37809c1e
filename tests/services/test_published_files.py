"""The files of a run that an interface writes while the engine has already ended it."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from backburner.coordination.publisher import Publisher
from backburner.core.states import RunState
from backburner.system import run_files
from backburner.system.home import Home
from backburner.testing import records


def test_the_files_of_an_end_that_is_not_in_the_ledger_yet_are_not_replaced_for_good(tmp_path: Path) -> None:
    task = records.task("task_x", ("true",))
    pending = records.run(folder="tasks/task_x", state=RunState.PENDING)
    running, ended = pending._replace(state=RunState.RUNNING), pending._replace(state=RunState.COMPLETED)
    home = Home(str(tmp_path / "home")).make()
    folder = Path(home.folder("tasks/task_x"))
    states = [running, running, running, ended]

    def get(_: str) -> object:
        if len(states) == 4:  # the engine has written the end to the files
            folder.joinpath(".exit").write_text("0   ")
            run_files.write(str(folder), task, ended)
        return SimpleNamespace(run=states.pop(0) if len(states) > 1 else states[0])

    publisher = Publisher(home, cast(Any, SimpleNamespace(get=get)), cast(Any, None), cast(Any, None))
    publisher._write_files(task, pending)
    assert json.loads(folder.joinpath("metadata.json").read_text())["status"] == "completed"
