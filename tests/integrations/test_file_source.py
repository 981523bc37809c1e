"""The file source: what changed since it was last seen is told once, however it changed and whoever was away meanwhile."""

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


def source_of(path: Path, **config: str) -> FileSource:
    return open_source({"path": str(path), "debounce_ms": DEBOUNCE, **config}, lambda: 0)


@pytest.fixture(autouse=True)
def _nothing_is_left() -> Iterator[None]:
    yield
    assert [thread.name for thread in threading.enumerate() if thread.name == "backburner-files"] == []


class Watched:
    """A source at work, as its host has it: a state is kept as JSON, together with what happened."""

    def __init__(self, source: FileSource, kept: str) -> None:
        self.source, self.kept = source, kept
        self.happenings: list[TriggerEvent] = []
        self.states = 0

    async def run(self) -> None:
        async with aclosing(self.source.watch(json.loads(self.kept))) as seen:
            async for state, happening in seen:
                self.kept = json.dumps(state, ensure_ascii=False).encode().decode()
                self.states += 1
                if happening:
                    self.happenings.append(happening)

    async def told(self, count: int = 1) -> TriggerEvent:
        """Wait for that many happenings, and that no more come; the last."""
        await until(lambda: len(self.happenings) >= count, f"{count} happenings")
        await self.quiet()
        assert len(self.happenings) == count, self.happenings
        return self.happenings[-1]

    async def quiet(self) -> None:
        """As long as a change takes to be told, and half as long again."""
        await asyncio.sleep(0.25)


async def until(predicate: object, what: str, seconds: float = 15.0) -> None:
    assert callable(predicate)
    async with asyncio.timeout(seconds):
        while not predicate():
            await asyncio.sleep(0.02)


@asynccontextmanager
async def watching(source: FileSource, kept: str = "{}") -> AsyncIterator[Watched]:
    watched = Watched(source, kept)
    task = asyncio.create_task(watched.run())
    try:
        if kept == "{}":
            await until(lambda: watched.states or task.done(), "the present to be taken down")
        yield watched
        assert not task.done() or task.result()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def kept_of(source: FileSource) -> str:
    """The present, taken down."""
    async with watching(source) as watched:
        return watched.kept


async def seen_since(source: FileSource, kept: str) -> list[TriggerEvent]:
    """What a host that starts now is told at once, given what was kept."""
    async with watching(source, kept) as watched:
        await watched.quiet()
    return watched.happenings


async def test_the_very_first_time_the_present_is_only_taken_down(tmp_path: Path) -> None:
    (tmp_path / "there").write_text("before")
    async with watching(source_of(tmp_path)) as watched:
        await watched.quiet()
        assert (watched.states, watched.happenings) == (1, [])


async def test_changes_of_a_folder_are_told_with_their_names(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "changed").write_text("1")
    (tmp_path / "gone").write_text("1")
    async with watching(source_of(tmp_path)) as watched:
        (tmp_path / "new").write_text("1")
        (tmp_path / "sub" / "changed").write_text("22")
        (tmp_path / "gone").unlink()
        happening = await watched.told()
    assert happening.payload == {"path": str(tmp_path), "added": ["new"], "modified": ["sub/changed"], "deleted": ["gone"], "count": 3}
    assert happening.summary == f"{tmp_path}: 1 added, 1 modified, 1 deleted"


async def test_changes_made_while_everything_was_down_are_seen_once(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("1")
    source = source_of(tmp_path)
    kept = await kept_of(source)
    (tmp_path / "a").write_text("22")
    (tmp_path / "b").write_text("1")
    async with watching(source_of(tmp_path), kept) as watched:
        happening = await watched.told()
    assert (happening.payload["added"], happening.payload["modified"]) == (["b"], ["a"])
    assert await seen_since(source_of(tmp_path), watched.kept) == []


async def test_what_was_told_but_not_kept_is_told_again(tmp_path: Path) -> None:
    kept = await kept_of(source_of(tmp_path))
    (tmp_path / "a").write_text("1")
    for _ in range(2):  # the first host was killed between the two
        happenings = await seen_since(source_of(tmp_path), kept)
        assert [one.payload["added"] for one in happenings] == [["a"]]


async def test_a_storm_of_10_000_changes_is_one_happening(tmp_path: Path) -> None:
    def storm() -> None:
        for number in range(10_000):
            (tmp_path / f"{number:05}").touch()

    async with watching(source_of(tmp_path, debounce_ms="1000")) as watched:
        await asyncio.to_thread(storm)
        happening = await watched.told()
    assert happening.payload["count"] == 10_000
    assert happening.payload["added"] == [f"{number:05}" for number in range(50)]
    assert happening.summary.endswith(": 10000 added")


async def test_a_file_that_grows_for_a_while_is_one_happening(tmp_path: Path) -> None:
    path = tmp_path / "download"
    async with watching(source_of(path, debounce_ms="500")) as watched:
        with path.open("w") as growing:
            for _ in range(10):
                growing.write("more")
                growing.flush()
                await asyncio.sleep(0.1)
        happening = await watched.told()
    assert happening.payload["added"] == ["download"]


async def test_names_of_every_kind_of_change_have_room_in_a_happening(tmp_path: Path) -> None:
    for number in range(100):
        (tmp_path / f"old{number:03}").touch()
    (tmp_path / "only").touch()
    kept = await kept_of(source_of(tmp_path))
    for number in range(100):
        (tmp_path / f"old{number:03}").unlink()
        (tmp_path / f"new{number:03}").touch()
    (tmp_path / "only").write_text("changed")
    (happening,) = await seen_since(source_of(tmp_path), kept)
    names = {change: len(happening.payload[change]) for change in ("added", "modified", "deleted")}  # type: ignore[arg-type]
    assert names == {"added": 25, "modified": 1, "deleted": 24}
    assert happening.payload["count"] == 201


async def test_a_folder_that_is_deleted_and_made_again_is_watched_again(tmp_path: Path) -> None:
    root = tmp_path / "root"
    (root / "sub").mkdir(parents=True)
    (root / "sub" / "a").touch()
    async with watching(source_of(root)) as watched:
        for turn in range(1, 3):
            shutil.rmtree(root)
            (root / "sub").mkdir(parents=True)
            (root / "sub" / f"b{turn}").touch()
            await watched.told(2 * turn - 1)
            (root / "sub" / f"c{turn}").touch()
            happening = await watched.told(2 * turn)
            assert happening.payload["added"] == [f"sub/c{turn}"]


async def test_a_folder_put_in_the_place_of_another_is_watched(tmp_path: Path) -> None:
    root, other = tmp_path / "root", tmp_path / "other"
    root.mkdir()
    other.mkdir()
    async with watching(source_of(root)) as watched:
        root.rename(tmp_path / "away")
        other.rename(root)
        await watched.quiet()
        (root / "a").touch()
        await watched.told()
        (root / "b").touch()
        happening = await watched.told(2)
    assert happening.payload["added"] == ["b"]


async def test_a_folder_made_later_is_watched_with_what_is_in_it(tmp_path: Path) -> None:
    async with watching(source_of(tmp_path)) as watched:
        (tmp_path / "x" / "y").mkdir(parents=True)
        await watched.quiet()
        (tmp_path / "x" / "y" / "z").touch()
        happening = await watched.told()
    assert happening.payload["added"] == ["x/y/z"]


async def test_a_path_that_appears_later_is_seen(tmp_path: Path) -> None:
    path = tmp_path / "not" / "yet" / "there"
    async with watching(source_of(path)) as watched:
        path.parent.mkdir(parents=True)
        await watched.quiet()
        path.write_text("here")
        happening = await watched.told()
        assert happening.payload["added"] == ["there"]
        path.unlink()
        happening = await watched.told(2)
        assert happening.payload["deleted"] == ["there"]
        path.mkdir()
        happening = await watched.told(3)
        assert happening.payload["added"] == ["."]
        (path / "inside").touch()
        happening = await watched.told(4)
        assert happening.payload["added"] == ["inside"]


async def test_a_touch_without_a_change_is_no_event(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("same")
    async with watching(source_of(path)) as watched:
        os.utime(path)
        await watched.quiet()
        replacement = tmp_path / "replacement"
        replacement.write_text("same")
        replacement.replace(path)
        await watched.quiet()
        assert watched.happenings == []
        path.write_text("other")
        happening = await watched.told()
    assert happening.payload["modified"] == ["file"]
    os.utime(path)
    assert await seen_since(source_of(path), watched.kept) == []


async def test_a_change_that_keeps_size_and_time_of_a_file_is_seen(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("one")
    status = path.stat()
    kept = await kept_of(source_of(path))
    path.write_text("two")
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    (happening,) = await seen_since(source_of(path), kept)
    assert happening.payload["modified"] == ["file"]


async def test_a_file_too_large_to_compare_is_told_by_its_time(tmp_path: Path) -> None:
    path = tmp_path / "large"
    with path.open("w") as large:
        large.truncate(file.MOST_CONTENT + 1)
    kept = await kept_of(source_of(path))
    assert await seen_since(source_of(path), kept) == []
    os.utime(path)
    assert len(await seen_since(source_of(path), kept)) == 1


async def test_pipes_and_endless_devices_hang_nothing(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "zero").symlink_to("/dev/zero")
    for path in (tmp_path, tmp_path / "pipe", tmp_path / "zero"):
        async with watching(source_of(path)) as watched:
            await watched.quiet()
            assert watched.happenings == []
    async with watching(source_of(tmp_path / "pipe")) as watched:
        (tmp_path / "pipe").unlink()
        (tmp_path / "pipe").write_text("a file now")
        happening = await watched.told()
    assert happening.payload["modified"] == ["pipe"]


async def test_links_are_not_followed_out_of_the_folder(tmp_path: Path) -> None:
    root, outside = tmp_path / "root", tmp_path / "outside"
    root.mkdir()
    outside.mkdir()
    (root / "out").symlink_to(outside)
    (root / "up").symlink_to(tmp_path)
    async with watching(source_of(root)) as watched:
        (outside / "a").touch()
        await watched.quiet()
        assert watched.happenings == []
        (root / "out").unlink()
        (root / "out").symlink_to("/")
        happening = await watched.told()
    assert happening.payload["modified"] == ["out"]


async def test_a_path_that_is_a_link_is_followed_and_so_is_its_new_target(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text(name)
    (tmp_path / "current").symlink_to("one")
    async with watching(source_of(tmp_path / "current")) as folder, watching(source_of(tmp_path / "current" / "file")) as single:
        (tmp_path / "one" / "file").write_text("changed")
        await folder.told()
        await single.told()
        (tmp_path / "next").symlink_to("two")
        (tmp_path / "next").replace(tmp_path / "current")
        await folder.told(2)
        await single.told(2)
        (tmp_path / "two" / "file").write_text("changed as well")
        await folder.told(3)
        await single.told(3)


async def test_what_programs_keep_for_themselves_is_ignored(tmp_path: Path) -> None:
    (tmp_path / ".git" / "refs").mkdir(parents=True)
    (tmp_path / "__pycache__").mkdir()
    async with watching(source_of(tmp_path)) as watched:
        for name in (".git/index.lock", ".git/refs/x", "__pycache__/a.pyc", ".a.txt.swp", "a.txt~", ".#a.txt", "#a.txt#"):
            (tmp_path / name).touch()
        await watched.quiet()
        assert watched.happenings == []
        (tmp_path / "a.txt").touch()
        happening = await watched.told()
    assert happening.payload["added"] == ["a.txt"]


async def test_only_names_that_fit_the_pattern_count(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    async with watching(source_of(tmp_path, pattern="*.csv")) as watched:
        (tmp_path / "a.txt").touch()
        (tmp_path / "sub" / "b.csv").touch()
        happening = await watched.told()
    assert (happening.payload["added"], happening.payload["count"]) == (["sub/b.csv"], 1)


async def test_another_path_or_pattern_starts_from_its_own_present(tmp_path: Path) -> None:
    kept = await kept_of(source_of(tmp_path))
    (tmp_path / "a").touch()
    assert await seen_since(source_of(tmp_path, pattern="*"), kept) == []


async def test_a_state_stays_small_however_many_files_there_are(tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    (tmp_path / "original").touch()
    for number in range(21_000):  # links of one file: the same to us, and made faster
        os.link(tmp_path / "original", root / f"{number}")
    kept = await kept_of(source_of(root))
    assert len(kept) < 1_000
    assert await seen_since(source_of(root), kept) == []
    (root / "7").rename(root / "seven")
    async with watching(source_of(root), kept) as watched:
        happening = await watched.told()
        assert (happening.payload["count"], happening.payload["added"]) == (None, [])
        assert happening.summary.endswith("something changed among 21000 files")
        (root / "8").rename(root / "eight")
        happening = await watched.told(2)
        assert (happening.payload["added"], happening.payload["deleted"], happening.payload["count"]) == (["eight"], ["8"], 2)


@pytest.fixture
def unprivileged() -> Iterator[Path]:
    """A folder of somebody who may not read everything."""
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


async def test_what_cannot_be_read_is_neither_a_crash_nor_a_change(unprivileged: Path) -> None:
    secret, single = unprivileged / "secret", unprivileged / "single"
    secret.mkdir()
    (secret / "a").touch()
    single.write_text("1")
    async with (
        watching(source_of(unprivileged)) as above,
        watching(source_of(secret)) as at,
        watching(source_of(single)) as one,
        watching(source_of(secret / "a")) as below,
    ):
        secret.chmod(0)
        single.chmod(0)
        (unprivileged / "b").touch()
        assert (await above.told()).payload == {"path": str(unprivileged), "added": ["b"], "modified": [], "deleted": [], "count": 1}
        assert at.happenings == one.happenings == below.happenings == []
        single.chmod(0o600)
        secret.chmod(0o700)
        os.utime(single)
        (secret / "c").touch()
        assert (await at.told()).payload["added"] == ["c"]
        await until(lambda: above.happenings[-1].payload["added"] == ["secret/c"], "the folder above to be told")
        assert one.happenings == below.happenings == []


async def test_names_of_any_bytes_are_told(tmp_path: Path) -> None:
    async with watching(source_of(tmp_path)) as watched:
        name = os.fsdecode(b"caf\xe9\n")
        (tmp_path / name).touch()
        happening = await watched.told()
        assert happening.payload["added"] == ["caf\\udce9\n"]
        (tmp_path / os.fsdecode(b"\xff")).mkdir()
        (tmp_path / os.fsdecode(b"\xff") / "inside").touch()
        happening = await watched.told(2)
        assert happening.payload["added"] == ["\\udcff/inside"]


async def test_where_the_system_does_not_notify_it_looks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def out_of_watches(*_: object, **__: object) -> object:
        raise OSError(28, "OS file watch limit reached")

    monkeypatch.setattr(file, "notifications", out_of_watches)
    async with watching(source_of(tmp_path)) as watched:
        (tmp_path / "a").touch()
        happening = await watched.told()
        assert "watch limit reached" in str(watched.source.trouble)
    assert happening.payload["added"] == ["a"]


@pytest.mark.parametrize(
    "config", [{}, {"path": "here"}, {"path": "/tmp", "debounce_ms": "soon"}, {"path": "/tmp", "debounce_ms": "-1"}, {"path": "/a\0b"}]
)
def test_a_source_that_cannot_be_meant_is_refused(config: dict[str, str]) -> None:
    with pytest.raises(BadInput):
        open_source(config, lambda: 0)
