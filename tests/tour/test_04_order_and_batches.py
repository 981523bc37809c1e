"""Chapter 4: dependencies between tasks, batches, keys, and delayed starts."""

from conftest import HomeCli

from backburner import Backburner


async def test_a_task_can_depend_on_another_and_a_batch_groups_them(home_cli: HomeCli) -> None:
    """`after` starts a task when another has completed; `batch` is a label for several tasks."""
    async with Backburner.open(home_cli.root) as bb:
        build = await bb.submit(["echo", "built"], cwd=home_cli.cwd, batch="release")
        check = await bb.submit(["echo", "checked"], cwd=home_cli.cwd, batch="release", after=[build.task.task_id])
        await bb.wait(build.task.task_id, check.task.task_id)
        (release,) = await bb.batches()
        assert release.counts == {"completed": 2}
        assert [entry.task.spec.order.after for entry in await bb.list(batch="release")] == [(build.task.task_id,), ()]


async def test_a_task_fails_when_its_dependency_fails(home_cli: HomeCli) -> None:
    """The dependent task never starts. Its error names the task that failed."""
    async with Backburner.open(home_cli.root) as bb:
        broken = await bb.submit(["false"], cwd=home_cli.cwd)
        never = await bb.submit(["echo", "never"], cwd=home_cli.cwd, after=[broken.task.task_id])
        (entry,) = await bb.wait(never.task.task_id)
        assert entry.status == "failed" and entry.run and entry.run.end.result == "dependency"
        assert entry.run.error == f"dependency {broken.task.task_id} failed"


def test_a_dependent_task_can_read_the_output_of_its_dependency(home_cli: HomeCli) -> None:
    """It gets copies of the log, which begins with a header, and of the result."""
    home_cli.ok("run", "--name", "build", "--", "echo", "version 1.2")
    copied = home_cli.run("sh", "-c", 'tail -n 1 "$BACKBURNER_AFTER_LOG"', options=("--after", "build"))
    home_cli.ok("wait", copied)
    assert home_cli.log(copied) == b"version 1.2\n"


def test_a_batch_can_be_waited_for_and_cleared(home_cli: HomeCli) -> None:
    """`list`, `wait`, `cancel` and `clear` accept `--batch`."""
    for name in ("one", "two"):
        home_cli.ok("run", "--batch", "demo", "--name", name, "--", "echo", name)
    home_cli.ok("wait", "--batch", "demo")
    cleared = home_cli.json("clear", "--batch", "demo")
    assert isinstance(cleared, dict) and len(cleared["cleared"]) == 2


async def test_submitting_twice_with_the_same_key_starts_one_task(home_cli: HomeCli) -> None:
    """A key makes it safe to repeat a request."""
    async with Backburner.open(home_cli.root) as bb:
        first = await bb.submit(["echo", "once"], cwd=home_cli.cwd, key="report of today")
        again = await bb.submit(["echo", "once"], cwd=home_cli.cwd, key="report of today")
        assert first.task.task_id == again.task.task_id
        await bb.wait(first.task.task_id)


def test_a_start_can_be_delayed(home_cli: HomeCli) -> None:
    """`--in` and `--at` delay the start. Until then the task is pending and can be cancelled."""
    task_id = home_cli.ok("run", "--in", "1h", "--", "echo", "later").strip()
    assert home_cli.status(task_id)["status"] == "pending"
    home_cli.ok("cancel", task_id)
    assert home_cli.status(task_id)["status"] == "cancelled"
