"""Chapter 2: the output of a command, its progress, its files, and its input."""

import asyncio
import json

from conftest import HomeCli, wait_until

from backburner import Backburner


def test_logs_prints_everything_a_command_wrote(home_cli: HomeCli) -> None:
    """Standard output and standard error are in one log, in the order in which they were written."""
    task_id = str(home_cli.finish("sh", "-c", "echo one; echo two >&2; echo three")["task_id"])
    assert home_cli.ok("logs", task_id) == "one\ntwo\nthree\n"
    assert home_cli.ok("logs", "--tail", "1", task_id) == "three\n"
    assert home_cli.ok("logs", "--grep", "^t", task_id) == "two\nthree\n"


def test_a_cursor_continues_where_the_last_read_stopped(home_cli: HomeCli) -> None:
    """`logs --json` returns a cursor; `--since` reads only what was written after it."""
    task_id = home_cli.run("sh", "-c", "echo first; read line; echo $line", options=("--stdin",))
    wait_until(lambda: home_cli.log(task_id) == b"first\n", "the first line")
    cursor = json.loads(home_cli.ok("logs", "--json", task_id))["cursor"]
    home_cli.ok("send", task_id, "second")
    home_cli.ok("wait", task_id)
    assert home_cli.ok("logs", "--since", cursor, task_id) == "second\n"


async def test_progress_is_read_from_the_output(home_cli: HomeCli) -> None:
    """Backburner understands counts, percentages and the output of common tools."""
    async with Backburner.open(home_cli.root) as bb:
        line = "echo 132/247 files processed; read answer"
        entry = await bb.submit(line, shell=True, cwd=home_cli.cwd, stdin=True, approved=True)
        async with asyncio.timeout(20):
            while (progress := await bb.progress(entry.task.task_id)) is None:
                continue
        assert (progress.done, progress.total, progress.text) == (132, 247, "132/247 files processed (53%)")
        await bb.send(entry.task.task_id, b"continue\n")
        await bb.wait(entry.task.task_id)


def test_a_command_can_report_exact_progress(home_cli: HomeCli) -> None:
    """A command appends JSON lines to the file named in BACKBURNER_PROGRESS."""
    line = """echo '{"done": 2, "total": 4, "text": "pages printed"}' >> "$BACKBURNER_PROGRESS"; read answer"""
    task_id = home_cli.run("sh", "-c", line, options=("--stdin",))
    wait_until(lambda: home_cli.status(task_id)["progress"], "the progress")
    progress = home_cli.status(task_id)["progress"]
    assert isinstance(progress, dict) and (progress["done"], progress["total"]) == (2, 4)
    home_cli.ok("send", task_id, "continue")
    home_cli.ok("wait", task_id)


def test_files_in_the_run_folder_are_listed_with_the_task(home_cli: HomeCli) -> None:
    """BACKBURNER_RUN_DIR is a folder for the files that a command produces."""
    status = home_cli.finish("sh", "-c", 'echo done > "$BACKBURNER_RUN_DIR/report.md"')
    assert status["artifacts"] == ["report.md"]
    assert (home_cli.folder(str(status["task_id"])) / "work" / "report.md").read_text() == "done\n"


async def test_each_task_has_a_trace(home_cli: HomeCli) -> None:
    """The span of a run is a child of the span in which the task was submitted."""
    async with Backburner.open(home_cli.root) as bb:
        entry = await bb.submit(["echo", "hello"], cwd=home_cli.cwd)
        await bb.wait(entry.task.task_id)
        start, run = await bb.trace(entry.task.task_id)
        assert run.parent_span_id == start.span_id and run.attributes["task.exit_code"] == 0
