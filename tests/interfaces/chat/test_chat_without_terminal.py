"""The chat with `-m`, with piped input, and in terminals that can only print."""

# ruff: noqa: F811 - fixtures are imported by their names
import subprocess
import sys

from chat_fixture import Chats, chat_home, chats  # noqa: F401

CTRL_D = "\x04"


def run_chat(chats: Chats, *words: str, piped: str | None = None, **env: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "backburner", "chat", *words],
        cwd=chats.home_cli.cwd,
        env={**chats.home_cli.environ, **env},
        input=piped,
        stdin=subprocess.DEVNULL if piped is None else None,
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_one_message_and_piped_input(chats: Chats) -> None:
    done = run_chat(chats, "-m", "just this")
    assert (done.returncode, done.stdout, done.stderr) == (0, "You said: just this\n", "")
    done = run_chat(chats, piped="from a pipe\n")
    assert (done.returncode, done.stdout) == (0, "You said: from a pipe\n")
    done = run_chat(chats, "-m", "look at this:", piped="piped text\n")
    assert done.stdout == "You said: look at this:\n\npiped text\n"
    done = run_chat(chats, "--resume", "-m", "and more")
    assert done.stdout == "You said: and more\n" and "look at this" in str(chats.requests("and more")[-1])
    done = run_chat(chats, piped="/background echo x\n/tasks\n")
    assert done.returncode == 0 and "Started background task" in done.stderr
    done = run_chat(chats, piped="")
    assert done.returncode == 2 and "The message is empty" in done.stderr
    chats.replies["broken"] = [{"error": 400, "times": 9}]
    done = run_chat(chats, "-m", "broken")
    assert done.returncode == 1 and "The agent failed:" in done.stderr
    done = run_chat(chats, "--resume", "-m", "talk on")
    assert done.stdout == "You said: talk on\n", "a failed turn does not end the conversation"
    chats.replies["delete"] = [{"tool": "run_command", "args": {"command": "rm x"}}, {"say": "gone"}]
    done = run_chat(chats, "-m", "delete it")
    assert done.returncode == 3 and "is waiting for approval" in done.stderr
    done = run_chat(chats, "--resume", "no-such-chat", "-m", "x")
    assert done.returncode == 2 and "There is no chat 'no-such-chat' in this project." in done.stderr
    for task in chats.home_cli.json("list", "proposed"):  # type: ignore[union-attr, attr-defined]
        chats.home_cli.ok("reject", task["task_id"])


def test_piped_slash_commands_run_and_the_lines_between_them_are_messages(chats: Chats) -> None:
    done = run_chat(chats, piped="two\n\nlines\n/background echo x\n//tasks\n/tasks\n")
    assert done.returncode == 0 and done.stdout == "You said: two\n\nlines\nYou said: /tasks\n"
    assert done.stderr.index("Started background task") < done.stderr.index("echo x")
    done = run_chat(chats, piped="hello\n/taks\n")
    assert done.returncode == 2 and "Unknown command /taks" in done.stderr and not done.stdout, "nothing is sent"
    done = run_chat(chats, piped="hello\n/approve\n")
    assert done.returncode == 2 and "/approve is not accepted from a pipe" in done.stderr and not done.stdout
    chats.home_cli.environ["BACKBURNER_MODELS_DEFAULT"] = ""
    done = run_chat(chats, piped="hello\n/tasks\n")
    assert done.returncode == 2 and "echo x" in done.stderr and "config.toml" in done.stderr, "the command also runs without a model"


def test_a_terminal_that_can_only_print_gets_no_escape_sequences(chats: Chats) -> None:
    with chats.open(env={"TERM": "dumb"}) as terminal:
        terminal.type("hello\n")
        terminal.wait("You said: hello")
        terminal.type("/background rm -r nothing\n")
        terminal.wait("Start in background? [y/n")
        terminal.type("n\n")
        terminal.wait("Not started.")
        terminal.type("/tasks\n")
        assert b"\x1b" not in terminal.raw
        terminal.type(CTRL_D)
        assert terminal.ended() == 0
