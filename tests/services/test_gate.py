"""The gate, used through all interfaces: what needs approval, what an approval covers, who may approve, and what is recorded."""

import json
import sys

import pytest
from conftest import Place, wait_until

from backburner import ApprovalRequired, BackburnerSync, NotAPerson, TaskRunner, TaskStorage
from backburner.testing.records import request

ME = f"{sys.executable} -m backburner"
CONFIG = "[approval]\nyes_without_terminal = true\n"


def _suspend_changed_script(place: Place) -> str:
    """Suspend a task by changing its script between approval and start; returns its id."""
    place.configure(CONFIG + "[commands]\nmax_concurrent = 1\n")
    script = place.cwd / "job.sh"
    script.write_text("echo good\n")
    blocker = place.run("sleep", "600")
    task_id = place.run("sh", "job.sh")
    script.write_text("echo evil\n")
    place.ok("cancel", blocker)
    wait_until(lambda: place.status(task_id)["status"] == "waiting", "the task to be suspended")
    return task_id


def test_check_prints_the_verdict_and_runs_nothing(place: Place) -> None:
    checked = place.cli("check", "--json", "--shell", "--", "ls; rm -rf src")
    verdict = json.loads(checked.stdout)
    assert checked.returncode == 3 and verdict["verdict"] == "ask"
    assert verdict["part"] == "rm -rf src" and verdict["rule"] == "default" and "deletes" in verdict["effects"]
    assert place.cli("check", "--", "ls").returncode == 0
    assert place.json("list") == []
    place.configure(
        CONFIG + '[[approval.rules]]\nname = "never"\ndecision = "deny"\ncommand = "rm **"\nmatch = ["rm -rf x"]\nnot_match = ["ls"]\n'
    )
    denied = place.cli("check", "--json", "--", "rm", "x")
    assert denied.returncode == 3 and (json.loads(denied.stdout)["verdict"], json.loads(denied.stdout)["rule"]) == ("deny", "never")
    assert place.cli("run", "--yes", "--", "rm", "x").returncode == 3  # --yes never overrides a deny rule


def test_a_configured_rule_applies_and_its_examples_are_checked(place: Place) -> None:
    place.configure('[[approval.rules]]\nname = "made dirs"\ndecision = "allow"\ncommand = "install -d *"\n')
    place.ok("run", "--wait", "--", "install", "-d", "made")
    assert place.status("last")["rule"] == "made dirs" and (place.cwd / "made").is_dir()
    assert place.cli("run", "--", "install", "-d", "a", "b").returncode == 3
    for wrong, why in (
        ('decision = "allow"\ncommand = "x *"\nmatch = ["y z"]', "does not match"),
        ('decision = "allow"\ncommand = "x *"\nnot_match = ["x z"]', "matches"),
        ('decision = "perhaps"\ncommand = "x"', "perhaps"),
        ('decision = "allow"\ncommand = "* x"', "must name its program"),
        ('decision = "allow"\ncolour = "red"\ncommand = "x"', "colour"),
        ('decision = "deny"', "needs a command or effects"),
    ):
        place.configure(f"[[approval.rules]]\n{wrong}\n")
        done = place.cli("list")
        assert done.returncode == 2 and why in done.stderr and "rule 1" in done.stderr, done.stderr


def test_only_a_trusted_project_runs_its_code_without_approval(place: Place) -> None:
    (place.cwd / "job.sh").write_text("echo ran\n")
    assert place.cli("run", "--", "sh", "job.sh").returncode == 3
    place.ok("trust")
    assert place.ok("run", "--wait", "--", "sh", "job.sh") == "ran\n"
    (grant,) = json.loads(place.ok("trust", "--list", "--json"))
    assert grant["project"] == str(place.cwd)
    place.ok("trust", "--revoke", str(grant["grant_id"]))
    assert place.cli("run", "--", "sh", "job.sh").returncode == 3
    assert place.cli("trust", "--revoke", "99").returncode == 2


def test_a_script_that_changes_between_approval_and_start_needs_a_new_approval(place: Place) -> None:
    task_id = _suspend_changed_script(place)
    assert "changed since it was approved" in str(place.status(task_id)["error"])
    place.ok("approve", task_id)
    place.ok("wait", task_id)
    assert place.log(task_id) == b"evil\n"


@pytest.mark.parametrize(("answer", "status"), [("reject", "failed"), ("cancel", "cancelled")])
def test_a_suspended_task_can_be_rejected_or_cancelled(place: Place, answer: str, status: str) -> None:
    task_id = _suspend_changed_script(place)
    place.ok(answer, task_id)
    assert place.status(task_id)["status"] == status and place.log(task_id) == b""


def test_an_allowed_command_is_judged_again_when_it_starts(place: Place) -> None:
    place.configure(CONFIG + "[commands]\nmax_concurrent = 1\n")
    blocker = place.run("sleep", "600")
    task_id = place.ok("run", "--shell", "--", "echo x > new.txt").strip()
    (place.cwd / "new.txt").write_text("precious")
    place.ok("cancel", blocker)
    wait_until(lambda: place.status(task_id)["status"] == "waiting", "the task to be suspended")
    assert (place.cwd / "new.txt").read_text() == "precious"
    place.ok("cancel", task_id)


def test_commands_of_an_agent_cannot_approve(place: Place) -> None:
    task_id = place.cli("run", "--", "install", "-d", "made").stdout.strip()
    for variable in ("CLAUDECODE", "GEMINI_CLI", "CODEX_THREAD_ID", "OPENCODE"):
        done = place.cli("approve", task_id, env={variable: "1"})
        assert done.returncode == 3 and "Only a person" in done.stderr
        assert place.cli("trust", env={variable: "1"}).returncode == 3
    assert place.status(task_id)["status"] == "proposed"


def test_a_task_that_removes_its_variables_is_recognised_by_its_ancestors(place: Place) -> None:
    proposal = place.cli("run", "--", "install", "-d", "made").stdout.strip()
    line = f"env -u BACKBURNER_TASK_ID -u BACKBURNER_RUN_ID -u BACKBURNER_MARK {ME} approve {proposal}; echo $?"
    done = place.finish(line, options=("--shell",))
    assert place.log(str(done["task_id"])).decode().splitlines()[-1] == "3"
    assert place.status(proposal)["status"] == "proposed"


def test_a_process_is_recognised_by_the_process_session_of_a_task(place: Place) -> None:
    proposal = place.cli("run", "--", "install", "-d", "made").stdout.strip()
    answer = place.cwd / "answer"
    kept = " ".join(f"{name}={place.environ[name]}" for name in ("PATH", "HOME", "BACKBURNER_HOME"))
    line = f"(env -i {kept} sh -c 'sleep 0.3; {ME} approve {proposal}; echo $? >{answer}' &) ; while [ ! -s {answer} ]; do sleep 0.05; done"
    place.finish(line, options=("--shell",))
    assert answer.read_text().strip() == "3" and place.status(proposal)["status"] == "proposed"


def test_the_approval_question_shows_hidden_characters(place: Place) -> None:
    from backburner.approval.policy import Decision, Verdict
    from backburner.interfaces.cli.approval_prompt import question

    text = question(request(("сat x  ",), "/p\n\x1b[2J", {}, shell=True, env={"A": "b\rc"}), Verdict(Decision.ASK, ("why",)))
    assert "сat x␠␠" in text and "U+0441" in text and "/p\\n\\x1b[2J" in text and "A=b\\rc" in text


def test_a_rejected_task_cannot_be_approved(place: Place) -> None:
    task_id = place.cli("run", "--", "install", "-d", "made").stdout.strip()
    place.ok("reject", task_id)
    done = place.cli("approve", task_id)
    assert done.returncode == 1 and done.stderr == "The task is rejected and cannot be approved.\n"


def test_the_audit_shows_who_approved_and_which_rule_applied(place: Place) -> None:
    place.ok("run", "--wait", "--", "echo", "hi")
    place.run("install", "-d", "made")
    place.ok("wait", "last")
    entries = json.loads(place.ok("audit", "--json"))
    assert [(entry["approved_by"], entry["approved_via"], entry["rule"]) for entry in entries] == [
        ("user", "cli", "default"),
        ("auto", "gate", "harmless"),
    ]
    assert "copies files over others" in place.ok("audit")
    metadata = json.loads((place.folder(entries[0]["task_id"]) / "metadata.json").read_text())
    assert metadata["rule"] == "default" and metadata["reasons"]
    assert "(rule: default;" in place.ok("logs", "--raw", entries[0]["task_id"])
    submitted = [event for event in json.loads(place.ok("events", "--json")) if event["kind"] == "task_submitted"]
    assert submitted[0]["data"]["rule"] == "harmless"


async def test_no_interface_stores_a_runnable_task_without_a_verdict(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Covers the library, the embedded runner and the command line, including a restart."""
    dangerous = ["install", "-d", "made"]
    with BackburnerSync.open(place.root) as bb:
        assert bb.submit(dangerous, cwd=place.cwd).status == "proposed"
        assert bb.submit("install -d made", cwd=place.cwd).status == "proposed"
        assert bb.submit("install -d made; ls", cwd=place.cwd, shell=True).status == "proposed"
    with pytest.raises(ApprovalRequired):
        await TaskRunner(TaskStorage(place.root / "tasks")).start_task(dangerous, str(place.cwd), "", approved_by="auto")
    proposal = place.cli("run", "--", *dangerous).stdout.strip()
    assert place.cli("restart", proposal).returncode == 3
    monkeypatch.setenv("BACKBURNER_TASK_ID", "inside")
    with pytest.raises(NotAPerson):
        await TaskRunner(TaskStorage(place.root / "tasks")).start_task(dangerous, str(place.cwd), "", approved_by="user")
    with BackburnerSync.open(place.root) as bb, pytest.raises(NotAPerson):
        bb.submit(dangerous, cwd=place.cwd, approved=True)
    assert {task["status"] for task in json.loads(place.ok("list", "--all", "--json"))} == {"proposed"}
    assert not (place.cwd / "made").exists()


def test_wait_returns_immediately_for_a_suspended_task(place: Place) -> None:
    task_id = _suspend_changed_script(place)
    done = place.cli("wait", task_id)
    assert done.returncode == 3 and "changed since it was approved" in done.stderr
    place.ok("cancel", task_id)


def test_data_that_changes_between_approval_and_start_needs_no_new_approval(place: Place) -> None:
    place.configure(CONFIG + "[commands]\nmax_concurrent = 1\n")
    log = place.cwd / "build.log"
    log.write_text("one\n")
    blocker = place.run("sleep", "600")
    task_id = place.run("rm", "build.log")
    log.write_text("one\ntwo\n")
    place.ok("cancel", blocker)
    place.ok("wait", task_id)
    assert not log.exists()
