"""The gate, used through all interfaces: what needs approval, what an approval covers, who may approve, and what is recorded."""

import json
import sys

import pytest
from conftest import CAUTIOUS, CONFIG, NO_TERMINAL, HomeCli, wait_until

from backburner import ApprovalRequired, BackburnerSync, NotAPerson, TaskRunner, TaskStorage
from backburner.testing.records import request

ME = f"{sys.executable} -m backburner"


def _suspend_changed_script(home_cli: HomeCli) -> str:
    """Suspend a task by changing its script between approval and start; returns its id."""
    home_cli.configure(CONFIG + "[commands]\nmax_concurrent = 1\n")
    script = home_cli.cwd / "job.sh"
    script.write_text("echo good\n")
    blocker = home_cli.run("sleep", "600")
    task_id = home_cli.run("sh", "job.sh")
    script.write_text("echo evil\n")
    home_cli.ok("cancel", blocker)
    wait_until(lambda: home_cli.status(task_id)["status"] == "waiting", "the task to be suspended")
    return task_id


def test_check_names_only_commands(home_cli: HomeCli) -> None:
    """A line that cannot be read as simple commands is a doubt, and no further command."""
    line = "sleep 0 & kill $!"
    shown = home_cli.cli("check", "--shell", "--", line).stdout
    assert [row for row in shown.splitlines() if "would run" in row] == ["  would run: sleep 0", "  would run: kill $!"]
    parts = json.loads(home_cli.cli("check", "--json", "--shell", "--", line).stdout)["parts"]
    assert [part["command"] for part in parts] == ["sleep 0", "kill $!"]


def test_check_prints_the_verdict_and_runs_nothing(home_cli: HomeCli) -> None:
    home_cli.configure(NO_TERMINAL)
    checked = home_cli.cli("check", "--json", "--shell", "--", "ls; rm -rf ../src")
    verdict = json.loads(checked.stdout)
    assert checked.returncode == 3 and verdict["verdict"] == "ask"
    assert verdict["part"] == "rm -rf ../src" and verdict["rule"] == "default" and "writes_outside" in verdict["effects"]
    assert home_cli.cli("check", "--", "ls").returncode == 0
    assert home_cli.json("list") == []
    home_cli.configure(
        NO_TERMINAL + '[[approval.rules]]\nname = "never"\ndecision = "deny"\ncommand = "rm **"\nmatch = ["rm -rf x"]\nnot_match = ["ls"]\n'
    )
    denied = home_cli.cli("check", "--json", "--", "rm", "x")
    assert denied.returncode == 3 and (json.loads(denied.stdout)["verdict"], json.loads(denied.stdout)["rule"]) == ("deny", "never")
    assert home_cli.cli("run", "--yes", "--", "rm", "x").returncode == 3  # --yes never overrides a deny rule


def test_a_configured_rule_applies_and_its_examples_are_checked(home_cli: HomeCli) -> None:
    home_cli.configure('[[approval.rules]]\nname = "made dirs"\ndecision = "allow"\ncommand = "install -d *"\n' + CAUTIOUS)
    home_cli.ok("run", "--wait", "--", "install", "-d", "made")
    assert home_cli.status("last")["rule"] == "made dirs" and (home_cli.cwd / "made").is_dir()
    assert home_cli.cli("run", "--", "install", "-d", "a", "b").returncode == 3
    for wrong, why in (
        ('decision = "allow"\ncommand = "x *"\nmatch = ["y z"]', "does not match"),
        ('decision = "allow"\ncommand = "x *"\nnot_match = ["x z"]', "matches"),
        ('decision = "perhaps"\ncommand = "x"', "perhaps"),
        ('decision = "allow"\ncommand = "* x"', "must name its program"),
        ('decision = "allow"\ncolour = "red"\ncommand = "x"', "colour"),
        ('decision = "deny"', "needs a command or effects"),
    ):
        home_cli.configure(f"[[approval.rules]]\n{wrong}\n")
        done = home_cli.cli("check", "--", "ls")
        assert done.returncode == 2 and why in done.stderr and "rule 1" in done.stderr, done.stderr


def test_only_a_trusted_project_is_changed_without_approval(home_cli: HomeCli) -> None:
    home_cli.configure(NO_TERMINAL)
    (home_cli.cwd / "job.sh").write_text("echo ran >> made; cat made\n")
    assert home_cli.ok("run", "--wait", "--", "sh", "job.sh") == "ran\n" and not (home_cli.cwd / "made").exists()
    home_cli.ok("trust")
    assert home_cli.ok("run", "--wait", "--", "sh", "job.sh") == "ran\n" and (home_cli.cwd / "made").exists()
    (grant,) = json.loads(home_cli.ok("trust", "--list", "--json"))
    assert grant["project"] == str(home_cli.cwd)
    home_cli.ok("trust", "--revoke", str(grant["grant_id"]))
    assert home_cli.ok("run", "--wait", "--", "sh", "job.sh") == "ran\nran\n" and (home_cli.cwd / "made").read_text() == "ran\n"
    assert home_cli.cli("trust", "--revoke", "99").returncode == 2


def test_a_script_that_changes_between_approval_and_start_needs_a_new_approval(home_cli: HomeCli) -> None:
    task_id = _suspend_changed_script(home_cli)
    assert "changed since it was approved" in str(home_cli.status(task_id)["error"])
    home_cli.ok("approve", task_id)
    home_cli.ok("wait", task_id)
    assert home_cli.log(task_id) == b"evil\n"


@pytest.mark.parametrize(("answer", "status"), [("reject", "failed"), ("cancel", "cancelled")])
def test_a_suspended_task_can_be_rejected_or_cancelled(home_cli: HomeCli, answer: str, status: str) -> None:
    task_id = _suspend_changed_script(home_cli)
    home_cli.ok(answer, task_id)
    assert home_cli.status(task_id)["status"] == status and home_cli.log(task_id) == b""


def test_an_allowed_command_is_judged_again_when_it_starts(home_cli: HomeCli) -> None:
    home_cli.configure(CONFIG + "[commands]\nmax_concurrent = 1\n")
    blocker = home_cli.run("sleep", "600")
    (home_cli.cwd / "data.txt").write_text("x")
    task_id = home_cli.ok("run", "--", "cat", "data.txt").strip()
    (home_cli.cwd / "data.txt").unlink()
    (home_cli.cwd / "data.txt").symlink_to(home_cli.root / "config.toml")
    home_cli.ok("cancel", blocker)
    wait_until(lambda: home_cli.status(task_id)["status"] == "waiting", "the task to be suspended")
    assert "outside the project" in str(home_cli.status(task_id)["error"])
    home_cli.ok("cancel", task_id)


def test_commands_of_an_agent_cannot_approve(home_cli: HomeCli) -> None:
    task_id = home_cli.cli("run", "--", "install", "-d", "made").stdout.strip()
    for variable in ("CLAUDECODE", "GEMINI_CLI", "CODEX_THREAD_ID", "OPENCODE"):
        done = home_cli.cli("approve", task_id, env={variable: "1"})
        assert done.returncode == 3 and "Only a person" in done.stderr
        assert home_cli.cli("trust", env={variable: "1"}).returncode == 3
    assert home_cli.status(task_id)["status"] == "proposed"


def test_a_task_that_removes_its_variables_is_recognised_by_its_ancestors(home_cli: HomeCli) -> None:
    proposal = home_cli.cli("run", "--", "install", "-d", "made").stdout.strip()
    line = f"env -u BACKBURNER_TASK_ID -u BACKBURNER_RUN_ID -u BACKBURNER_MARK {ME} approve {proposal}; echo $?"
    done = home_cli.finish(line, options=("--shell",))
    assert home_cli.log(str(done["task_id"])).decode().splitlines()[-1] == "3"
    assert home_cli.status(proposal)["status"] == "proposed"


def test_a_process_is_recognised_by_the_process_session_of_a_task(home_cli: HomeCli) -> None:
    proposal = home_cli.cli("run", "--", "install", "-d", "made").stdout.strip()
    answer = home_cli.cwd / "answer"
    kept = " ".join(f"{name}={home_cli.environ[name]}" for name in ("PATH", "HOME", "BACKBURNER_HOME"))
    line = f"(env -i {kept} sh -c 'sleep 0.3; {ME} approve {proposal}; echo $? >{answer}' &) ; while [ ! -s {answer} ]; do sleep 0.05; done"
    home_cli.finish(line, options=("--shell",))
    assert answer.read_text().strip() == "3" and home_cli.status(proposal)["status"] == "proposed"


def test_the_approval_question_shows_hidden_characters(home_cli: HomeCli) -> None:
    from backburner.approval.policy import Decision, Verdict
    from backburner.interfaces.cli.approval_prompt import question

    text = question(request(("сat x  ",), "/p\n\x1b[2J", {}, shell=True, env={"A": "b\rc"}), Verdict(Decision.ASK, ("why",)))
    assert "сat x␠␠" in text and "U+0441" in text and "/p\\n\\x1b[2J" in text and "A=b\\rc" in text


def test_a_rejected_task_cannot_be_approved(home_cli: HomeCli) -> None:
    task_id = home_cli.cli("run", "--", "install", "-d", "made").stdout.strip()
    home_cli.ok("reject", task_id)
    done = home_cli.cli("approve", task_id)
    assert done.returncode == 1 and done.stderr == "The task is rejected and cannot be approved.\n"


def test_the_audit_shows_who_approved_and_which_rule_applied(home_cli: HomeCli) -> None:
    home_cli.ok("run", "--wait", "--", "echo", "hi")
    home_cli.run("install", "-d", "made")
    home_cli.ok("wait", "last")
    entries = json.loads(home_cli.ok("audit", "--json"))
    assert [(entry["approved_by"], entry["approved_via"], entry["rule"]) for entry in entries] == [
        ("user", "cli", "cautious"),
        ("auto", "gate", "sandbox"),
    ]
    assert "copies files over others" in home_cli.ok("audit")
    metadata = json.loads((home_cli.folder(entries[0]["task_id"]) / "metadata.json").read_text())
    assert metadata["rule"] == "cautious" and metadata["reasons"]
    assert "(rule: cautious;" in home_cli.ok("logs", "--raw", entries[0]["task_id"])
    submitted = [event for event in json.loads(home_cli.ok("events", "--json")) if event["kind"] == "task_submitted"]
    assert submitted[0]["data"]["rule"] == "sandbox"


async def test_no_interface_stores_a_runnable_task_without_a_verdict(home_cli: HomeCli, monkeypatch: pytest.MonkeyPatch) -> None:
    """Covers the library, the embedded runner and the command line, including a restart."""
    dangerous = ["install", "-d", "made"]
    with BackburnerSync.open(home_cli.root) as bb:
        assert bb.submit(dangerous, cwd=home_cli.cwd).status == "proposed"
        assert bb.submit("install -d made", cwd=home_cli.cwd).status == "proposed"
        assert bb.submit("install -d made; ls", cwd=home_cli.cwd, shell=True).status == "proposed"
    with pytest.raises(ApprovalRequired):
        await TaskRunner(TaskStorage(home_cli.root / "tasks")).start_task(dangerous, str(home_cli.cwd), "", approved_by="auto")
    proposal = home_cli.cli("run", "--", *dangerous).stdout.strip()
    assert home_cli.cli("restart", proposal).returncode == 3
    monkeypatch.setenv("BACKBURNER_TASK_ID", "inside")
    with pytest.raises(NotAPerson):
        await TaskRunner(TaskStorage(home_cli.root / "tasks")).start_task(dangerous, str(home_cli.cwd), "", approved_by="user")
    with BackburnerSync.open(home_cli.root) as bb, pytest.raises(NotAPerson):
        bb.submit(dangerous, cwd=home_cli.cwd, approved=True)
    assert {task["status"] for task in json.loads(home_cli.ok("list", "--all", "--json"))} == {"proposed"}
    assert not (home_cli.cwd / "made").exists()


def test_wait_returns_immediately_for_a_suspended_task(home_cli: HomeCli) -> None:
    task_id = _suspend_changed_script(home_cli)
    done = home_cli.cli("wait", task_id)
    assert done.returncode == 3 and "changed since it was approved" in done.stderr
    home_cli.ok("cancel", task_id)


def test_data_that_changes_between_approval_and_start_needs_no_new_approval(home_cli: HomeCli) -> None:
    home_cli.configure(CONFIG + "[commands]\nmax_concurrent = 1\n")
    log = home_cli.cwd / "build.log"
    log.write_text("one\n")
    blocker = home_cli.run("sleep", "600")
    task_id = home_cli.run("rm", "build.log")
    log.write_text("one\ntwo\n")
    home_cli.ok("cancel", blocker)
    home_cli.ok("wait", task_id)
    assert not log.exists()
