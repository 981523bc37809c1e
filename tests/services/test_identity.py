"""Who may say yes, and to what: nothing that we run, nobody who only has the right word, and nobody to what they were not shown."""

import os
import resource
import shutil
import subprocess
import sys

import pytest
from conftest import Place, caller, wait_until

from backburner import NotAPerson
from backburner.services.app import open_app
from backburner.system import processes as process

ME = f"{sys.executable} -m backburner"
ESCAPES = {
    "plain": "{call}",
    "without its environment": "env -i {kept} {call}",
    "in a session of its own": "setsid -f env -i {kept} {call}",
    "forked twice": "(env -i {kept} setsid sh -c '{call} &' &)",
    "with a lower limit": "ulimit -w 7 || ulimit -x 7; setsid -f env -i {kept} {call}",
    "with a terminal": "setsid -f env -i {kept} script -qec '{call}' /dev/null </dev/null",
}
on_linux = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has a limit of file locks")


def _proposal(place: Place) -> str:
    return place.cli("run", "--", "install", "-d", "made").stdout.strip()


@on_linux
@pytest.mark.parametrize("way", ESCAPES)
def test_nothing_that_a_run_starts_can_say_yes_whatever_it_sheds(place: Place, way: str) -> None:
    if "script" in ESCAPES[way] and not shutil.which("script"):
        pytest.skip("needs `script` of util-linux")
    proposal, answer = _proposal(place), place.cwd / "answer"
    (place.cwd / "call.sh").write_text(f"{ME} approve {proposal} >{answer}.new 2>&1; echo $? >>{answer}.new; mv {answer}.new {answer}\n")
    kept = " ".join(f"{name}={place.environ[name]}" for name in ("PATH", "HOME", "BACKBURNER_HOME"))
    line = ESCAPES[way].format(kept=kept, call=f"sh {place.cwd}/call.sh")
    task_id = place.run(line, options=("--shell",))
    wait_until(answer.exists, "the answer to be refused")
    assert answer.read_text().splitlines()[-1] == "3" and "Only a person can approve" in answer.read_text()
    assert place.status(proposal)["status"] == "proposed"
    place.cli("wait", task_id)


@on_linux
def test_a_run_its_children_and_the_engine_carry_the_mark_and_whoever_asks_does_not(place: Place) -> None:
    show = f"import resource; print(resource.getrlimit(10)[1] == {process.INSIDE})"
    task_id = str(place.finish("setsid", "env", "-i", sys.executable, "-c", show)["task_id"])
    assert place.log(task_id) == b"True\n"
    assert place.engine is not None
    assert resource.prlimit(place.engine.pid, 10)[1] == process.INSIDE
    assert resource.getrlimit(10)[1] != process.INSIDE and not process.is_inside()


@on_linux
def test_an_engine_that_a_run_has_started_works_and_is_marked_too(place: Place) -> None:
    inner = Place(place.root.parent / "inner", place.cwd)
    task_id = str(place.finish(f"{ME} --home {inner.root} run --wait -- echo within", options=("--shell",))["task_id"])
    assert b"within" in place.log(task_id)
    wait_until(lambda: inner.engine, "the inner engine")
    assert inner.engine and resource.prlimit(inner.engine.pid, 10)[1] == process.INSIDE
    inner.stop_engine()


@on_linux
@pytest.mark.parametrize("shell", ["dash", "bash"])
def test_an_ordinary_user_cannot_take_the_mark_off(shell: str) -> None:
    if not shutil.which(shell):
        pytest.skip(f"needs {shell}")
    drop = ["setpriv", "--reuid", "65534", "--clear-groups"] if os.getuid() == 0 else []
    if drop and not shutil.which("setpriv"):
        pytest.skip("needs setpriv")
    letter = {"dash": "w", "bash": "x"}[shell]
    line = (
        f"ulimit -w {process.INSIDE} 2>/dev/null || ulimit -x {process.INSIDE}; ulimit -H{letter} unlimited 2>/dev/null; ulimit -H{letter}"
    )
    done = subprocess.run([*drop, shell, "-c", line], capture_output=True, text=True, timeout=20)
    assert done.stdout.split() == [str(process.INSIDE)], done


@pytest.mark.parametrize("via", ["channel:chat:9", "channel:", "to:chat", "tool", "cli"])
def test_no_word_about_where_a_yes_comes_from_makes_it_a_person_s(place: Place, via: str) -> None:
    """Only what the integrations process hears from a channel counts as a person's, and that is no word but a call of its own."""
    place.configure("")
    proposal = _proposal(place)
    with open_app(str(place.root), {**place.environ, "CLAUDECODE": "1"}) as app:
        for said in (
            lambda: app.approvals.approve(proposal, caller(app)._replace(via=via)),
            lambda: app.approvals.trust_project(str(place.cwd), caller(app)._replace(via=via)),
            lambda: app.identity.require_person(caller(app)._replace(via=via)),
        ):
            with pytest.raises(NotAPerson):
                said()
    assert place.status(proposal)["status"] == "proposed"


@pytest.mark.parametrize(("env", "taken"), [({}, True), ({"CLAUDECODE": "1"}, False), ({"BACKBURNER_TASK_ID": "task_x"}, False)])
def test_a_program_gives_its_word_through_the_library_without_a_terminal_but_not_from_inside(
    place: Place, env: dict[str, str], taken: bool
) -> None:
    """The command line is refused where there is no terminal; a program that embeds the library is not."""
    place.configure("")
    proposal = _proposal(place)
    refused = place.cli("approve", proposal, start_new_session=True)
    assert refused.returncode == 3 and "approval needs a terminal" in refused.stderr
    line = f"from backburner import BackburnerSync\nwith BackburnerSync.open({str(place.root)!r}) as bb: bb.approve({proposal!r})"
    done = subprocess.run(
        [sys.executable, "-c", line], env={**place.environ, **env}, start_new_session=True, capture_output=True, text=True, timeout=40
    )
    assert (done.returncode == 0) == taken and ("NotAPerson" in done.stderr) == (not taken), done.stderr
    assert (place.status(proposal)["status"] == "proposed") == (not taken)
