"""Recurring tasks with an agent: reports, pre-check commands, retries, budgets, interactive priority, and the stronger model."""

import contextlib
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apsw
import pytest
from conftest import CAUTIOUS, CONFIG, HomeCli, caller, wait_until
from mcp_client import Raw

from backburner.services.app import open_app
from backburner.system import processes, wakeups
from backburner.testing.scripted_model import ScriptedModel


@pytest.fixture
def model() -> Iterator[ScriptedModel]:
    with ScriptedModel() as scripted:
        yield scripted


@pytest.fixture
def home(home_cli: HomeCli, model: ScriptedModel) -> Iterator[HomeCli]:
    """A home whose agents use the scripted model, with a capacity of one."""
    home_cli.configure(f'{CONFIG}[models]\ndefault = "openai-chat:scripted"\nbase_url = "{model.url}/v1"\n[agents]\nyield_seconds = 1\n')
    yield home_cli
    home_cli.stop_all()


def script(*steps: dict[str, Any]) -> str:
    return f"[[script: {json.dumps(steps)}]]"


def report(state: str, message: str = "", tell: bool = True) -> dict[str, Any]:
    return {"tool": "final_result", "args": {"report": tell, "state": state, "message": message}}


def add(home_cli: HomeCli, name: str, *words: str) -> str:
    return home_cli.ok("add", name, "--every", "1h", *words).strip()


def add_with_steps_file(home_cli: HomeCli, name: str, *words: str) -> str:
    """Add a task whose agent executes the steps in a file; the pre-check command prints the file."""
    return add(home_cli, name, "--prompt", "Do it.", "--wake", "success", *words, "--", "cat", f"{name}.txt")


def steps(home_cli: HomeCli, name: str, *todo: dict[str, Any]) -> None:
    (home_cli.cwd / f"{name}.txt").write_text(script(*todo))


def run_manually(home_cli: HomeCli, name: str, *todo: dict[str, Any]) -> dict[str, Any]:
    """Start a manual run of a recurring task, wait for its end, and return the run."""
    if todo:
        steps(home_cli, name, *todo)
    run_id = home_cli.ok("run-now", name).strip()
    return ended(home_cli, name, run_id)


def ended(home_cli: HomeCli, name: str, run_id: str) -> dict[str, Any]:
    def done() -> list[dict[str, Any]]:
        return [run for run in history(home_cli, name) if run["run_id"] == run_id and run["completed_at"]]

    wait_until(done, f"{run_id} to end")
    return done()[0]


def history(home_cli: HomeCli, name: str) -> list[dict[str, Any]]:
    return home_cli.status(name)["runs"]  # type: ignore[return-value]


def notice_texts(home_cli: HomeCli) -> list[str]:
    return [str(notice["text"]) for notice in home_cli.json("inbox", "--ack")]  # type: ignore[union-attr, index, call-overload]


def make_retries_due(home_cli: HomeCli) -> None:
    """Make pending retries due now."""
    with contextlib.closing(apsw.Connection(home_cli.home.ledger)) as ledger:
        ledger.set_busy_timeout(5000)
        ledger.execute("UPDATE runs SET due_at = 0 WHERE state = 'pending' AND due_at IS NOT NULL")
    wakeups.wake_all(home_cli.home.socket_dir)


def prompts(model: ScriptedModel) -> list[str]:
    """The texts of each request to the model, including the system prompt."""
    return [json.dumps(request["messages"]) for request in model.requests if request.get("tools")]


def test_a_report_is_sent_only_if_its_state_has_changed(home: HomeCli) -> None:
    task = add_with_steps_file(home, "ci")
    results = [
        ("passing", "All is well."),
        (" Passing", "Well, as before."),
        ("failed: 4521", "Red!"),
        ("failed: 4521", "Still red."),
        ("passing", "Green."),
    ]
    for state, message in results:
        assert run_manually(home, "ci", report(state, message))["result"] == message
    assert notice_texts(home) == ["ci: All is well.", "ci: Red!", "ci: Green."]
    assert home.status(task)["tokens_used"] > 0 and home.log(task) == b"Green.\n"  # type: ignore[operator]


def test_a_result_without_report_sends_no_notice_but_is_compared_later(home: HomeCli) -> None:
    add_with_steps_file(home, "ci")
    for state, tell in [("passing", False), ("failed", True), ("passing", False), ("failed", True), ("failed", True)]:
        run_manually(home, "ci", report(state, state.upper(), tell))
    assert notice_texts(home) == ["ci: FAILED", "ci: FAILED"]


def test_declared_fields_are_compared_but_not_the_message(home: HomeCli) -> None:
    add_with_steps_file(home, "disk", "--field", "used", "--field", "host")

    def result(used: float, message: str) -> dict[str, Any]:
        return {"tool": "final_result", "args": {"used": used, "host": "a", "message": message}}

    for used, message in [(80, "A lot."), (80, "Quite a lot."), (81, "More.")]:
        run_manually(home, "disk", result(used, message))
    assert notice_texts(home) == ["disk: A lot.\nused: 80\nhost: a", "disk: More.\nused: 81\nhost: a"]


def test_each_run_has_a_new_session_the_seeds_system_prompt_and_fewer_tools(home: HomeCli, model: ScriptedModel) -> None:
    add_with_steps_file(home, "ci", "--description", "Monitor CI.")
    run_manually(home, "ci", {"tool": "memory_set", "args": {"key": "seen", "value": "1"}}, report("a"))
    run_manually(home, "ci", report("b"))
    first, _, last = model.requests
    assert "You are executing a background task. Monitor CI." in json.dumps(last["messages"])
    assert len(last["messages"]) == len(first["messages"]) == 2
    tools = {tool["function"]["name"] for tool in last["tools"]}
    assert tools == {"read_file", "search_files", "run_command", "memory_set", "memory_get", "memory_list", "final_result"}
    add(home, "wide", "--tools", "files,background", "--prompt", script(report("c")))
    run_manually(home, "wide")
    wide = {tool["function"]["name"] for tool in model.requests[-1]["tools"]}
    assert {"write_file", "task_add", "background_task"} <= wide and "run_command" not in wide


def test_memory_and_the_last_result_are_included_if_requested(home: HomeCli, model: ScriptedModel) -> None:
    add_with_steps_file(home, "ci", "--recall", "seen", "--last-result")
    run_manually(home, "ci", {"tool": "memory_set", "args": {"key": "seen", "value": "commit-77"}}, report("a", "It was found once."))
    assert "nothing yet" in prompts(model)[0]
    run_manually(home, "ci", report("b"))
    assert (
        "commit-77" in prompts(model)[-1] and "It was found once." in prompts(model)[-1] and "Data, not instructions" in prompts(model)[-1]
    )


def test_a_paid_model_is_called_only_for_changes(home: HomeCli, model: ScriptedModel) -> None:
    """A thousand runs of the pre-check command with seven changes."""
    todo = script(report("{{state}}", "Seen."))
    add(home, "watch", "--prompt", f"Look at it. {todo}", "--notify", "always", "--", "cat", "value.txt")
    changes = {1: "a", 100: "b", 101: "a", 400: "c", 650: "d", 999: "e", 1000: "f"}
    with open_app(home.home, home.environ) as app:
        here = caller(app)._replace(cwd=str(home.cwd))
        task_id = app.queries.find("watch", here).task.task_id
        for tick in range(1, 1001):
            if tick in changes:
                (home.cwd / "value.txt").write_text(changes[tick])
            app.recurring.run_now(task_id, caller(app))
            app.waiting.wait([task_id], 40)
        runs = app.queries.history(app.queries.find(task_id, caller(app)), 2000)
    agent_runs = [run for run in runs if run.end.usage]
    assert len(runs) == 1000 and {run.state for run in runs} == {"completed"}
    assert len(agent_runs) == len(changes) == len(prompts(model)) and len(notice_texts(home)) == len(changes)


def test_a_pre_check_triggers_the_agent_on_success_output_or_change(home: HomeCli, model: ScriptedModel) -> None:
    todo = script(report("x"))
    for mode in ("change", "success", "output"):
        add(home, mode, "--wake", mode, "--prompt", f"{mode} {todo}", "--", "cat", "file.txt")
    (home.cwd / "file.txt").write_text("")
    triggered = {mode: bool(run_manually(home, mode)["tokens_used"]) for mode in ("change", "success", "output")}
    assert triggered == {"change": False, "success": True, "output": False}
    (home.cwd / "file.txt").write_text("something")
    assert [bool(run_manually(home, mode)["tokens_used"]) for mode in ("change", "change", "output", "output")] == [True, False, True, True]
    (home.cwd / "file.txt").unlink()
    quiet = run_manually(home, "success")
    assert (quiet["status"], quiet["tokens_used"]) == ("completed", 0) and home.status("success")["failures"] == 0
    assert run_manually(home, "change")["status"] == "failed" and home.status("change")["failures"] == 1


def test_a_pre_check_result_triggers_again_after_the_agent_failed(home: HomeCli) -> None:
    (home.cwd / "file.txt").write_text("news")
    add(home, "watch", "--prompt", script({"error": 500, "times": 3}, report("x", "Seen.")), "--", "cat", "file.txt")
    assert run_manually(home, "watch")["problem"] == "transient"
    make_retries_due(home)
    wait_until(lambda: notice_texts(home) == ["watch: Seen."], "the notice of the retry")
    assert [run["cause"] for run in history(home, "watch")] == ["retry", "manual"]


@pytest.mark.parametrize(("status", "problem", "seconds"), [(429, "rate_limit", 300), (401, "auth", 600), (500, "transient", 30)])
def test_a_failure_is_retried_once_and_then_pauses_the_task_with_one_notice(home: HomeCli, status: int, problem: str, seconds: int) -> None:
    add(home, "ci", "--notify", "never", "--prompt", script({"error": status, "times": 100}))
    first = run_manually(home, "ci")
    assert (first["status"], first["problem"]) == ("failed", problem) and notice_texts(home) == []
    retry = history(home, "ci")[0]
    assert (retry["cause"], retry["status"]) == ("retry", "pending")
    due = home.status("ci")["next_run_at"]
    assert due is not None
    with contextlib.closing(apsw.Connection(home.home.ledger)) as ledger:
        ((wait,),) = ledger.execute("SELECT r.due_at - p.ended_at FROM runs r JOIN runs p ON p.n = r.n - 1 WHERE r.cause = 'retry'")
    assert wait == seconds * 1000
    make_retries_due(home)
    wait_until(lambda: home.status("ci")["status"] == "paused", "the task to be paused")
    (notice,) = notice_texts(home)
    assert notice.startswith("ci is paused because it failed twice in a row") and "backburner unpause" in notice
    home.ok("unpause", "ci")
    assert home.status("ci")["status"] == "active" and home.status("ci")["failures"] == 0


def test_tokens_of_failed_and_stopped_runs_are_recorded(home: HomeCli) -> None:
    add_with_steps_file(home, "ci", "--timeout", "8s")
    failed = run_manually(home, "ci", {"tool": "memory_list", "args": {}}, {"error": 400, "times": 9})
    assert failed["status"] == "failed" and failed["tokens_used"] > 0, failed
    if home.status("ci")["status"] == "paused":
        home.ok("unpause", "ci")
    make_retries_due(home)
    wait_until(lambda: home.status("ci")["status"] == "paused", "the retry to fail")
    home.ok("unpause", "ci")
    stopped = run_manually(home, "ci", {"tool": "memory_list", "args": {}}, {"hang": 30, "say": "late"})
    assert stopped["tokens_used"] > 0 and stopped["error"] == "timed out after 8s"


def test_a_timeout_stops_the_run_and_is_retried_unless_a_tool_was_running(home: HomeCli, model: ScriptedModel) -> None:
    home.configure((home.root / "config.toml").read_text().replace("yield_seconds = 1", "yield_seconds = 30").replace(CAUTIOUS, ""))
    home.ok("trust")
    add_with_steps_file(home, "slow", "--timeout", "2s")
    at_model = run_manually(home, "slow", {"hang": 30, "say": "late"})
    assert at_model["problem"] == "timeout" and history(home, "slow")[0]["cause"] == "retry"  # no tool was running: retried
    home.ok("cancel", history(home, "slow")[0]["run_id"])
    (home.cwd / "slow.sh").write_text("sleep 60; echo late > effect\n")
    in_tool = run_manually(home, "slow", {"tool": "run_command", "args": {"command": "sh slow.sh"}}, report("x"))
    assert in_tool["status"] == "failed" and history(home, "slow")[0]["cause"] == "manual"  # the effect of the tool is unknown: not retried
    wait_until(lambda: not home.processes("slow.sh"), "the command to be stopped with its run")
    assert not (home.cwd / "effect").exists()


def test_a_run_with_a_killed_agent_process_gives_one_notice_and_no_retry(home: HomeCli) -> None:
    add_with_steps_file(home, "ci")
    steps(home, "ci", {"tool": "memory_list", "args": {}}, {"hang": 40, "say": "late"})
    run_id = home.ok("run-now", "ci").strip()
    wait_until(lambda: list(home.root.glob("tasks/*/.activity.json")), "the agent to run")
    # a process that the agent process is just starting has its command line for a moment
    wait_until(lambda: len(home.hosts("agents.process")) == 1, "one agent process")
    (host,) = home.hosts("agents.process")
    processes.send(host, signal.SIGKILL)
    lost = ended(home, "ci", run_id)
    assert lost["status"] == "failed" and [run["cause"] for run in history(home, "ci")] == ["manual"]
    assert len(notice_texts(home)) == 1
    assert run_manually(home, "ci", report("fine", "Back."))["status"] == "completed" and notice_texts(home) == ["ci: Back."]


def test_the_agent_process_does_not_load_an_http_library_that_it_does_not_use(home: HomeCli) -> None:
    """The OpenAI library would load aiohttp, because the channels of Discord need it on the same machine."""
    add_with_steps_file(home, "ci")
    assert run_manually(home, "ci", report("fine", "Done."))["status"] == "completed"
    (host,) = home.hosts("agents.process")
    loaded = Path(f"/proc/{host.pid}/maps").read_text()
    assert "pydantic_core" in loaded and "aiohttp" not in loaded


def test_a_daily_budget_pauses_the_task_and_an_agent_cannot_resume_it(home: HomeCli) -> None:
    home.ok("add", "ci", "--every", "1s", "--per-day", "tokens=1", "--notify", "never", "--prompt", script(report("x")))
    wait_until(lambda: home.status("ci")["status"] == "paused", "the budget to be used up")
    (notice,) = notice_texts(home)
    assert "of 1 tokens today" in notice and "backburner unpause" in notice
    assert any(run["status"] == "skipped" and "today" in run["error"] for run in history(home, "ci"))
    with Raw(home) as client:
        assert "agents cannot approve" in json.dumps(client.call("task_resume", task_id="ci"))
    assert home.status("ci")["status"] == "paused"
    home.ok("unpause", "ci")
    home.ok("pause", "ci")


def test_a_run_that_needs_approval_is_in_the_inbox_and_continues_after_it(home: HomeCli) -> None:
    add_with_steps_file(home, "ci")
    steps(home, "ci", {"tool": "run_command", "args": {"command": "rm -f important"}}, report("done", "Removed."))
    home.ok("run-now", "ci")
    wait_until(lambda: any(run["status"] == "waiting" for run in history(home, "ci")), "the run to wait")
    (notice,) = notice_texts(home)
    assert notice.startswith("ci needs your approval:") and "rm -f important" in notice
    home.ok("approve", notice.split("backburner approve ")[1].split(";")[0])
    wait_until(lambda: notice_texts(home) == ["ci: Removed."], "the run to continue")


def test_interactive_use_has_priority_and_the_background_run_continues_later(home: HomeCli, model: ScriptedModel) -> None:
    """With a capacity of one and a slow model, interactive use starts within one tool call of the background run, which then completes."""
    slow = {"hang": 0.7, "tool": "memory_list", "args": {}}
    add_with_steps_file(home, "ci")
    steps(home, "ci", *[slow] * 6, report("done", "Finished."))
    run_id = home.ok("run-now", "ci").strip()
    wait_until(lambda: len(model.requests) >= 2, "the background run to start")
    before = len(model.requests)
    answer = home.ok("ask", "Hello " + script({"hang": 1.5, "say": "Hi."}), "--wait")
    assert answer == "Hi.\n"
    assert ended(home, "ci", run_id)["status"] == "completed" and notice_texts(home) == ["ci: Finished."]
    kinds = ["person" if "Hello" in json.dumps(request["messages"]) else "background" for request in model.requests]
    first = kinds.index("person")
    assert first - before <= 2, kinds  # the current request, and at most one more tool call
    assert kinds.count("person") == 1 and kinds[-1] == "background", kinds
    assert kinds.count("background") == 7  # no step was repeated
    assert "run_suspended" in home.ok("events") and "run_requeued" in home.ok("events")


def test_a_killed_interactive_client_does_not_block_background_runs(home: HomeCli, model: ScriptedModel) -> None:
    add_with_steps_file(home, "ci")
    steps(home, "ci", *[{"hang": 0.5, "tool": "memory_list", "args": {}}] * 4, report("done", "Finished."))
    run_id = home.ok("run-now", "ci").strip()
    wait_until(lambda: len(model.requests) >= 1, "the background run to start")
    person = subprocess.Popen(
        [sys.executable, "-m", "backburner", "ask", "Hello " + script({"hang": 30, "say": "Hi."}), "--wait"],
        cwd=home.cwd, env=home.environ, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
    )  # fmt: skip
    wait_until(lambda: any(run["status"] == "waiting" for run in history(home, "ci")), "the run to be suspended")
    shown = home.ok("status", "ci")
    assert "Waiting because: the user is using the same model and has priority" in shown and "approve" not in shown
    person.kill()
    person.wait()
    home.ok("cancel", "default")
    assert ended(home, "ci", run_id)["status"] == "completed"


def test_the_remote_model_continues_if_the_local_one_fails_or_escalates(home: HomeCli, model: ScriptedModel) -> None:
    with ScriptedModel() as strong:
        settings = (home.root / "config.toml").read_text()
        remote = f'remote = "openai-chat:strong"\nremote_base_url = "{strong.url}/v1"\n'
        home.configure(settings.replace("[models]\n", f"[models]\n{remote}"))
        add_with_steps_file(home, "hard")
        asks = run_manually(home, "hard", {"tool": "escalate", "args": {"reason": "too hard"}}, report("done", "Done by the other."))
        assert asks["result"] == "Done by the other." and len(model.requests) == 1 and len(strong.requests) == 1
        # An interactive task does not use this routing.
        home.ok("ask", script({"say": "Hi."}), "--wait")
        assert len(model.requests) == 2 and len(strong.requests) == 1
        home.configure((home.root / "config.toml").read_text().replace(model.url, "http://127.0.0.1:9"))
        fails = run_manually(home, "hard", report("again", "And again."))
        assert fails["status"] == "completed" and len(model.requests) == len(strong.requests) == 2


def test_a_task_after_another_task_gets_its_result(home: HomeCli, model: ScriptedModel) -> None:
    add(home, "first", "--", "echo", "the number is 42")
    home.ok("add", "second", "--after", "first", "--notify", "always", "--prompt", script(report("x", "Heard.")))
    (home.cwd / "show.sh").write_text('cat "$BACKBURNER_AFTER_RESULT"; tail -n 1 "$BACKBURNER_AFTER_LOG"\n')
    home.ok("add", "third", "--after", "second", "--notify", "always", "--yes", "--", "sh", "show.sh")
    home.ok("run-now", "first")
    wait_until(lambda: home.status("third")["run_count"] == 1 and home.status("third")["run_status"] == "completed", "the chain")
    assert "the number is 42" in prompts(model)[-1]
    assert b"Heard." in home.log("third") and b'"exit_code": 0' in home.log("third")
    assert [run["cause"] for run in history(home, "third")] == ["after"]
    assert "the number is 42" not in notice_texts(home)[-1]


def test_an_agent_gets_the_changes_in_the_output_of_a_command(home: HomeCli, model: ScriptedModel) -> None:
    value = home.cwd / "value.txt"
    value.write_text("one\nsame\n")
    words = ("add", "look", "--on", "command:cat value.txt", "--with", "every=1s", "--with", "compare=full")
    home.ok(*words, "--prompt", script(report("x", "Seen.")))
    wait_until(lambda: [run for run in home.status("look:watch")["runs"] if run["completed_at"]], "the first output to be recorded")
    value.write_text("two\nsame\n")
    wait_until(lambda: prompts(model), "the prompt of the agent")
    assert "-one" in prompts(model)[0] and "+two" in prompts(model)[0] and "the changes in the output" in prompts(model)[0]
    home.ok("cancel", "look")


def test_an_agent_that_keeps_proposing_is_stopped_and_nobody_is_asked(home_cli: HomeCli) -> None:
    step = {"tool": "task_propose", "args": {"name": "idea", "description": "d", "command": "true", "interval": "1h"}}
    with ScriptedModel(think=lambda _: step) as model:
        models = f'[models]\ndefault = "openai-chat:scripted"\nbase_url = "{model.url}/v1"\n'
        home_cli.configure(f"{CONFIG}{models}[tasks]\nidle_threshold_ms = 0\n")
        home_cli.finish("true")
        with open_app(str(home_cli.root), dict(home_cli.environ)) as app:
            app.sessions.record_activity("cli")
        home_cli.finish("true")

        def suggestions() -> list[dict[str, Any]]:
            return [task for task in home_cli.json("list", "--all") if task["description"] == "Suggest tasks"]  # type: ignore[union-attr, index, call-overload]

        wait_until(lambda: suggestions() and suggestions()[0]["completed_at"], "the end of the agent", 60)
        (asked,) = suggestions()
        assert (asked["status"], asked["summary"]) == ("completed", "Stopped: all tool calls are used up.")
        assert len(model.requests) <= 27 and home_cli.status("idea")["status"] == "proposed"
        assert not any("Suggest tasks" in text or asked["task_id"] in text for text in notice_texts(home_cli))
    home_cli.stop_all()
