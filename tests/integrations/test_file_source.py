"""The file source: every change since the last known state is reported once, including changes during downtime."""

import asyncio
import json
import os
import shutil
import tempfile
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path

import pytest

from backburner.core.errors import BadInput
from backburner.core.ports import TriggerEvent
from backburner.integrations.sources import file
from backburner.integrations.sources.file import FileSource, open_source

State = dict[str, object]
DEBOUNCE = "50"


def make_source(path: Path, **config: str) -> FileSource:
    return open_source({"path": str(path), "debounce_ms": DEBOUNCE, **config}, lambda: 0)


@pytest.fixture(autouse=True)
def _no_thread_is_left() -> Iterator[None]:
    yield
    assert [thread.name for thread in threading.enumerate() if thread.name == "backburner-files"] == []


class Watcher:
    """Runs a source and stores its state as JSON, as the integrations process does."""

    def __init__(self, source: FileSource, stored: str) -> None:
        self.source, self.stored = source, stored
        self.events: list[TriggerEvent] = []
        self.states = 0

    async def run(self) -> None:
        async with aclosing(self.source.watch(json.loads(self.stored))) as changes:
            async for state, event in changes:
                self.stored = json.dumps(state, ensure_ascii=False).encode().decode()
                self.states += 1
                if event:
                    self.events.append(event)

    async def wait_for_events(self, count: int = 1) -> TriggerEvent:
        """Wait for that many events, and check that no more come. Return the last."""
        await until(lambda: len(self.events) >= count, f"{count} events")
        await self.settle()
        assert len(self.events) == count, self.events
        return self.events[-1]

    async def settle(self) -> None:
        """Wait longer than a change takes to be reported."""
        await asyncio.sleep(0.25)


async def until(predicate: object, what: str, seconds: float = 15.0) -> None:
    assert callable(predicate)
    async with asyncio.timeout(seconds):
        while not predicate():
            await asyncio.sleep(0.02)


@asynccontextmanager
async def watching(source: FileSource, stored: str = "{}") -> AsyncIterator[Watcher]:
    watcher = Watcher(source, stored)
    task = asyncio.create_task(watcher.run())
    try:
        if stored == "{}":
            await until(lambda: watcher.states or task.done(), "the first state")
        yield watcher
        assert not task.done() or task.result()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def first_state(source: FileSource) -> str:
    """Return the state of a first start."""
    async with watching(source) as watcher:
        return watcher.stored


async def events_since(source: FileSource, stored: str) -> list[TriggerEvent]:
    """Return the events that a start with this stored state reports immediately."""
    async with watching(source, stored) as watcher:
        await watcher.settle()
    return watcher.events


async def test_the_first_start_stores_a_state_and_reports_nothing(tmp_path: Path) -> None:
    (tmp_path / "there").write_text("before")
    async with watching(make_source(tmp_path)) as watcher:
        await watcher.settle()
        assert (watcher.states, watcher.events) == (1, [])


async def test_changes_in_a_folder_are_reported_with_file_names(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "changed").write_text("1")
    (tmp_path / "gone").write_text("1")
    async with watching(make_source(tmp_path)) as watcher:
        (tmp_path / "new").write_text("1")
        (tmp_path / "sub" / "changed").write_text("22")
        (tmp_path / "gone").unlink()
        event = await watcher.wait_for_events()
    assert event.payload == {"path": str(tmp_path), "added": ["new"], "modified": ["sub/changed"], "deleted": ["gone"], "count": 3}
    assert event.summary == f"{tmp_path}: 1 added, 1 modified, 1 deleted"


async def test_changes_during_downtime_are_reported_once(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("1")
    source = make_source(tmp_path)
    stored = await first_state(source)
    (tmp_path / "a").write_text("22")
    (tmp_path / "b").write_text("1")
    async with watching(make_source(tmp_path), stored) as watcher:
        event = await watcher.wait_for_events()
    assert (event.payload["added"], event.payload["modified"]) == (["b"], ["a"])
    assert await events_since(make_source(tmp_path), watcher.stored) == []


async def test_an_event_whose_state_was_not_stored_is_reported_again(tmp_path: Path) -> None:
    stored = await first_state(make_source(tmp_path))
    (tmp_path / "a").write_text("1")
    for _ in range(2):  # the first process was killed before it stored the state
        events = await events_since(make_source(tmp_path), stored)
        assert [event.payload["added"] for event in events] == [["a"]]


async def test_10_000_changes_at_once_are_one_event(tmp_path: Path) -> None:
    def create_files() -> None:
        for number in range(10_000):
            (tmp_path / f"{number:05}").touch()

    async with watching(make_source(tmp_path, debounce_ms="1000")) as watcher:
        await asyncio.to_thread(create_files)
        event = await watcher.wait_for_events()
    assert event.payload["count"] == 10_000
    assert event.payload["added"] == [f"{number:05}" for number in range(50)]
    assert event.summary.endswith(": 10000 added")


async def test_a_file_that_grows_for_a_while_is_one_event(tmp_path: Path) -> None:
    path = tmp_path / "download"
    async with watching(make_source(path, debounce_ms="500")) as watcher:
        with path.open("w") as growing:
            for _ in range(10):
                growing.write("more")
                growing.flush()
                await asyncio.sleep(0.1)
        event = await watcher.wait_for_events()
    assert event.payload["added"] == ["download"]


async def test_an_event_has_names_for_every_kind_of_change(tmp_path: Path) -> None:
    for number in range(100):
        (tmp_path / f"old{number:03}").touch()
    (tmp_path / "only").touch()
    stored = await first_state(make_source(tmp_path))
    for number in range(100):
        (tmp_path / f"old{number:03}").unlink()
        (tmp_path / f"new{number:03}").touch()
    (tmp_path / "only").write_text("changed")
    (event,) = await events_since(make_source(tmp_path), stored)
    names = {change: len(event.payload[change]) for change in ("added", "modified", "deleted")}  # type: ignore[arg-type]
    assert names == {"added": 25, "modified": 1, "deleted": 24}
    assert event.payload["count"] == 201


async def test_a_folder_that_is_deleted_and_recreated_is_still_watched(tmp_path: Path) -> None:
    root = tmp_path / "root"
    (root / "sub").mkdir(parents=True)
    (root / "sub" / "a").touch()
    async with watching(make_source(root)) as watcher:
        for turn in range(1, 3):
            shutil.rmtree(root)
            (root / "sub").mkdir(parents=True)
            (root / "sub" / f"b{turn}").touch()
            await watcher.wait_for_events(2 * turn - 1)
            (root / "sub" / f"c{turn}").touch()
            event = await watcher.wait_for_events(2 * turn)
            assert event.payload["added"] == [f"sub/c{turn}"]


async def test_a_folder_that_replaces_the_watched_folder_is_watched(tmp_path: Path) -> None:
    root, other = tmp_path / "root", tmp_path / "other"
    root.mkdir()
    other.mkdir()
    async with watching(make_source(root)) as watcher:
        root.rename(tmp_path / "away")
        other.rename(root)
        await watcher.settle()
        (root / "a").touch()
        await watcher.wait_for_events()
        (root / "b").touch()
        event = await watcher.wait_for_events(2)
    assert event.payload["added"] == ["b"]


async def test_a_new_subfolder_is_watched(tmp_path: Path) -> None:
    async with watching(make_source(tmp_path)) as watcher:
        (tmp_path / "x" / "y").mkdir(parents=True)
        await watcher.settle()
        (tmp_path / "x" / "y" / "z").touch()
        event = await watcher.wait_for_events()
    assert event.payload["added"] == ["x/y/z"]


async def test_a_path_that_does_not_exist_yet_is_watched(tmp_path: Path) -> None:
    path = tmp_path / "not" / "yet" / "there"
    async with watching(make_source(path)) as watcher:
        path.parent.mkdir(parents=True)
        await watcher.settle()
        path.write_text("here")
        event = await watcher.wait_for_events()
        assert event.payload["added"] == ["there"]
        path.unlink()
        event = await watcher.wait_for_events(2)
        assert event.payload["deleted"] == ["there"]
        path.mkdir()
        event = await watcher.wait_for_events(3)
        assert event.payload["added"] == ["."]
        (path / "inside").touch()
        event = await watcher.wait_for_events(4)
        assert event.payload["added"] == ["inside"]


async def test_a_touched_file_with_the_same_content_is_no_event(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("same")
    async with watching(make_source(path)) as watcher:
        os.utime(path)
        await watcher.settle()
        replacement = tmp_path / "replacement"
        replacement.write_text("same")
        replacement.replace(path)
        await watcher.settle()
        assert watcher.events == []
        path.write_text("other")
        event = await watcher.wait_for_events()
    assert event.payload["modified"] == ["file"]
    os.utime(path)
    assert await events_since(make_source(path), watcher.stored) == []


async def test_a_change_that_keeps_the_size_and_time_of_a_file_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("one")
    status = path.stat()
    stored = await first_state(make_source(path))
    path.write_text("two")
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    (event,) = await events_since(make_source(path), stored)
    assert event.payload["modified"] == ["file"]


async def test_a_file_too_large_to_compare_is_compared_by_its_time(tmp_path: Path) -> None:
    path = tmp_path / "large"
    with path.open("w") as large:
        large.truncate(file.MAX_CONTENT_BYTES + 1)
    stored = await first_state(make_source(path))
    assert await events_since(make_source(path), stored) == []
    os.utime(path)
    assert len(await events_since(make_source(path), stored)) == 1


async def test_pipes_and_endless_devices_do_not_block(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "zero").symlink_to("/dev/zero")
    for path in (tmp_path, tmp_path / "pipe", tmp_path / "zero"):
        async with watching(make_source(path)) as watcher:
            await watcher.settle()
            assert watcher.events == []
    async with watching(make_source(tmp_path / "pipe")) as watcher:
        (tmp_path / "pipe").unlink()
        (tmp_path / "pipe").write_text("a file now")
        event = await watcher.wait_for_events()
    assert event.payload["modified"] == ["pipe"]


async def test_links_inside_the_folder_are_not_followed(tmp_path: Path) -> None:
    root, outside = tmp_path / "root", tmp_path / "outside"
    root.mkdir()
    outside.mkdir()
    (root / "out").symlink_to(outside)
    (root / "up").symlink_to(tmp_path)
    async with watching(make_source(root)) as watcher:
        (outside / "a").touch()
        await watcher.settle()
        assert watcher.events == []
        (root / "out").unlink()
        (root / "out").symlink_to("/")
        event = await watcher.wait_for_events()
    assert event.payload["modified"] == ["out"]


async def test_a_path_that_is_a_link_is_followed_also_to_a_new_target(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text(name)
    (tmp_path / "current").symlink_to("one")
    async with watching(make_source(tmp_path / "current")) as folder, watching(make_source(tmp_path / "current" / "file")) as single:
        (tmp_path / "one" / "file").write_text("changed")
        await folder.wait_for_events()
        await single.wait_for_events()
        (tmp_path / "next").symlink_to("two")
        (tmp_path / "next").replace(tmp_path / "current")
        await folder.wait_for_events(2)
        await single.wait_for_events(2)
        (tmp_path / "two" / "file").write_text("changed as well")
        await folder.wait_for_events(3)
        await single.wait_for_events(3)


async def test_temporary_files_of_git_python_and_editors_are_ignored(tmp_path: Path) -> None:
    (tmp_path / ".git" / "refs").mkdir(parents=True)
    (tmp_path / "__pycache__").mkdir()
    async with watching(make_source(tmp_path)) as watcher:
        for name in (".git/index.lock", ".git/refs/x", "__pycache__/a.pyc", ".a.txt.swp", "a.txt~", ".#a.txt", "#a.txt#"):
            (tmp_path / name).touch()
        await watcher.settle()
        assert watcher.events == []
        (tmp_path / "a.txt").touch()
        event = await watcher.wait_for_events()
    assert event.payload["added"] == ["a.txt"]


async def test_only_names_that_match_the_pattern_are_reported(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    async with watching(make_source(tmp_path, pattern="*.csv")) as watcher:
        (tmp_path / "a.txt").touch()
        (tmp_path / "sub" / "b.csv").touch()
        event = await watcher.wait_for_events()
    assert (event.payload["added"], event.payload["count"]) == (["sub/b.csv"], 1)


async def test_a_state_of_another_pattern_is_not_used(tmp_path: Path) -> None:
    stored = await first_state(make_source(tmp_path))
    (tmp_path / "a").touch()
    assert await events_since(make_source(tmp_path, pattern="*"), stored) == []


async def test_a_state_stays_small_with_21_000_files(tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    (tmp_path / "original").touch()
    for number in range(21_000):  # links to one file are faster to create
        os.link(tmp_path / "original", root / f"{number}")
    stored = await first_state(make_source(root))
    assert len(stored) < 1_000
    assert await events_since(make_source(root), stored) == []
    (root / "7").rename(root / "seven")
    async with watching(make_source(root), stored) as watcher:
        event = await watcher.wait_for_events()
        assert (event.payload["count"], event.payload["added"]) == (None, [])
        assert event.summary.endswith("something changed among 21000 files")
        (root / "8").rename(root / "eight")
        event = await watcher.wait_for_events(2)
        assert (event.payload["added"], event.payload["deleted"], event.payload["count"]) == (["eight"], ["8"], 2)


@pytest.fixture
def unprivileged() -> Iterator[Path]:
    """A folder of a user without root permissions."""
    nobody = 65534
    with tempfile.TemporaryDirectory() as folder:
        if os.geteuid() != 0:
            yield Path(folder)
            return
        os.chown(folder, nobody, nobody)
        os.seteuid(nobody)
        try:
            yield Path(folder)
        finally:
            os.seteuid(0)


async def test_an_unreadable_file_is_neither_an_error_nor_a_change(unprivileged: Path) -> None:
    secret, single = unprivileged / "secret", unprivileged / "single"
    secret.mkdir()
    (secret / "a").touch()
    single.write_text("1")
    async with (
        watching(make_source(unprivileged)) as above,
        watching(make_source(secret)) as at,
        watching(make_source(single)) as single_file,
        watching(make_source(secret / "a")) as below,
    ):
        secret.chmod(0)
        single.chmod(0)
        (unprivileged / "b").touch()
        assert (await above.wait_for_events()).payload == {
            "path": str(unprivileged),
            "added": ["b"],
            "modified": [],
            "deleted": [],
            "count": 1,
        }
        assert at.events == single_file.events == below.events == []
        single.chmod(0o600)
        secret.chmod(0o700)
        os.utime(single)
        (secret / "c").touch()
        assert (await at.wait_for_events()).payload["added"] == ["c"]
        await until(lambda: above.events[-1].payload["added"] == ["secret/c"], "the event of the parent folder")
        assert single_file.events == below.events == []


async def test_names_that_are_not_utf8_are_reported(tmp_path: Path) -> None:
    async with watching(make_source(tmp_path)) as watcher:
        name = os.fsdecode(b"caf\xe9\n")
        (tmp_path / name).touch()
        event = await watcher.wait_for_events()
        assert event.payload["added"] == ["caf\\udce9\n"]
        (tmp_path / os.fsdecode(b"\xff")).mkdir()
        (tmp_path / os.fsdecode(b"\xff") / "inside").touch()
        event = await watcher.wait_for_events(2)
        assert event.payload["added"] == ["\\udcff/inside"]


async def test_without_notifications_the_folder_is_scanned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def out_of_watches(*_: object, **__: object) -> object:
        raise OSError(28, "OS file watch limit reached")

    monkeypatch.setattr(file, "notifications", out_of_watches)
    async with watching(make_source(tmp_path)) as watcher:
        (tmp_path / "a").touch()
        event = await watcher.wait_for_events()
        assert "watch limit reached" in str(watcher.source.trouble)
    assert event.payload["added"] == ["a"]


@pytest.mark.parametrize(
    "config", [{}, {"path": "here"}, {"path": "/tmp", "debounce_ms": "soon"}, {"path": "/tmp", "debounce_ms": "-1"}, {"path": "/a\0b"}]
)
def test_an_invalid_configuration_is_rejected(config: dict[str, str]) -> None:
    with pytest.raises(BadInput):
        open_source(config, lambda: 0)
