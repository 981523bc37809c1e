"""The web interface on one host, for runs of another: output by page, search, downloads, files and the live stream."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from postgres_server import LedgerDatabase
from two_hosts import TwoHosts
from web_client import open_web

from backburner.interfaces.web.calls import Call
from backburner.interfaces.web.logs import locate
from backburner.interfaces.web.stream import Followed
from backburner.system.caller_identity import current_caller

LINES = b"".join(b"line %d\n" % n for n in range(1, 3001))


@pytest.fixture
def hosts(database: LedgerDatabase, tmp_path: Path) -> Iterator[TwoHosts]:
    database.empty()
    hosts = TwoHosts(database, tmp_path)
    yield hosts
    hosts.close()


def test_the_output_and_files_of_another_host_are_served(hosts: TwoHosts) -> None:
    run = hosts.run(output=LINES)
    (run.folder / "work" / "a file.bin").write_bytes(b"\0" * 3_000_000)
    run.end()

    async def main() -> None:
        async with open_web(hosts.here_home, {}) as web:
            page = web.token

            async def get(path: str, **query: object) -> dict:
                answer = await page.get(path, **query)
                assert answer.status_code == 200, answer.text
                return answer.json()

            task = await get(f"/tasks/{run.task_id}")
            assert task["folder"] is None and task["log"] is None and task["output_removed"] is False
            log = await get(f"/runs/{run.run_id}/log", line=2000, lines=2)
            assert (log["text"], log["first_line"], log["total_lines"], log["removed"]) == ("line 2000\nline 2001\n", 2000, 3000, False)
            assert (await get(f"/runs/{run.run_id}/log", tail=1))["text"] == "line 3000\n"
            for regex in (False, True):
                found = await get(f"/runs/{run.run_id}/log/search", q="line 299.$" if regex else "line 2999", regex=regex)
                assert found["total"] == (10 if regex else 1)
            assert (await page.get(f"/runs/{run.run_id}/log.txt")).content == LINES
            files = await get(f"/runs/{run.run_id}/artifacts")
            assert [(file["name"], file["size"]) for file in files["items"]] == [("a file.bin", 3_000_000)]
            file = await page.get(f"/runs/{run.run_id}/artifacts/a file.bin")
            assert file.content == b"\0" * 3_000_000 and file.headers["content-length"] == "3000000"
            assert (await get(f"/runs/{run.run_id}"))["size"] == run.log.stat().st_size
            hosts.stop()
            hosts.set_state("left")
            assert "has left" in (await get(f"/runs/{run.run_id}/log", tail=1)).get("note", "")

    asyncio.run(main())


def test_the_stream_follows_a_run_of_another_host(hosts: TwoHosts) -> None:
    run = hosts.run(output=b"first\n")
    app = hosts.here
    call = Call(current_caller("web", {}), {"id": run.run_id}, {})
    followed, text = Followed(locate(app, call), 0), ""
    try:
        for n in range(20):
            run.write(b"%d\n" % n)
            while not text.endswith(f"{n}\n"):
                if piece := followed.read():
                    text += str(piece["text"])
        run.end()
        followed.is_live = False
        last = followed.read()
        assert last and last["live"] is False
        with open(run.log, "rb") as file:
            assert last["cursor"] == f"1:{len(file.read())}"
    finally:
        followed.close()
    assert text == "first\n" + "".join(f"{n}\n" for n in range(20))
