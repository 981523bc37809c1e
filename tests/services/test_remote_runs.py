"""Output, files and input of runs on another host, read through the ledger: the same bytes as in its files, whatever happens meanwhile."""

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import wait_until
from postgres_server import LedgerDatabase, PostgresServer
from two_hosts import HEADER, OWNER, THERE, Running, TwoHosts

from backburner.core.errors import BadInput, HostUnreachable
from backburner.core.host_records import HEAD_BYTES, MAX_ANSWER_BYTES, MAX_FILE_BYTES, TAIL_BYTES
from backburner.core.models import Caller
from backburner.execution.output_limit import OutputLimit
from backburner.services.log_follower import LogFollower
from backburner.services.log_pages import LogPages
from backburner.services.remote_run import RemoteRun
from backburner.system.log_file import Log
from backburner.system.run_files import INPUT, INPUT_END

BINARY = bytes(range(256)) * 300 + "日本語".encode()[:-1]


@pytest.fixture
def hosts(database: LedgerDatabase, tmp_path: Path) -> Iterator[TwoHosts]:
    database.empty()
    hosts = TwoHosts(database, tmp_path)
    yield hosts
    hosts.close()


def shown(hosts: TwoHosts, run: Running, **options: object) -> bytes:
    return b"".join(LogFollower(hosts.here, run.entry, **options).now())  # type: ignore[arg-type]


def shown_there(run: Running) -> bytes:
    """What a reader on the host itself is shown."""
    with Log(str(run.folder)) as log:
        return b"".join(piece for _, piece in log.chunks(log.body_start()))


class Follower:
    """Follows a run in this thread while the test changes something."""

    def __init__(self, run: Running, **options: object) -> None:
        self.pieces, self.found = run.follow(**options), b""

    def until(self, size: int) -> bytes:
        while len(self.found) < size:
            self.found += next(self.pieces)
        return self.found

    def rest(self) -> bytes:
        self.found += b"".join(self.pieces)
        return self.found


# -- output


@pytest.mark.parametrize(
    "output",
    [b"", b"one line\n", b"no newline at the end", BINARY, b"x" * (10 << 20) + b"\nafter a line of 10 MB\n", os.urandom(1 << 20) * 20],
    ids=["nothing", "a line", "no newline", "binary", "a long line", "more than one answer"],
)
def test_output_is_the_same_as_in_the_file(hosts: TwoHosts, output: bytes) -> None:
    run = hosts.run(output=output)
    assert shown(hosts, run) == output
    assert shown(hosts, run, raw=True) == HEADER + output
    run.end()
    assert b"".join(run.follow()) == output


def test_cursors_are_the_same_numbers_as_in_the_file(hosts: TwoHosts) -> None:
    run = hosts.run(output=b"".join(b"line %d\n" % n for n in range(1000)))
    here = hosts.here.runs.read(run.entry, most=100)
    with Log(str(run.folder)) as log:
        assert here.cursor == f"1:{log.piece(log.body_start(), 100)[0]}"
    assert hosts.here.runs.read(run.entry, here.cursor, most=20).data.startswith(b"line 13\n")
    assert shown(hosts, run, since=int(here.cursor.partition(":")[2])) == shown_there(run)[len(here.data) :]


def test_the_end_and_lines_with_a_text_are_read(hosts: TwoHosts) -> None:
    run = hosts.run(output=b"".join(b"line %d\n" % n for n in range(100_000)))
    assert hosts.here.runs.tail(run.entry, 2) == b"line 99998\nline 99999\n"
    assert shown(hosts, run, lines=3) == b"line 99997\nline 99998\nline 99999\n"
    assert hosts.here.runs.read(run.entry, most=1000, containing="LINE 77777").data == b"line 77777\n"


def test_pages_and_search_of_the_web_interface_work(hosts: TwoHosts) -> None:
    run = hosts.run(output=b"".join(b"line %d\n" % n for n in range(1, 5001)))
    assert run.entry.run
    source, pages = hosts.here.runs.log_source(run.entry.run), LogPages()
    page = pages.from_line(source, 3000, 2, 1 << 20, live=False)
    assert (page.text, page.first_line, page.total_lines) == ("line 3000\nline 3001\n", 3000, 5000)
    assert [hit.line for hit in pages.search(source, "4321", regex=False, case=True, after=0, limit=5).hits] == [4321]


def test_a_run_without_a_log_has_no_output_yet(hosts: TwoHosts) -> None:
    run = hosts.run(output=None)
    with pytest.raises(FileNotFoundError):
        shown(hosts, run)
    assert hosts.here.runs.tail(run.entry, 5) == b""
    follower = run.follow()
    assert next(follower) == b""
    run.write(HEADER + b"begun\n")
    run.end()
    assert b"".join(follower) == b"begun\n"


def test_a_trickle_is_followed(hosts: TwoHosts) -> None:
    run = hosts.run(output=b"first\n")
    follower, expected = Follower(run), b"first\n"
    for n in range(50):
        expected += b"%d " % n
        run.write(b"%d " % n)
        assert follower.until(len(expected)) == expected
    run.end()
    assert follower.rest() == expected


def test_a_log_that_grows_while_it_is_opened_has_no_gaps(hosts: TwoHosts) -> None:
    run, is_over = hosts.run(), threading.Event()

    def write() -> None:
        with open(run.log, "ab", buffering=0) as file:
            while not is_over.is_set():
                file.write(b"x")

    writer = threading.Thread(target=write)
    writer.start()
    try:
        found = [shown(hosts, run) for _ in range(100)]
    finally:
        is_over.set()
        writer.join()
    assert {*b"".join(found)} <= {*b"x"} and sorted(found, key=len) == found


def test_a_flood_is_followed(hosts: TwoHosts) -> None:
    run, block = hosts.run(), os.urandom(1 << 20)
    writer = threading.Thread(target=lambda: [run.write(block) for _ in range(30)])
    follower = Follower(run)
    writer.start()
    follower.until(20 << 20)
    writer.join()
    run.end()
    assert follower.rest() == block * 30 and len(follower.found) > 3 * MAX_ANSWER_BYTES


@pytest.mark.parametrize("finished", [False, True], ids=["with a hole", "after its hole was closed"])
def test_a_capped_log_is_shown_as_on_its_host(hosts: TwoHosts, finished: bool) -> None:
    run, limit = hosts.run(), None
    for n in range(40):
        run.write(b"%05d\n" % n * 20_000)
        limit = OutputLimit(str(run.folder), 1 << 20) if limit is None else limit
        os.close(limit.check(os.open(run.log, os.O_RDWR)))
    assert limit and limit.is_exceeded
    if finished:
        limit.finish()
    assert b"bytes of output left out here" in shown_there(run)
    assert shown(hosts, run) == shown_there(run)
    assert hosts.here.runs.tail(run.entry, 3) == b"00039\n" * 3


def test_a_log_that_is_capped_and_closed_meanwhile_is_followed_to_its_end(hosts: TwoHosts) -> None:
    run = hosts.run(output=b"begin\n")
    follower = Follower(run)
    follower.until(6)
    limit = OutputLimit(str(run.folder), 1 << 20)
    for n in range(40):
        run.write(b"%05d\n" % n * 20_000)
        os.close(limit.check(os.open(run.log, os.O_RDWR)))
    limit.finish()
    run.write(b"the end")
    run.end()
    assert follower.rest().startswith(b"begin\n") and follower.found.endswith(b"00039\nthe end")


def test_following_goes_on_when_the_other_host_restarts(hosts: TwoHosts) -> None:
    run = hosts.run(output=b"before\n")
    follower = Follower(run)
    follower.until(7)
    hosts.stop()
    run.write(b"meanwhile\n")
    hosts.start()
    run.write(b"after\n")
    assert follower.until(23) == b"before\nmeanwhile\nafter\n"


def test_following_goes_on_when_all_connections_are_lost(
    hosts: TwoHosts, postgres_server: PostgresServer, database: LedgerDatabase
) -> None:
    run, block = hosts.run(), os.urandom(1 << 20)
    follower = Follower(run)
    for n in range(1, 9):
        run.write(block)
        if n % 2:
            postgres_server.terminate_connections(database.name)
        assert follower.until(n << 20) == block * n


def test_reading_goes_on_when_a_part_of_an_answer_is_lost(hosts: TwoHosts) -> None:
    """As after a crash of the server, which empties the table."""
    run = hosts.run(output=os.urandom(1 << 20) * 30)
    pieces = LogFollower(hosts.here, run.entry).now()
    found = next(pieces) + next(pieces)
    hosts.there.database.write("DELETE FROM host_responses")
    assert found + b"".join(pieces) == shown_there(run)


def test_nothing_is_left_in_the_ledger_after_reading(hosts: TwoHosts) -> None:
    run = hosts.run(output=b"x" * (3 << 20))
    shown(hosts, run)
    follower = run.follow()
    next(follower)
    next(follower)
    follower.close()
    hosts.here.runs.inspect(run.entry)
    assert hosts.there.database.execute("SELECT request_id FROM host_requests") == []
    assert hosts.there.database.execute("SELECT request_id FROM host_responses") == []


def test_responses_are_not_logged(postgres_server: PostgresServer, database: LedgerDatabase) -> None:
    kinds = "SELECT relname, relpersistence FROM pg_class WHERE relname IN ('host_requests', 'host_responses', 'output_excerpts')"
    found = dict(postgres_server.administer(kinds, database.name))
    assert found == {"host_requests": "u", "host_responses": "u", "output_excerpts": "p"}


# -- a host that does not answer


def reported(hosts: TwoHosts, run: Running) -> None:
    """Wait until the host has reported all output of a run that has ended."""

    def is_reported() -> bool:
        assert hosts.server
        hosts.server.tick()
        found = hosts.there.output_excerpts.excerpt(run.run_id)
        return found is not None and found.size == run.log.stat().st_size and '"files"' not in found.details

    wait_until(is_reported, "the excerpt", 60)


@pytest.mark.parametrize("state", ["suspected", "fenced", "left", "active"])
def test_what_a_host_last_reported_is_shown_when_it_does_not_answer(hosts: TwoHosts, state: str) -> None:
    run = hosts.run(output=b"the output\nof it\n")
    (run.folder / "work" / "made.txt").touch()
    run.end()
    reported(hosts, run)
    hosts.stop()
    hosts.set_state(state)
    told: list[str] = []
    assert shown(hosts, run, tell=told.append) == b"the output\nof it\n"
    verb = "has left" if state == "left" else "does not answer"
    assert len(told) == 1 and told[0].startswith(f"Host host {THERE} {verb}; this is what it last reported at 20")
    assert hosts.here.runs.tail(run.entry, 1) == b"of it\n" and hosts.here.runs.read(run.entry, most=100).note == told[0]
    inspection = hosts.here.runs.inspect(run.entry)
    assert inspection.note == told[0] and inspection.artifacts == ("made.txt",)


def test_the_beginning_and_the_end_of_a_long_log_are_reported(hosts: TwoHosts) -> None:
    lines = b"".join(b"line %d\n" % n for n in range(100_000))
    run = hosts.run(output=lines)
    run.end()
    reported(hosts, run)
    hosts.stop()
    hosts.set_state("left")
    found = shown(hosts, run)
    head, tail = HEAD_BYTES - len(HEADER), TAIL_BYTES
    missing = len(lines) - head - tail
    assert found == lines[:head] + f"\n[backburner: {missing:,} bytes of output left out here]\n".encode() + lines[-tail:]
    assert b"".join(run.follow()) == found


def test_output_of_a_running_command_is_reported(hosts: TwoHosts) -> None:
    run = hosts.run(output=b"50% done\n")
    (run.folder / "work" / "progress.jsonl").write_text('{"fraction": 0.5, "text": "half"}\n')
    reported(hosts, run)
    progress = hosts.here.runs.progress(run.entry)
    assert progress and "half" in progress.text


def test_a_host_without_a_report_has_none(hosts: TwoHosts) -> None:
    hosts.stop()
    run = hosts.run(output=b"never reported\n")
    hosts.set_state("suspected")
    told: list[str] = []
    assert shown(hosts, run, tell=told.append) == b""
    assert told == [f"Host host {THERE} does not answer, and has reported no output of {run.run_id}."]


def test_what_was_reported_is_shown_when_a_followed_run_is_lost_with_its_host(hosts: TwoHosts) -> None:
    run = hosts.run(output=b"begun\n")
    follower = Follower(run)
    follower.until(6)
    run.write(b"last words\n")
    reported(hosts, run)
    hosts.stop()
    hosts.set_state("suspected")
    run.end()
    assert follower.rest() == b"begun\nlast words\n"


def test_nothing_is_reported_where_no_other_host_is(hosts: TwoHosts) -> None:
    hosts.stop()
    hosts.there.database.write("DELETE FROM hosts WHERE host_id <> ?", (THERE,))
    run = hosts.run(output=b"alone\n")
    run.end()
    from backburner.engine.excerpts import ExcerptReporter
    from backburner.services.app import now_ms

    assert not ExcerptReporter(hosts.there.output_excerpts, hosts.there_home, now_ms).report()
    assert hosts.there.output_excerpts.excerpt(run.run_id) is None


# -- files


def test_files_are_listed_and_read(hosts: TwoHosts) -> None:
    run, content = hosts.run(), os.urandom(1 << 20) * 20
    work = run.folder / "work"
    (work / "sub").mkdir()
    (work / "sub" / "large.bin").write_bytes(content)
    (work / "empty").touch()
    assert run.entry.run
    assert [(file.name, file.size) for file in hosts.here.runs.files(run.entry.run)] == [("empty", 0), ("sub/large.bin", len(content))]
    file, pieces = hosts.here.runs.read_file(run.entry.run, "sub/large.bin")
    assert file.size == len(content) and b"".join(pieces) == content
    assert b"".join(hosts.here.runs.read_file(run.entry.run, "empty")[1]) == b""


@pytest.mark.parametrize("name", ["../../secret", "../output.log", "link", "folder/secret", "/etc/passwd", "", "a\nb/../x", ".hidden"])
def test_no_file_outside_of_the_folder_is_read(hosts: TwoHosts, name: str, tmp_path: Path) -> None:
    run = hosts.run()
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_text("secret")
    (hosts_secret := Path(hosts.there_home.root) / "tasks" / "secret").write_text("secret")
    work = run.folder / "work"
    (work / "link").symlink_to(outside / "secret")
    (work / "folder").symlink_to(outside)
    (work / ".hidden").write_text("secret")
    assert run.entry.run and hosts_secret.exists()
    with pytest.raises(BadInput, match="has no file"):
        hosts.here.runs.read_file(run.entry.run, name)


def test_a_file_with_an_unusual_name_is_read_by_its_shown_name(hosts: TwoHosts) -> None:
    run = hosts.run()
    for name in (b"two\nlines", b"not \xff utf-8", "日本".encode()):
        Path(os.fsdecode(bytes(run.folder / "work") + b"/" + name)).write_bytes(name)
    assert run.entry.run
    found = {}
    for file in hosts.here.runs.files(run.entry.run):
        assert "\n" not in file.name
        found[file.name] = b"".join(hosts.here.runs.read_file(run.entry.run, file.name)[1])
    assert sorted(found.values()) == sorted((b"two\nlines", b"not \xff utf-8", "日本".encode()))
    assert b"".join(hosts.here.runs.read_file(run.entry.run, "two\nlines")[1]) == b"two\nlines"


def test_a_file_that_is_too_large_is_refused(hosts: TwoHosts) -> None:
    run = hosts.run()
    with open(run.folder / "work" / "huge", "wb") as file:
        file.truncate(MAX_FILE_BYTES + 1)
    assert run.entry.run
    with pytest.raises(BadInput, match="larger than 256 MiB"):
        hosts.here.runs.read_file(run.entry.run, "huge")


def test_a_file_that_changes_meanwhile_is_not_mixed(hosts: TwoHosts) -> None:
    run = hosts.run()
    path = run.folder / "work" / "file"
    path.write_bytes(b"a" * (20 << 20))
    assert run.entry.run
    pieces = hosts.here.runs.read_file(run.entry.run, "file")[1]
    assert next(pieces) == b"a" * (1 << 20)
    path.write_bytes(b"b" * (21 << 20))
    with pytest.raises(BadInput, match="changed while it was read"):
        b"".join(pieces)


def test_files_of_a_host_that_does_not_answer_cannot_be_read(hosts: TwoHosts) -> None:
    run = hosts.run()
    hosts.stop()
    hosts.set_state("suspected")
    assert run.entry.run
    with pytest.raises(HostUnreachable, match=f"Host host {THERE} does not answer"):
        hosts.here.runs.files(run.entry.run)


# -- input


def caller() -> Caller:
    return Caller(via="cli", cwd="/p", environ={})


def remote(hosts: TwoHosts, run: Running) -> RemoteRun:
    found = hosts.here.runs.remote(run.run_id)
    assert found
    return found


def test_input_is_written_once(hosts: TwoHosts) -> None:
    run = hosts.run()
    hosts.there.runs.record_process(run.run_id, OWNER, OWNER)
    for name in (INPUT, INPUT_END):
        os.mkfifo(run.folder / name)
    reader, ended = (os.open(run.folder / name, os.O_RDONLY | os.O_NONBLOCK) for name in (INPUT, INPUT_END))
    remote(hosts, run).send(b"yes\n", end=False)
    assert os.read(reader, 100) == b"yes\n" and not os.read(ended, 1)
    remote(hosts, run).send(b"", end=True)
    assert os.read(ended, 100) == b"\n"
    os.close(reader)
    os.close(ended)
    with pytest.raises(BadInput, match="has closed its input"):
        remote(hosts, run).send(b"again\n", end=False)


def test_input_for_a_host_that_does_not_answer_is_not_written_later(hosts: TwoHosts) -> None:
    run = hosts.run()
    hosts.stop()
    with pytest.raises(HostUnreachable, match="0 bytes were sent"):
        remote(hosts, run).send(b"yes\n", end=False)
    assert hosts.there.database.execute("SELECT request_id FROM host_requests") == []


def test_input_whose_writer_is_gone_for_long_is_not_written(hosts: TwoHosts) -> None:
    run = hosts.run()
    os.mkfifo(run.folder / INPUT)
    reader = os.open(run.folder / INPUT, os.O_RDONLY | os.O_NONBLOCK)
    request = hosts.there.host_requests.ask(THERE, run.run_id, "input", 0, 1, body=b"old\n")
    wait_until(lambda: [answer.error for answer in hosts.there.host_requests.take_parts(request)], "the answer", 60)
    assert os.read(reader, 100) == b""
    os.close(reader)


# -- folders


def test_the_folder_of_a_task_that_was_cleared_elsewhere_is_deleted_on_its_host(hosts: TwoHosts) -> None:
    run = hosts.run(output=b"x")
    other = hosts.run("task_y", output=b"x")
    run.end()
    hosts.here.tasks.clear([run.task_id], caller())

    def is_deleted() -> bool:
        assert hosts.server
        hosts.server.tick()
        return not run.folder.exists() and hosts.there.output_excerpts.folders_to_delete() == []

    wait_until(is_deleted, "the folder to be deleted", 60)
    assert other.folder.exists()


@pytest.mark.parametrize("folder", ["..", "tasks", "tasks/..", "tasks/../..", "/etc", "config.toml", "tasks/", "worktrees/x"])
def test_only_folders_of_runs_are_deleted(folder: str) -> None:
    from backburner.engine.host_requests import is_run_folder

    assert not is_run_folder(folder) and is_run_folder("tasks/task_20260101_000000_abc")
