"""Who may approve: no process that Backburner started, and no caller that only claims to be a person."""

import os
import resource
import shutil
import subprocess
import sys

import pytest
from conftest import CAUTIOUS, HomeCli, caller, wait_until

from backburner import NotAPerson
from backburner.services.app import open_app
from backburner.system import processes

ME = f"{sys.executable} -m backburner"
ESCAPES = {
    "plain": "{call}",
    "without its environment": "env -i {kept} {call}",
    "in a session of its own": "setsid -f env -i {kept} {call}",
    "forked twice": "(env -i {kept} setsid sh -c '{call} &' &)",
    "with a lower limit": "ulimit -w 7 || ulimit -x 7; setsid -f env -i {kept} {call}",
    "with a terminal": "setsid -f env -i {kept} script -qec '{call}' /dev/null </dev/null",
}
on_linux = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has a file-lock limit")


def _propose_command(home_cli: HomeCli) -> str:
    return home_cli.cli("run", "--", "install", "-d", "made").stdout.strip()


@on_linux
@pytest.mark.parametrize("escape", ESCAPES)
def test_no_process_started_by_a_run_can_approve(home_cli: HomeCli, escape: str) -> None:
    if "script" in ESCAPES[escape] and not shutil.which("script"):
        pytest.skip("needs `script` of util-linux")
    proposal, answer = _propose_command(home_cli), home_cli.cwd / "answer"
    (home_cli.cwd / "call.sh").write_text(f"{ME} approve {proposal} >{answer}.new 2>&1; echo $? >>{answer}.new; mv {answer}.new {answer}\n")
    kept = " ".join(f"{name}={home_cli.environ[name]}" for name in ("PATH", "HOME", "BACKBURNER_HOME"))
    line = ESCAPES[escape].format(kept=kept, call=f"sh {home_cli.cwd}/call.sh")
    task_id = home_cli.run(line, options=("--shell",))
    wait_until(answer.exists, "the approval to be refused")
    assert answer.read_text().splitlines()[-1] == "3" and "Only a person can approve" in answer.read_text()
    assert home_cli.status(proposal)["status"] == "proposed"
    home_cli.cli("wait", task_id)


@on_linux
def test_runs_and_the_engine_have_the_lowered_limit_and_the_caller_has_not(home_cli: HomeCli) -> None:
    show = f"import resource; print(resource.getrlimit(10)[1] == {processes.INSIDE})"
    task_id = str(home_cli.finish("setsid", "env", "-i", sys.executable, "-c", show)["task_id"])
    assert home_cli.log(task_id) == b"True\n"
    assert home_cli.engine is not None
    assert resource.prlimit(home_cli.engine.pid, 10)[1] == processes.INSIDE
    assert resource.getrlimit(10)[1] != processes.INSIDE and not processes.is_inside()


@on_linux
def test_an_engine_started_by_a_run_works_and_has_the_lowered_limit(home_cli: HomeCli) -> None:
    inner = HomeCli(home_cli.root.parent / "inner", home_cli.cwd)
    task_id = str(home_cli.finish(f"{ME} --home {inner.root} run --wait -- echo within", options=("--shell",))["task_id"])
    assert b"within" in home_cli.log(task_id)
    wait_until(lambda: inner.engine, "the inner engine")
    assert inner.engine and resource.prlimit(inner.engine.pid, 10)[1] == processes.INSIDE
    inner.stop_engine()


@on_linux
@pytest.mark.parametrize("shell", ["dash", "bash"])
def test_an_ordinary_user_cannot_raise_the_lowered_limit(shell: str) -> None:
    if not shutil.which(shell):
        pytest.skip(f"needs {shell}")
    drop = ["setpriv", "--reuid", "65534", "--clear-groups"] if os.getuid() == 0 else []
    if drop and not shutil.which("setpriv"):
        pytest.skip("needs setpriv")
    letter = {"dash": "w", "bash": "x"}[shell]
    line = f"ulimit -w {processes.INSIDE} 2>/dev/null || ulimit -x {processes.INSIDE}; ulimit -H{letter} unlimited 2>/dev/null; ulimit -H{letter}"
    done = subprocess.run([*drop, shell, "-c", line], capture_output=True, text=True, timeout=60)
    assert done.stdout.split() == [str(processes.INSIDE)], done


@pytest.mark.parametrize("via", ["channel:chat:9", "channel:", "to:chat", "tool", "cli"])
def test_no_value_of_via_makes_the_caller_a_person(home_cli: HomeCli, via: str) -> None:
    """Answers from a channel use a separate method, so `via` alone must not be trusted."""
    home_cli.configure(CAUTIOUS)
    proposal = _propose_command(home_cli)
    with open_app(str(home_cli.root), {**home_cli.environ, "CLAUDECODE": "1"}) as app:
        for attempt in (
            lambda: app.approvals.approve(proposal, caller(app)._replace(via=via)),
            lambda: app.approvals.trust_project(str(home_cli.cwd), caller(app)._replace(via=via)),
            lambda: app.identity.require_person(caller(app)._replace(via=via)),
        ):
            with pytest.raises(NotAPerson):
                attempt()
    assert home_cli.status(proposal)["status"] == "proposed"


@pytest.mark.parametrize(("env", "accepted"), [({}, True), ({"CLAUDECODE": "1"}, False), ({"BACKBURNER_TASK_ID": "task_x"}, False)])
def test_the_library_may_approve_without_a_terminal_but_not_inside_a_task(home_cli: HomeCli, env: dict[str, str], accepted: bool) -> None:
    """Without a terminal, the command line is refused, but a program that embeds the library is not."""
    home_cli.configure(CAUTIOUS)
    proposal = _propose_command(home_cli)
    refused = home_cli.cli("approve", proposal, start_new_session=True)
    assert refused.returncode == 3 and "approval needs a terminal" in refused.stderr
    line = f"from backburner import BackburnerSync\nwith BackburnerSync.open({str(home_cli.root)!r}) as bb: bb.approve({proposal!r})"
    done = subprocess.run(
        [sys.executable, "-c", line], env={**home_cli.environ, **env}, start_new_session=True, capture_output=True, text=True, timeout=40
    )
    assert (done.returncode == 0) == accepted and ("NotAPerson" in done.stderr) == (not accepted), done.stderr
    assert (home_cli.status(proposal)["status"] == "proposed") == (not accepted)
