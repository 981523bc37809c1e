"""A config.toml that cannot be used: what reads or cancels still works, and nothing starts until it is valid again."""

import re
import signal

import pytest
from conftest import CONFIG, HomeCli, wait_until

from backburner.system import processes

BROKEN = ("[commands\nmax_concurrent = 5\n", "[commands]\nmax_concurent = 5\n", "[commands]\nmax_concurrent = 0\n")


@pytest.mark.parametrize("text", BROKEN)
def test_reading_and_cancelling_go_by_the_defaults_with_one_warning(home_cli: HomeCli, text: str) -> None:
    ended = home_cli.finish("echo", "hello")["task_id"]
    task_id = home_cli.run("sleep", "1000")
    wait_until(lambda: home_cli.status(task_id)["pid"], "it to run")
    home_cli.configure(text)
    for words in (["list"], ["status", task_id], ["logs", str(ended)], ["wait", str(ended)], ["inbox"], ["events"], ["cancel", task_id]):
        done = home_cli.cli(*words)
        assert done.returncode == 0, (words, done.stderr)
        warnings = [line for line in done.stderr.splitlines() if "Warning" in line]
        assert len(warnings) == 1 and str(home_cli.root / "config.toml") in warnings[0]
        assert re.search(r"[^.?][.?] The default settings are used\.$", warnings[0]), warnings
    refused = home_cli.cli("run", "--", "true")
    assert refused.returncode == 2 and "config.toml" in refused.stderr


def test_an_engine_that_starts_with_invalid_settings_records_ends_and_waits_for_valid_ones(home_cli: HomeCli) -> None:
    gate = home_cli.cwd / "gate"
    home_cli.configure(f"{CONFIG}[commands]\nmax_concurrent = 1\n")
    first = home_cli.run(f"while [ ! -e {gate} ]; do sleep 0.02; done; exit 7", options=("--shell",))
    second = home_cli.run("echo", "second")
    home_cli.ok("add", "tick", "--every", "1s", "--", "true")
    wait_until(lambda: home_cli.status(first)["pid"], "the first to run")
    for keeper in home_cli.processes("backburner-keeper"):
        processes.send(keeper, signal.SIGKILL)
    home_cli.kill_engine()
    home_cli.configure(BROKEN[0])
    gate.touch()
    home_cli.cli("wait", first)
    assert home_cli.status(first)["exit_code"] == 7
    assert home_cli.status(second)["status"] == "pending" and "valid settings" in str(home_cli.status(second)["waits_for"])
    engine = home_cli.engine
    assert engine
    home_cli.configure(CONFIG)
    home_cli.ok("wait", second)
    assert home_cli.engine == engine
    wait_until(lambda: home_cli.status("tick")["run_count"], "the schedule to continue")
    home_cli.ok("cancel", "tick")
