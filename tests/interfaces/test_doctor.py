"""`doctor` reports the problems of damaged homes and changes nothing."""

import os
import random
import subprocess
from pathlib import Path
from types import SimpleNamespace

import apsw
import pytest

from backburner.core.claims import RunResult
from backburner.core.models import ENGINE, Approval, ProcessId
from backburner.core.states import Result, RunState
from backburner.interfaces.cli import doctor
from backburner.interfaces.cli.doctor import Finding, examine
from backburner.store.ledger import open_ledger
from backburner.system import run_files
from backburner.system.home import Home
from backburner.system.processes import TAG_VARIABLE, engine_of, myself
from backburner.testing.records import request


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(str(tmp_path / "home")).make()


def fill(home: Home, *, owner: ProcessId | None = None, end: bool = True, count: int = 1) -> list[str]:
    """Store tasks like a real run does; return their IDs."""
    owner = owner or myself()
    ledger = open_ledger(home.ledger)
    for _ in range(count):
        approval = Approval("auto", "gate", 1)
        submission = request(("true",), "/tmp", {"LONG": "x" * 500})
        options = {"project": "/tmp", "reasons": (), "folder": "tasks", "now": 1, "expires_at": None}
        ledger.tasks.submit(submission, wanted_id="task_x", approval=approval, runner=ENGINE, **options)
    claimed = ledger.runs.claim(ENGINE, owner, count, 2)
    if end:
        ledger.runs.settle([RunResult(work.run.run_id, RunState.COMPLETED, Result.EXIT, 3, 0) for work in claimed], owner)
    for entry in ledger.queries.list():
        assert entry.run
        run_files.write_metadata(home.folder(entry.run.folder), entry.task, entry.run)
    ledger.close()
    return [work.task.task_id for work in claimed]


def problems(home: Home, environ: dict[str, str] | None = None) -> list[Finding]:
    return [finding for finding in examine(home.root, environ or {}, {}) if not finding.ok]


def single(findings: list[Finding]) -> Finding:
    (finding,) = findings
    assert finding.fix
    return finding


def test_a_healthy_home_has_no_problems(home: Home) -> None:
    fill(home, count=3)
    assert problems(home) == []


def test_a_readable_config_file_with_a_token_is_reported(home: Home) -> None:
    config = Path(home.config)
    config.write_text('[channels.team]\ntype = "webhook"\nurl = "https://example.com/in"\nsecret = "s"\n')
    config.chmod(0o644)
    finding = single(problems(home))
    assert "contains secrets and can be read by other users" in finding.what and finding.fix == f"chmod 600 {home.config}"
    config.chmod(0o600)
    assert problems(home) == []
    config.write_text("[tasks]\nmax_active = 30\n")
    config.chmod(0o644)
    assert problems(home) == []


@pytest.mark.parametrize(
    ("settings", "ok", "expected"),
    [
        ('type = "webhook"\nurl = "https://example.com/in"', True, "channel team (webhook): its settings are valid (nothing was sent)"),
        ('type = "webhook"\nurl = "example.com"', False, "is not an http:// or https:// address"),
        ('type = "webhook"\nurl = "https://example.com"\nsecret_env = "NOT_SET"', False, "environment variable NOT_SET is not set"),
        ('type = "apprise"\nurl = "nothing"', False, "it names no service or is incomplete"),
        ('type = "discord"\ntarget = "1"', False, "no token: put the token of your Discord bot into"),
    ],
)
def test_the_settings_of_a_channel_are_checked_before_the_first_notice(home: Home, settings: str, ok: bool, expected: str) -> None:
    Path(home.config).write_text(f"[channels.team]\n{settings}\n")
    (finding,) = [finding for finding in examine(home.root, {}, {}) if finding.what.startswith("channel team")]
    assert finding.ok is ok and expected in finding.what and (ok or "[channels.team]" in finding.fix)


def test_a_home_that_does_not_exist_is_fine_and_not_created(tmp_path: Path) -> None:
    (finding,) = examine(str(tmp_path / "none"), {}, {})
    assert finding.ok and "does not exist yet" in finding.what
    assert os.listdir(tmp_path) == []


def test_a_home_that_is_a_file_is_reported(tmp_path: Path) -> None:
    (tmp_path / "home").write_text("")
    finding = single(problems(Home(str(tmp_path / "home"))))
    assert "does not exist" not in finding.what


def test_a_home_readable_by_others_is_reported_with_the_fix(home: Home) -> None:
    os.chmod(home.root, 0o755)
    finding = single(problems(home))
    assert finding == (False, f"home {home.root} can be read by other users", f"chmod 700 {home.root}")


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a folder away")
def test_a_home_of_another_user_is_reported(home: Home) -> None:
    os.chown(home.root, 12345, 12345)
    assert "belongs to another user" in single(problems(home)).what


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[commands]\nmax_concurrent = 'x'\n", "line 2: 'commands.max_concurrent' must be a whole number, not 'x'"),
        ("[comands]\n", "line 1: unknown section 'comands'"),
        ("[commands\n", "line 1: not valid TOML"),
    ],
)
def test_invalid_settings_are_reported_with_their_line(home: Home, text: str, expected: str) -> None:
    Path(home.config).write_text(text)
    finding = single(problems(home))
    assert expected in finding.what


def test_settings_that_are_not_text_are_reported(home: Home) -> None:
    Path(home.config).write_bytes(b"\xff\xfe\x00")
    assert home.config in single(problems(home)).what


def test_an_invalid_variable_is_reported_without_naming_the_file(home: Home) -> None:
    finding = single(problems(home, {"BACKBURNER_COMMANDS_MAX_CONCURRENT": "x"}))
    assert "BACKBURNER_COMMANDS_MAX_CONCURRENT" in finding.what
    assert home.config not in finding.fix


def test_a_ledger_of_random_bytes_is_reported_and_not_changed(home: Home) -> None:
    noise = random.Random(1).randbytes(20_000)
    Path(home.ledger).write_bytes(noise)
    finding = single(problems(home))
    assert "damaged" in finding.what and f"mkdir {home.root}/damaged && mv {home.ledger} " in finding.fix
    assert Path(home.ledger).read_bytes() == noise


def test_a_damaged_ledger_is_moved_away_with_its_write_ahead_log(home: Home) -> None:
    """The write-ahead log may contain data that can be recovered, and it would damage a new ledger."""
    fill(home, count=4)
    ledger = open_ledger(home.ledger)
    ledger.checkpoint()
    ledger.close()
    fill(home)
    whole, log = Path(home.ledger).read_bytes(), Path(home.ledger + "-wal").read_bytes()
    assert log
    for number, folder in enumerate(("damaged", "damaged-2")):
        Path(home.ledger).write_bytes(random.Random(number).randbytes(20_000))
        Path(home.ledger + "-wal").write_bytes(log)
        advice = single([finding for finding in problems(home) if "ledger" in finding.what]).fix
        subprocess.run(["sh", "-ec", advice.partition("move it to another folder: ")[2].partition(" (the output")[0]], check=True)
        assert [name for name in os.listdir(home.root) if name.startswith("ledger")] == []
        moved = Path(home.root, folder)
        assert (moved / "ledger.db-wal").read_bytes() == log
    (moved / "ledger.db").write_bytes(whole)
    ledger = open_ledger(str(moved / "ledger.db"))
    assert len(ledger.queries.list(status=None, project=None, limit=None)) == 5, "nothing of it was lost"
    ledger.close()
    assert len(fill(home)) == 1


def test_a_ledger_with_damaged_pages_is_reported(home: Home) -> None:
    fill(home, count=50)
    db = apsw.Connection(home.ledger)
    db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    db.close()
    whole = Path(home.ledger).read_bytes()
    chance = random.Random(1)
    for page in range(1, len(whole) // 4096):
        damaged = bytearray(whole)
        damaged[page * 4096 : (page + 1) * 4096] = chance.randbytes(4096)
        Path(home.ledger).write_bytes(damaged)
        found = problems(home)
        assert found and home.ledger in found[0].what, f"page {page}"


def test_a_ledger_of_a_newer_version_is_reported_and_not_changed(home: Home) -> None:
    fill(home)
    db = apsw.Connection(home.ledger)
    db.execute("PRAGMA user_version = 999")
    db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    db.close()
    before = Path(home.ledger).read_bytes()
    finding = single(problems(home))
    assert "schema 999" in finding.what and finding.fix == "upgrade Backburner"
    assert Path(home.ledger).read_bytes() == before


def test_a_folder_that_is_not_in_the_ledger_is_reported_and_not_changed(home: Home) -> None:
    fill(home)
    strange = Path(home.root, "tasks", "task_of_somebody")
    strange.mkdir()
    finding = single(problems(home))
    assert finding == (False, f"{strange}: not in the ledger; ignored", f"inspect it, then run: rm -r {strange}")
    assert strange.is_dir()


def test_damaged_metadata_of_a_known_task_is_reported(home: Home) -> None:
    (task_id,) = fill(home)
    path = Path(home.root, "tasks", task_id, "metadata.json")
    path.write_text('{"task_id": ')
    finding = single(problems(home))
    assert finding.what == f"{path}: damaged or missing"
    assert path.read_text() == '{"task_id": '


def test_a_missing_folder_of_a_known_task_is_reported(home: Home) -> None:
    (task_id,) = fill(home)
    run_files.remove(os.path.join(home.root, "tasks", task_id))
    finding = single(problems(home))
    assert "its output is lost" in finding.what and finding.fix == f"backburner clear {task_id}"


def test_foreign_files_are_reported_up_to_ten_and_the_rest_is_counted(home: Home) -> None:
    fill(home)
    for number in range(12):
        Path(home.root, "tasks", f"file{number}").touch()
    found = problems(home)
    assert len(found) == 11 and "file0: not in the ledger" in found[0].what and found[-1].what.startswith("2 more problems")


def test_a_memory_limit_that_the_machine_cannot_meet_is_reported(home: Home) -> None:
    Path(home.config).write_text("[commands]\nmin_free_memory_mb = 1000000\n")
    finding = single(problems(home))
    assert "no command can start" in finding.what and "config.toml, line 2" in finding.fix


def test_a_run_whose_owner_has_died_is_reported(home: Home) -> None:
    (task_id,) = fill(home, owner=myself()._replace(started="1"), end=False)
    finding = single(problems(home))
    assert finding.what == f"runs without an owner: {task_id}"


def test_a_run_with_a_living_owner_and_a_process_is_fine(home: Home) -> None:
    (task_id,) = fill(home, end=False)
    ledger = open_ledger(home.ledger)
    ledger.runs.record_process(task_id, myself(), myself())
    (run,) = ledger.live_work.live_runs()
    ledger.close()
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, env={"PATH": os.defpath, TAG_VARIABLE: run.process_tag}):
        assert problems(home) == []


def test_a_running_run_without_a_process_is_reported(home: Home) -> None:
    (task_id,) = fill(home, end=False)
    assert single(problems(home)).what == f"running without a process: {task_id}"


@pytest.mark.parametrize("full", [{"f_bavail": 0}, {"f_favail": 0}], ids=["space", "inodes"])
def test_on_a_full_disk_the_fix_is_to_free_space_first(home: Home, monkeypatch: pytest.MonkeyPatch, full: dict[str, int]) -> None:
    fill(home, end=False)
    assert single(problems(home)).fix.startswith("run: backburner run -- true")
    real = os.statvfs(home.root)
    names = [name for name in dir(real) if name.startswith("f_")]
    values = SimpleNamespace(**{**{name: getattr(real, name) for name in names}, "f_files": 9, **full})
    monkeypatch.setattr(os, "statvfs", lambda path: values)
    fixes = [finding.fix for finding in problems(home) if "without a process" in finding.what]
    assert fixes == [
        "free disk space first, then run: backburner run -- true, so that the engine checks them; if they remain: backburner cancel ID"
    ]


def test_a_suggested_command_is_quoted_for_the_shell(tmp_path: Path) -> None:
    home = Home(str(tmp_path / "my home; $x")).make()
    os.chmod(home.root, 0o755)
    assert single(problems(home)).fix == f"chmod 700 '{home.root}'"


@pytest.mark.parametrize("content", ["", "what?", "1:2", f"{myself()._replace(started='1')}"], ids=["empty", "words", "short", "stale"])
def test_a_lock_file_without_a_living_engine_means_no_engine(home: Home, content: str) -> None:
    Path(home.engine_lock).write_text(content)
    assert engine_of(home) is None


def test_the_engine_is_the_process_in_the_lock_file(home: Home) -> None:
    Path(home.engine_lock).write_text(f"{myself()}\n")
    assert engine_of(home) == myself()


def test_trace_export_without_its_libraries_is_reported(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    Path(home.config).write_text('[telemetry]\notlp_endpoint = "http://127.0.0.1:1"\n')
    assert Finding(True, "traces: exported to http://127.0.0.1:1") in examine(home.root, {}, {})
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert "pip install 'backburner[telemetry]'" in [finding.fix for finding in examine(home.root, {}, {})]


def test_sizes_are_shown_by_kind(home: Home) -> None:
    (task_id,) = fill(home)
    (Path(home.root) / "tasks" / task_id / "output.log").write_bytes(b"x" * (3 << 20))
    (sizes,) = [finding.what for finding in examine(home.root, {}, {}) if finding.what.startswith("size: ")]
    assert "ledger " in sizes and "tasks 3.0 MiB" in sizes


def test_in_a_large_home_the_newest_runs_are_checked(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_MAX_FOLDERS", 3)
    task_ids = fill(home, count=8)
    assert problems(home) == []
    (checked,) = [finding.what for finding in examine(home.root, {}, {}) if finding.what.startswith("task folders: ")]
    assert int(checked.split()[2].strip(",")) <= 6 and checked.endswith("the newest were checked, for all: backburner doctor --full")
    (Path(home.root) / "tasks" / task_ids[-1] / "metadata.json").unlink()
    (Path(home.root) / "tasks" / task_ids[0] / "metadata.json").unlink()
    assert len([finding for finding in examine(home.root, {}, {}, full=True) if not finding.ok]) == 2
