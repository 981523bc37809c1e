"""The operations of the API: the board, lists by page, submitting with a key, acting on tasks, and the inbox."""

from collections.abc import AsyncIterator

import pytest_asyncio
from conftest import CONFIG, HomeCli, wait_until
from web_client import Web, open_web


@pytest_asyncio.fixture
async def web(home_cli: HomeCli) -> AsyncIterator[Web]:
    home_cli.configure(CONFIG)
    async with open_web(home_cli.home, home_cli.environ) as web:
        yield web


async def test_the_board_has_each_task_in_its_section(web: Web, home_cli: HomeCli) -> None:
    ended = str(home_cli.finish("true")["task_id"])
    running = home_cli.run("sh", "-c", "until [ -e go ]; do sleep 0.05; done")
    wait_until(lambda: home_cli.status(running)["status"] == "running", "the task to run")
    home_cli.cli("run", "--", "touch", "made")
    home_cli.ok("add", "nightly", "--every", "1h", "--yes", "--", "true")
    board = (await web.token.get("/board")).json()
    sections = {name: [row["task_id"] for row in board[name]] for name in ("running", "recent")}
    assert sections == {"running": [running], "recent": [ended]}
    assert [row["line"] for row in board["needs_you"]] == ["touch made"] and [row["name"] for row in board["next"]] == ["nightly"]
    assert board["counts"]["needs_you"] == 1 and board["clients"] == ["you"] and board["projects"] == [str(home_cli.cwd)]
    assert (await web.token.get("/board", q="made")).json()["running"] == []
    (home_cli.cwd / "go").write_text("")


async def test_the_json_of_a_task_is_that_of_the_command_line(web: Web, home_cli: HomeCli) -> None:
    task_id = str(home_cli.finish("echo", "--password=hunter2")["task_id"])
    (listed,) = home_cli.json("list")  # type: ignore[misc]
    (row,) = (await web.token.get("/tasks")).json()["items"]
    assert {name: row[name] for name in listed} == listed and "hunter2" not in row["line"]
    assert (await web.token.get(f"/tasks/{task_id}")).json()["can"] == ["clear", "restart"]


async def test_lists_are_read_by_page_and_know_when_nothing_has_changed(web: Web, home_cli: HomeCli) -> None:
    tasks = [str(home_cli.finish("true")["task_id"]) for _ in range(3)]
    first = await web.token.get("/tasks", limit=2)
    second = await web.token.get("/tasks", limit=2, before=first.json()["next"])
    assert [row["task_id"] for row in first.json()["items"] + second.json()["items"]] == tasks[::-1] and second.json()["next"] is None
    tag = {"if-none-match": first.headers["etag"]}
    assert (await web.token.get("/tasks", tag, limit=2)).status_code == 304
    home_cli.finish("true")
    assert (await web.token.get("/tasks", tag, limit=2)).status_code == 200
    for wrong in ({"status": "odd"}, {"limit": "0"}, {"before": "x"}, {"since": "x"}, {"unknown": "1"}):
        assert (await web.token.get("/tasks", **wrong)).status_code == 400, wrong


async def test_the_same_idempotency_key_submits_once(web: Web, home_cli: HomeCli) -> None:
    body = {"do": "run", "command": ["echo", "hello"], "cwd": str(home_cli.cwd)}
    one = await web.token.post("/tasks", body, {"idempotency-key": "k"})
    two = await web.token.post("/tasks", body, {"idempotency-key": "k"})
    assert one.status_code == two.status_code == 201 and one.json()["task"]["task_id"] == two.json()["task"]["task_id"]
    assert (await web.token.post("/tasks", {"do": "run", "command": [], "cwd": "/"})).status_code == 400
    assert (await web.token.post("/tasks", {"do": "run", "command": ["true"], "cwd": "relative"})).status_code == 400


async def test_a_paired_page_cancels_restarts_and_pauses(web: Web, home_cli: HomeCli) -> None:
    page = await web.pair()
    task_id = home_cli.run("sleep", "60")
    wait_until(lambda: home_cli.status(task_id)["status"] == "running", "the task to run")
    assert (await page.post(f"/tasks/{task_id}/cancel")).status_code == 200
    wait_until(lambda: home_cli.status(task_id)["status"] == "cancelled", "the end of the task")
    again = (await page.post(f"/tasks/{task_id}/restart")).json()
    assert again["restarted_from"] == task_id and again["task_id"] != task_id
    home_cli.cli("cancel", again["task_id"])
    home_cli.ok("add", "nightly", "--every", "1h", "--yes", "--", "true")
    assert (await page.post("/tasks/nightly/pause")).json()["status"] == "paused"
    assert (await page.post("/tasks/nightly/unpause")).json()["status"] == "active"
    assert (await page.post("/tasks/nightly/cancel")).status_code == 200
    assert (await page.post(f"/tasks/{task_id}/cancel")).status_code == 409


async def test_notices_are_acknowledged_only_when_that_is_asked(web: Web, home_cli: HomeCli) -> None:
    home_cli.finish("true")
    home_cli.run("false")
    wait_until(lambda: len(home_cli.json("inbox")) >= 1, "a notice")  # type: ignore[arg-type]
    unread = (await web.token.get("/inbox")).json()["items"]
    assert unread and unread[0]["to"] == "you" and (await web.token.get("/inbox")).json()["items"] == unread
    done = await web.token.post("/inbox/ack", {"ids": [unread[0]["notice_id"]]})
    assert done.json() == {"acknowledged": 1}
    assert unread[0]["notice_id"] not in [item["notice_id"] for item in (await web.token.get("/inbox")).json()["items"]]


async def test_the_question_shows_what_would_run_and_what_an_approval_covers(web: Web, home_cli: HomeCli) -> None:
    (home_cli.cwd / "script.sh").write_text("touch made\n")
    home_cli.cli("run", "--shell", "--", "rm -rf build && sh script.sh")
    page = await web.pair()
    (row,) = (await page.get("/board")).json()["needs_you"]
    card = (await page.get(f"/tasks/{row['task_id']}/question")).json()
    assert card["open"] and [part["command"] for part in card["parts"]] == ["rm -rf build", "sh script.sh"]
    assert any(path.endswith("/script.sh") for path in card["bound"]) and card["files"][0]["text"] == "touch made\n"
    assert len(card["seen"]) == 64 and card["level"] == "no_passkey" and card["answered"] is None
    home_cli.ok("reject", row["task_id"])
    after = (await page.get(f"/tasks/{row['task_id']}/question")).json()
    assert not after["open"] and after["answered"]["answer"] == "rejected"
