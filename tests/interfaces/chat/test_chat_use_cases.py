"""The four use cases of the design as conversations in a terminal."""

# ruff: noqa: F811 - fixtures are imported by their names

from chat_fixture import Chats, chat_home, chats, task_in  # noqa: F401
from conftest import wait_until
from terminal import Terminal

_SLOW = """
import os, sys, time
total, stop = int(sys.argv[1]), int(sys.argv[2])
for n in range(1, total + 1):
    print(f"{n}/{total} {sys.argv[3]}", flush=True)
    while n == stop and not os.path.exists("go"):
        time.sleep(0.05)
if os.environ.get("BACKBURNER_RUN_DIR") and sys.argv[4:] == ["diff"]:
    open(os.path.join(os.environ["BACKBURNER_RUN_DIR"], "changes.diff"), "w").write("-2025\\n+2026\\n")
print(sys.argv[-1] if sys.argv[4:] != ["diff"] else f"{total} files updated")
"""


def _script_background_command(chats: Chats, words: str, command: str, description: str, reply: str) -> None:
    """Script the agent: it starts a command in the background and reports the task id."""
    start = {"say": reply, "tool": "start_background_task", "args": {"command": command, "description": description}}
    chats.replies[words] = [start, {"say": "Started task {task_id}. Use `/status {task_id}` to check progress."}]
    (chats.home_cli.cwd / "work.py").write_text(_SLOW)


def _approve(terminal: Terminal) -> str:
    """Wait for the question and approve it; returns the task id."""
    terminal.wait("Start in background? [y/n")
    terminal.read(0.8)
    terminal.type("y\r")
    return task_in(terminal, r"Started task {}\. Use")


def test_long_test_runs(chats: Chats) -> None:
    _script_background_command(
        chats, "full test suite", "python3 work.py 91 47 PASSED '89 passed, 2 failed'", "Run full test suite", "It takes some minutes."
    )
    with chats.open(columns=110, rows=40) as terminal:
        terminal.type("Run the full test suite\r")
        task_id = _approve(terminal)
        chats.replies["status of my tests"] = [
            {"tool": "check_task_status", "args": {"task_id": task_id}},
            {"say": "Running, **47** tests passed so far."},
        ]
        wait_until(lambda: b"47/91" in chats.home_cli.log(task_id), "half of the work")
        terminal.type("What's the status of my tests?\r")  # the input line is free while the task runs
        terminal.wait("Running, 47 tests passed so far.")
        assert chats.requests("47/91 PASSED"), "the agent has read the progress"
        (chats.home_cli.cwd / "go").touch()
        terminal.wait(f"Background task {task_id} completed: 89 passed, 2 failed.")
        terminal.type("And now?\r")
        terminal.wait("You said: And now?")
        request = chats.requests("And now?")[-1]
        assert f"<task-id>{task_id}</task-id>" in str(request), "the next turn gets the notification"
        terminal.type("Anything else?\r")
        terminal.wait("You said: Anything else?")
        again = str(chats.requests("Anything else?")[-1])
        assert again.count(f"<task-id>{task_id}</task-id>") == 1, "no later turn gets it again"


def test_large_file_processing(chats: Chats) -> None:
    (chats.home_cli.cwd / "assets").mkdir()
    _script_background_command(
        chats, "PNG images", "python3 work.py 247 132 converted '247 files converted, 0 errors'", "Convert", "Processing 247 PNG files."
    )
    with chats.open(columns=110, rows=40) as terminal:
        terminal.type("Convert all PNG images in assets to WebP format\r")
        task_id = _approve(terminal)
        wait_until(lambda: b"132/247" in chats.home_cli.log(task_id), "half of the work")
        terminal.type(f"/status {task_id}\r")
        terminal.wait("132/247")
        terminal.wait("53%")
        (chats.home_cli.cwd / "go").touch()
        terminal.wait(f"Background task {task_id} completed: 247 files converted, 0 errors.")


def test_research_tasks(chats: Chats) -> None:
    (chats.home_cli.cwd / "code.py").write_text("# TODO: one\n# TODO urgent: two\n")
    script = '[[script: [{"tool": "search_files", "args": {"text": "TODO"}}, {"tool": "write_file", "args": {"path": "report.md", "content": "# Report\\nurgent: two\\n"}}, {"say": "The report is in report.md."}]]]'
    chats.replies["Search for all"] = [
        {
            "say": "That takes a while; I have it looked up in the background.",
            "tool": "background_task",
            "args": {"description": "Find and sort TODOs", "prompt": script, "agent": "default"},
        },
        {"say": "An agent looks: {task_id}."},
    ]
    chats.replies["Show me the report"] = [
        {"tool": "read_file", "args": {"path": "report.md"}},
        {"say": "It says:\n\n# Report\n\nurgent: two"},
    ]
    with chats.open(columns=110, rows=40) as terminal:
        terminal.type("Search for all TODOs in the codebase, categorize by priority, and generate a report\r")
        terminal.wait("An agent looks: task_")
        terminal.type("Meanwhile, hello\r")
        terminal.wait("You said: Meanwhile, hello")
        terminal.wait("The report is in report.md.")
        assert (chats.home_cli.cwd / "report.md").read_text() == "# Report\nurgent: two\n"
        terminal.type("Show me the report\r")
        terminal.wait("urgent: two")


def test_batch_operations(chats: Chats) -> None:
    _script_background_command(
        chats, "copyright year", "python3 work.py 342 198 updated diff", "Update copyright year", "Updating 342 files."
    )
    with chats.open(columns=110, rows=40) as terminal:
        terminal.type("Update copyright year in all Python files\r")
        task_id = _approve(terminal)
        wait_until(lambda: b"198/342" in chats.home_cli.log(task_id), "half of the work")
        terminal.type(f"/status {task_id}\r")
        terminal.wait("198/342")
        (chats.home_cli.cwd / "go").touch()
        terminal.wait(f"Background task {task_id} completed: 342 files updated.")
        terminal.wait("changes.diff")
