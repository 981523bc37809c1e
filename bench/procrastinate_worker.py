"""A worker of Procrastinate alone, for comparison: `python -m bench.procrastinate_worker URL FILE SEATS`.

A job starts a command and waits for it, as a run does. The output of the commands is appended to FILE.
"""

import asyncio
import os
import sys

from procrastinate import App, PsycopgConnector


def main(url: str, path: str, capacity: int) -> None:
    app = App(connector=PsycopgConnector(conninfo=url))
    output = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    @app.task(name="command")
    async def command(words: list[str]) -> None:
        process = await asyncio.create_subprocess_exec(*words, stdin=asyncio.subprocess.DEVNULL, stdout=output)
        await process.wait()

    @app.task(name="nothing")
    async def nothing() -> None:
        pass

    async def work() -> None:
        async with app.open_async():
            await app.run_worker_async(concurrency=capacity, delete_jobs="always")

    asyncio.run(work())


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
