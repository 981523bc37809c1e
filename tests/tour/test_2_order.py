"""Second stop: order, groups, keys, servers, and how far something is. Read it from top to bottom."""

import asyncio

from conftest import Place

from backburner import Backburner

SERVER = "import socket; s = socket.create_server(('127.0.0.1', 0)); print('ready on', s.getsockname()[1], flush=True); s.accept()"


async def test_one_task_comes_after_another_and_a_batch_holds_them_together(place: Place) -> None:
    async with Backburner.open(place.root) as bb:
        build = await bb.submit(["echo", "built"], cwd=place.cwd, batch="release")
        check = await bb.submit(["echo", "checked"], cwd=place.cwd, batch="release", after=[build.task.task_id])
        await bb.wait(build.task.task_id, check.task.task_id)
        (release,) = await bb.batches()
        assert release.counts == {"completed": 2}
        assert [entry.task.spec.order.after for entry in await bb.list(batch="release")] == [(build.task.task_id,), ()]


async def test_what_comes_after_a_failure_fails_with_the_reason(place: Place) -> None:
    async with Backburner.open(place.root) as bb:
        broken = await bb.submit(["false"], cwd=place.cwd)
        never = await bb.submit(["echo", "never"], cwd=place.cwd, after=[broken.task.task_id])
        (entry,) = await bb.wait(never.task.task_id)
        assert entry.run and entry.run.error == f"dependency {broken.task.task_id} failed"


async def test_a_key_makes_asking_twice_harmless(place: Place) -> None:
    async with Backburner.open(place.root) as bb:
        first = await bb.submit(["echo", "once"], cwd=place.cwd, key="report of today")
        again = await bb.submit(["echo", "once"], cwd=place.cwd, key="report of today")
        assert first.task.task_id == again.task.task_id
        await bb.wait(first.task.task_id)


async def test_a_command_says_how_far_it_is(place: Place) -> None:
    async with Backburner.open(place.root) as bb:
        line = "echo 132/247 files processed; read on"
        entry = await bb.submit(line, shell=True, cwd=place.cwd, stdin=True, approved=True)
        async with asyncio.timeout(20):
            while (progress := await bb.progress(entry.task.task_id)) is None:
                continue
        assert (progress.done, progress.total, progress.text) == (132, 247, "132/247 files processed (53%)")
        await bb.send(entry.task.task_id, b"go on\n")
        await bb.wait(entry.task.task_id)


async def test_a_server_is_ready_when_it_says_so(place: Place) -> None:
    async with Backburner.open(place.root) as bb:
        entry = await bb.submit(["python3", "-c", SERVER], cwd=place.cwd, ready_when=r"ready on \d+", approved=True)
        entry = await bb.ready(entry.task.task_id, timeout=20)
        assert entry.is_ready
        await bb.cancel(entry.task.task_id)


async def test_everything_hangs_together_in_a_trace(place: Place) -> None:
    async with Backburner.open(place.root) as bb:
        entry = await bb.submit(["echo", "hello"], cwd=place.cwd)
        await bb.wait(entry.task.task_id)
        start, run = await bb.trace(entry.task.task_id)
        assert run.parent_span_id == start.span_id and run.attributes["task.exit_code"] == 0
