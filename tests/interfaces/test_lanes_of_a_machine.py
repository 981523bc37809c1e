"""Lanes of one machine, with a ledger file: each has its own limit of commands that run at the same time."""

from conftest import CONFIG, HomeCli, wait_until

WAIT = 60.0
LANES = "\n[commands]\nmax_concurrent = 1\n[lanes.gpu]\nmax_concurrent = 1\n"


def test_each_lane_has_its_own_limit(home_cli: HomeCli) -> None:
    home_cli.configure(CONFIG + LANES)
    script = "until [ -e go ]; do sleep 0.05; done"
    usual = [home_cli.run("sh", "-c", script) for _ in range(2)]
    in_lane = [home_cli.run("sh", "-c", script, options=("--lane", "gpu")) for _ in range(2)]

    def running() -> list[str]:
        return [task_id for task_id in (*usual, *in_lane) if home_cli.status(task_id)["status"] == "running"]

    wait_until(lambda: running() == [usual[0], in_lane[0]], "one command of each kind to run", WAIT)
    (home_cli.cwd / "go").touch()
    for task_id in (*usual, *in_lane):
        home_cli.ok("wait", task_id, "--timeout", "60")


def test_a_command_of_a_lane_survives_that_the_engine_is_killed(home_cli: HomeCli) -> None:
    home_cli.configure(CONFIG + LANES)
    task_id = home_cli.run("sh", "-c", "until [ -e go ]; do sleep 0.05; done; exit 7", options=("--lane", "gpu"))
    wait_until(lambda: home_cli.status(task_id)["pid"], "the command to run", WAIT)
    home_cli.kill_engine()
    (home_cli.cwd / "go").touch()
    wait_until(lambda: home_cli.status(task_id)["status"] == "failed", "the end to be recorded", WAIT)
    assert home_cli.status(task_id)["exit_code"] == 7


def test_a_lane_that_is_removed_from_the_settings_waits_until_it_is_back(home_cli: HomeCli) -> None:
    home_cli.configure(CONFIG + LANES)
    blocking = home_cli.run("sh", "-c", "until [ -e go ]; do sleep 0.05; done", options=("--lane", "gpu"))
    waiting = home_cli.run("true", options=("--lane", "gpu"))
    wait_until(lambda: home_cli.status(blocking)["status"] == "running", "the first command to run", WAIT)
    home_cli.configure(CONFIG)
    assert home_cli.cli("run", "--lane", "gpu", "--", "true").returncode == 2
    home_cli.finish("true")  # which the engine runs with the new settings
    (home_cli.cwd / "go").touch()
    home_cli.ok("wait", blocking)
    assert home_cli.status(waiting)["status"] == "pending"
    home_cli.configure(CONFIG + LANES)
    home_cli.finish("true")
    wait_until(lambda: home_cli.status(waiting)["status"] == "completed", "the lane to be served again", WAIT)
