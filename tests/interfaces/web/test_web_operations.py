"""Operations of the API that need more than a look: files of a run, reasons, permissions, the audit page by page, and notices of pairings."""

import os
from collections.abc import AsyncIterator
from pathlib import Path

import httpx2
import pytest
import pytest_asyncio
from conftest import CONFIG, NO_TERMINAL, HomeCli
from web_client import HOST, Page, SoftPasskey, Web, open_web

from backburner.interfaces.web.operations import OPERATIONS


@pytest_asyncio.fixture
async def web(home_cli: HomeCli) -> AsyncIterator[Web]:
    home_cli.configure(CONFIG)
    async with open_web(home_cli.home, home_cli.environ) as web:
        yield web


def code(answer: httpx2.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["error"]["code"]


def propose(home_cli: HomeCli, *command: str) -> str:
    home_cli.cli("run", "--json", "--", *command)
    return str(home_cli.json("list", "proposed")[0]["task_id"])  # type: ignore[index]


# -- files of a run


@pytest.fixture
def work(home_cli: HomeCli) -> tuple[str, Path]:
    """A finished task and the folder in which its command could write."""
    task_id = str(home_cli.finish("true")["task_id"])
    folder = Path(home_cli.root) / "tasks" / task_id / "work"
    folder.mkdir(exist_ok=True)
    return task_id, folder


async def test_the_files_of_a_run_are_listed_and_downloaded(web: Web, work: tuple[str, Path]) -> None:
    task_id, folder = work
    (folder / "site").mkdir()
    (folder / "site" / "index.html").write_bytes(b"<script>alert(1)</script>")
    (folder / "ü \u202e.txt").write_bytes(b"x" * 700_000)
    (folder / ".hidden").write_text("no")
    page = await web.pair()
    items = (await page.get(f"/runs/{task_id}/artifacts")).json()["items"]
    assert len(items) == 2 and "\u202e" not in str(items)
    names = {item["size"]: item["name"] for item in items}
    answer = await page.get(f"/runs/{task_id}/artifacts/{names[25]}")
    assert answer.content == b"<script>alert(1)</script>" and answer.headers["content-type"] == "application/octet-stream"
    assert answer.headers["content-disposition"] == "attachment; filename*=UTF-8''index.html"
    assert answer.headers["content-security-policy"].startswith("sandbox;") and answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["cache-control"] == "no-store"
    assert (await page.get(f"/runs/{task_id}/artifacts/{names[700_000]}")).content == b"x" * 700_000
    assert (await web.nobody.get(f"/runs/{task_id}/artifacts/{names[25]}")).status_code == 401


@pytest.mark.parametrize("planted", ["link", "folder_link", "pipe", "replaced_work"])
async def test_nothing_outside_of_the_folder_is_read(web: Web, work: tuple[str, Path], tmp_path: Path, planted: str) -> None:
    task_id, folder = work
    (tmp_path / "secret").write_text("hidden words")
    match planted:
        case "link":
            (folder / "file").symlink_to(tmp_path / "secret")
        case "folder_link":
            (folder / "dir").symlink_to(tmp_path)
        case "pipe":
            os.mkfifo(folder / "file")
        case "replaced_work":
            folder.rmdir()
            folder.symlink_to(tmp_path)
    page = await web.pair()
    assert (await page.get(f"/runs/{task_id}/artifacts")).json()["items"] == []
    for name in ("file", "dir/secret", "secret", "../metadata.json", "..%2Fmetadata.json", "%2e%2e/metadata.json", "/etc/passwd", "", "."):
        answer = await page.get(f"/runs/{task_id}/artifacts/{name}")
        assert answer.status_code == 404 or answer.json().get("items") == [], (name, answer.text)
        assert b"hidden words" not in answer.content


# -- reasons


async def test_why_says_in_one_sentence_what_a_task_waits_for(web: Web, home_cli: HomeCli) -> None:
    done, failed = str(home_cli.finish("true")["task_id"]), str(home_cli.finish("false")["task_id"])
    waiting = propose(home_cli, "touch", "made")
    page = await web.pair()

    async def why(task_id: str) -> tuple[str, str | None]:
        found = (await page.get(f"/tasks/{task_id}/why")).json()
        return found["sentence"], found["do"]

    assert await why(done) == ("It completed.", None)
    assert await why(failed) == ("It failed: exit 1.", f"backburner restart {failed}")
    sentence, do = await why(waiting)
    assert sentence.startswith("It waits for your answer: ") and do == f"backburner approve {waiting}"
    await page.post(f"/tasks/{waiting}/reject", {"reason": "Not now."})
    assert await why(waiting) == ("It was rejected and did not run. The reason: Not now.", None)
    found = (await page.get(f"/tasks/{done}/why")).json()
    assert (found["decision"], found["by"], found["via"]) == ("approved", "user", "cli") and found["at"]


async def test_the_reason_of_a_rejection_is_on_the_card_and_in_the_audit(web: Web, home_cli: HomeCli) -> None:
    task_id, page = propose(home_cli, "touch", "made"), await web.pair()
    await page.post(f"/tasks/{task_id}/reject", {"reason": "Use\x1b[31m another name."})
    answered = (await page.get(f"/tasks/{task_id}/question")).json()["answered"]
    assert answered["answer"] == "rejected" and answered["reason"] == "Use another name." and answered["via"].startswith("web:")
    (item,) = (await page.get("/audit", decision="rejected")).json()["items"]
    assert (item["task_id"], item["reason"], item["by"], item["level"]) == (task_id, "Use another name.", "user", "paired")
    assert item["device"]["name"] == "Firefox 140 on Linux" and item["line"] == "touch made"


# -- permissions


async def sign(page: Page, passkey: SoftPasskey, body: dict[str, object]) -> httpx2.Response:
    asked = (await page.post("/grants/challenge", body)).json()
    return await page.post("/grants", {**body, "nonce": asked["nonce"], "proof": passkey.sign(asked["challenge"])})


async def test_a_passkey_trusts_a_project_and_always_allows_a_command(web: Web, home_cli: HomeCli) -> None:
    home_cli.configure(NO_TERMINAL)
    page = await web.pair()
    passkey = await web.add_passkey(page)
    cwd = str(home_cli.cwd)
    always = {"kind": "always", "cwd": cwd, "command": ["npm", "install", "left-pad"]}
    answer = await sign(page, passkey, always)
    assert answer.status_code == 201 and [item["kind"] for item in answer.json()["items"]] == ["always"], answer.text
    assert "rule: always" in home_cli.cli("check", "--", "npm", "install", "left-pad").stdout
    assert "rule: default" in home_cli.cli("check", "--", "npm", "install", "other").stdout
    answer = await sign(page, passkey, {"kind": "trust", "cwd": cwd})
    assert [item["kind"] for item in answer.json()["items"]] == ["always", "trust"], answer.text
    (trusted,) = [item for item in (await page.get("/projects")).json()["items"] if item["project"] == cwd] or [{"trusted": True}]
    assert trusted["trusted"]


async def test_a_permission_needs_a_passkey_for_exactly_this(web: Web, home_cli: HomeCli) -> None:
    task_id = propose(home_cli, "touch", "made")
    home_cli.configure(NO_TERMINAL)
    page, other = await web.pair(), await web.pair("another")
    cwd = str(home_cli.cwd)
    wanted, harmless = {"kind": "trust", "cwd": cwd}, {"kind": "always", "cwd": cwd, "command": ["npm", "install", "left-pad"]}
    assert code(await page.post("/grants/challenge", wanted)) == (403, "no_passkey")
    passkey = await web.add_passkey(page)
    body = {**wanted, "nonce": "x", "proof": {}}
    assert code(await web.token.post("/grants", body)) == (403, "not_a_person")
    assert code(await web.token.post("/grants/challenge", wanted)) == (403, "not_a_person")
    assert (await web.nobody.post("/grants", body)).status_code == 401
    asked = (await page.post("/grants/challenge", harmless)).json()
    proof = passkey.sign(asked["challenge"])
    assert code(await page.post("/grants", {**wanted, "nonce": asked["nonce"], "proof": proof})) == (403, "proof_refused")
    asked = await web.challenge(page, task_id)  # an answer for an approval gives no permission
    refused = await page.post("/grants", {**wanted, "nonce": asked["nonce"], "proof": passkey.sign(asked["challenge"])})
    assert code(refused) == (403, "proof_refused")
    asked = (await page.post("/grants/challenge", wanted)).json()
    signed = {**wanted, "nonce": asked["nonce"], "proof": passkey.sign(asked["challenge"])}
    assert code(await other.post("/grants", signed)) == (403, "proof_refused")
    assert code(await sign(page, SoftPasskey(), wanted)) == (403, "proof_refused")
    assert (await page.get("/grants")).json()["items"] == []
    reasons = [item["reason"] for item in (await page.get("/audit", decision="refused")).json()["items"]]
    assert len(reasons) == 6 and "the nonce belongs to another device" in reasons
    # The nonce was used up by the attempt of the other device.
    assert code(await page.post("/grants", signed)) == (403, "proof_refused")
    assert (await page.post("/grants/challenge", {"kind": "trust", "cwd": "/"})).status_code == 400


# -- the audit


async def test_the_audit_is_read_page_by_page_without_gaps(web: Web, home_cli: HomeCli) -> None:
    page = await web.pair()
    for _ in range(4):
        home_cli.finish("true")
    waiting = [propose(home_cli, "touch", f"made{n}") for n in range(3)]
    for task_id in waiting[:2]:
        await web.token.post(f"/tasks/{task_id}/challenge", {"seen": "0" * 64, "choice": "once"})
    await page.post(f"/tasks/{waiting[0]}/reject")
    whole = (await page.get("/audit", limit="500")).json()
    assert whole["next"] is None
    found: list[str] = []
    before: dict[str, str] = {}
    while True:
        answer = (await page.get("/audit", limit="2", **before)).json()
        found += [item["id"] for item in answer["items"]]
        if answer["next"] is None:
            break
        before = {"before": answer["next"]}
    assert found == [item["id"] for item in whole["items"]] and len(set(found)) == len(found)
    decisions = sorted(item["decision"] for item in whole["items"])
    assert decisions == ["approved"] * 4 + ["paired"] + ["proposed"] * 2 + ["refused"] * 2 + ["rejected"]
    for decision in set(decisions):
        some = (await page.get("/audit", decision=decision)).json()["items"]
        assert len(some) == decisions.count(decision) and all(item["decision"] == decision for item in some)
    assert code(await page.get("/audit", before="12")) == (400, "bad_input")


# -- notices of pairings, and the description for people


async def test_a_pairing_and_a_passkey_are_announced_in_the_inbox(web: Web, home_cli: HomeCli) -> None:
    page = await web.pair("Firefox 140 on Linux")
    await web.add_passkey(page)
    items = (await page.get("/inbox")).json()["items"]
    assert [item["kind"] for item in items] == ["paired", "paired"] and (await page.get("/home")).json()["counts"]["inbox"] == 2
    assert "can now approve with a passkey" in items[1]["text"] or "can now approve with a passkey" in items[0]["text"]
    shown = home_cli.ok("inbox")
    assert "Firefox 140 on Linux at 127.0.0.1 was paired with the web interface." in shown and "backburner devices revoke device_" in shown
    assert "paired with the web interface" in home_cli.ok("inbox", "--ack")
    assert "paired" not in home_cli.ok("inbox") and (await page.get("/inbox")).json()["items"] == []
    await web.pair("phone")
    (notice,) = (await page.get("/inbox")).json()["items"]
    assert "phone" in notice["text"]
    assert (await page.post("/inbox/ack", {"ids": [notice["notice_id"]]})).json() == {"acknowledged": 1}
    assert (await page.get("/inbox")).json()["items"] == []


async def test_the_reader_page_describes_every_operation_and_holds_no_data(web: Web) -> None:
    answer = await web.client.get("/api", headers={"host": HOST})
    assert answer.status_code == 200 and answer.headers["content-type"].startswith("text/html") and "<script" not in answer.text
    assert all(f"{operation.method} /api/v1{operation.path}</code>" in answer.text for operation in OPERATIONS)
    assert (await web.client.get("/api", headers={"host": "evil.example"})).status_code == 421
