"""Approving in the web interface: by a passkey only, for exactly what was shown, once. And what an attacker tries instead."""

import hashlib
import os
from collections.abc import AsyncIterator
from pathlib import Path

import httpx2
import pytest
import pytest_asyncio
from conftest import CONFIG, HomeCli
from web_client import Page, SoftPasskey, Web, b64, open_web

from backburner.core.errors import BackburnerError
from backburner.system.home import lock


@pytest_asyncio.fixture
async def web(home_cli: HomeCli) -> AsyncIterator[Web]:
    home_cli.configure(CONFIG)
    async with open_web(home_cli.home, home_cli.environ) as web:
        yield web


def propose(home_cli: HomeCli, *command: str) -> str:
    """A task that waits for approval, because the gate asks."""
    done = home_cli.cli("run", "--json", "--", *command)
    assert done.returncode == 3, (done.stdout, done.stderr)
    return str(home_cli.json("list", "proposed")[0]["task_id"])  # type: ignore[index]


def code(answer: httpx2.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["error"]["code"]


async def refusals(page: Page) -> list[str]:
    return [item["reason"] for item in (await page.get("/audit", decision="refused")).json()["items"]]


async def test_a_passkey_approves_what_was_shown_and_the_proof_is_kept(web: Web, home_cli: HomeCli) -> None:
    task_id = propose(home_cli, "touch", "made")
    page = await web.pair()
    passkey = await web.add_passkey(page)
    asked = await web.challenge(page, task_id)
    home_id = (await page.get("/home")).json()["home_id"]
    assert asked["text"] == f"backburner/approve/1\n{home_id}\n{task_id}\n{asked['seen']}\n{asked['nonce']}\nonce"
    assert asked["challenge"] == b64(hashlib.sha256(asked["text"].encode()).digest()) == asked["publicKey"]["challenge"]
    answer = await web.approve(page, task_id, asked, passkey.sign(asked["challenge"]))
    assert answer.status_code == 200 and answer.json()["approved_by"] == "user", answer.text
    home_cli.ok("wait", task_id, "--timeout", "60")
    assert (home_cli.cwd / "made").exists()
    items = (await page.get("/audit", task=task_id, verify="true")).json()["items"]
    assert [(item["decision"], item["level"], item["verified"]) for item in items] == [("approved", "passkey", True)]
    assert items[0]["device"]["name"] == "Firefox 140 on Linux"


async def test_a_stored_proof_that_was_changed_is_not_verified(web: Web, home_cli: HomeCli) -> None:
    task_id = propose(home_cli, "touch", "made")
    page = await web.pair()
    passkey = await web.add_passkey(page)
    asked = await web.challenge(page, task_id)
    await web.approve(page, task_id, asked, passkey.sign(asked["challenge"]))
    attempt = await web.call(lambda app: app.devices.proof_of(task_id))
    changed = attempt._replace(text=str(attempt.text).replace(task_id, "task_other"), task_id="task_other")
    assert await web.call(lambda app: app.passkeys.is_verified(attempt))
    assert not await web.call(lambda app: app.passkeys.is_verified(changed))


async def test_a_token_never_approves_and_the_attempt_is_in_the_audit(web: Web, home_cli: HomeCli) -> None:
    task_id = propose(home_cli, "touch", "made")
    body = {"nonce": "x", "seen": "0" * 64, "choice": "once", "proof": {}}
    assert code(await web.token.post(f"/tasks/{task_id}/approve", body)) == (403, "not_a_person")
    assert code(await web.token.post(f"/tasks/{task_id}/challenge", {"seen": "0" * 64, "choice": "once"})) == (403, "not_a_person")
    assert code(await web.token.post("/passkeys/options")) == (403, "not_a_person")
    assert len(await refusals(web.token)) == 2 and home_cli.status(task_id)["status"] == "proposed"


async def test_a_paired_page_without_a_passkey_cannot_approve(web: Web, home_cli: HomeCli) -> None:
    task_id = propose(home_cli, "touch", "made")
    page = await web.pair()
    question = (await page.get(f"/tasks/{task_id}/question")).json()
    assert question["level"] == "no_passkey" and question["terminal"].startswith(f"backburner approve {task_id} --seen ")
    body = {"seen": question["seen"], "choice": "once"}
    assert code(await page.post(f"/tasks/{task_id}/challenge", body)) == (403, "no_passkey")
    proof = SoftPasskey().sign("x")
    answer = await page.post(f"/tasks/{task_id}/approve", {**body, "nonce": "x", "proof": proof})
    assert code(answer) == (403, "proof_refused") and len(await refusals(page)) == 1


async def test_an_assertion_is_worth_nothing_a_second_time(web: Web, home_cli: HomeCli) -> None:
    first, page = propose(home_cli, "touch", "made"), await web.pair()
    passkey = await web.add_passkey(page)
    asked = await web.challenge(page, first)
    proof = passkey.sign(asked["challenge"])
    assert (await web.approve(page, first, asked, proof)).status_code == 200
    assert code(await web.approve(page, first, asked, proof)) == (403, "proof_refused")
    assert home_cli.status(first)["run_count"] == 1


async def test_two_answers_with_two_nonces_start_one_run(web: Web, home_cli: HomeCli) -> None:
    task_id, page = propose(home_cli, "touch", "made"), await web.pair()
    passkey = await web.add_passkey(page)
    one, two = await web.challenge(page, task_id), await web.challenge(page, task_id)
    assert (await web.approve(page, task_id, one, passkey.sign(one["challenge"]))).status_code == 200
    assert (await web.approve(page, task_id, two, passkey.sign(two["challenge"]))).status_code == 409
    assert home_cli.status(task_id)["run_count"] == 1


async def test_an_assertion_for_one_task_does_not_approve_another(web: Web, home_cli: HomeCli) -> None:
    harmless = propose(home_cli, "touch", "made")
    home_cli.cli("run", "--json", "--", "rm", "-r", "precious")
    other = str(home_cli.json("list", "proposed")[0]["task_id"])  # type: ignore[index]
    page = await web.pair()
    passkey = await web.add_passkey(page)
    asked = await web.challenge(page, harmless)
    proof = passkey.sign(asked["challenge"])
    assert code(await web.approve(page, other, asked, proof)) == (403, "proof_refused")
    assert await refusals(page) == ["the nonce belongs to something else"]
    mine = await web.challenge(page, other)  # the nonce of the other task, with the answer for the harmless one
    assert code(await web.approve(page, other, mine, proof)) == (403, "proof_refused")
    assert home_cli.status(other)["status"] == "proposed"


@pytest.mark.parametrize("changed", ["choice", "seen", "signature", "origin", "unverified", "nonce"])
async def test_an_answer_that_differs_in_anything_is_refused(web: Web, home_cli: HomeCli, changed: str) -> None:
    task_id, page = propose(home_cli, "touch", "made"), await web.pair()
    passkey = await web.add_passkey(page, SoftPasskey())
    asked = await web.challenge(page, task_id)
    proof = passkey.sign(asked["challenge"])
    more: dict[str, object] = {}
    match changed:
        case "choice":
            more = {"choice": "trust"}
        case "seen":
            more = {"seen": "0" * 64}
        case "signature":
            proof["response"]["signature"] = proof["response"]["signature"][::-1]
        case "origin":
            proof = passkey.sign(asked["challenge"], "http://backburner.localhost:9999")
        case "unverified":
            passkey._flags = 1
            proof = passkey.sign(asked["challenge"])
        case "nonce":
            more = {"nonce": "another"}
    answer = await web.approve(page, task_id, asked, proof, **more)
    assert code(answer) == (403, "proof_refused") and home_cli.status(task_id)["status"] == "proposed"
    assert len(await refusals(page)) == 1


async def test_an_assertion_of_another_device_is_refused(web: Web, home_cli: HomeCli) -> None:
    task_id = propose(home_cli, "touch", "made")
    mine, stolen = await web.pair(), await web.pair("an attacker's page")
    passkey = await web.add_passkey(mine)
    asked = await web.challenge(mine, task_id)
    assert code(await web.approve(stolen, task_id, asked, passkey.sign(asked["challenge"]))) == (403, "proof_refused")
    assert await refusals(mine) == ["the nonce belongs to another device"]
    again = await web.challenge(mine, task_id)
    assert code(await web.approve(mine, task_id, again, SoftPasskey().sign(again["challenge"]))) == (403, "proof_refused")


async def test_a_script_that_changed_after_the_question_was_drawn_is_not_approved(web: Web, home_cli: HomeCli) -> None:
    script = home_cli.cwd / "script.sh"
    script.write_text("touch harmless\n")
    task_id, page = propose(home_cli, "sh", "script.sh"), await web.pair()
    passkey = await web.add_passkey(page)
    asked = await web.challenge(page, task_id)
    script.write_text("touch harmful\n")
    assert code(await web.approve(page, task_id, asked, passkey.sign(asked["challenge"]))) == (409, "question_changed")
    late = await page.post(f"/tasks/{task_id}/challenge", {"seen": asked["seen"], "choice": "once"})
    assert code(late) == (409, "question_changed") and home_cli.status(task_id)["status"] == "proposed"


async def test_a_nonce_is_valid_for_a_minute(web: Web, home_cli: HomeCli) -> None:
    task_id, page = propose(home_cli, "touch", "made"), await web.pair()
    passkey = await web.add_passkey(page)
    asked = await web.challenge(page, task_id)

    def later(app: object) -> None:
        app.clock = lambda now=app.clock: now() + 61_000  # type: ignore[attr-defined]

    await web.call(later)
    assert code(await web.approve(page, task_id, asked, passkey.sign(asked["challenge"]))) == (403, "proof_refused")


async def test_after_ten_wrong_answers_in_a_minute_a_device_must_wait(web: Web, home_cli: HomeCli) -> None:
    task_id, page = propose(home_cli, "touch", "made"), await web.pair()
    await web.add_passkey(page)
    body = {"nonce": "x", "seen": "0" * 64, "choice": "once", "proof": {}}
    answers = [await page.post(f"/tasks/{task_id}/approve", body) for _ in range(11)]
    assert [answer.status_code for answer in answers] == [403] * 10 + [429] and "retry-after" in answers[-1].headers


async def test_approving_can_be_turned_off(web: Web, home_cli: HomeCli) -> None:
    task_id, page = propose(home_cli, "touch", "made"), await web.pair()
    await web.add_passkey(page)
    home_cli.configure(CONFIG.replace("[approval]\n", '[approval]\nweb = "off"\n'))
    seen = (await page.get(f"/tasks/{task_id}/question")).json()["seen"]
    assert code(await page.post(f"/tasks/{task_id}/challenge", {"seen": seen, "choice": "once"})) == (403, "web_approval_off")


async def test_a_choice_to_trust_the_project_is_granted_with_the_approval(web: Web, home_cli: HomeCli) -> None:
    home_cli.configure(CONFIG.replace('"project_code", ', ""))
    (home_cli.cwd / "Makefile").write_text("all:\n\ttouch made\n")
    task_id, page = propose(home_cli, "touch", "made"), await web.pair()
    passkey = await web.add_passkey(page)
    asked = await web.challenge(page, task_id, "trust")
    assert (await web.approve(page, task_id, asked, passkey.sign(asked["challenge"]))).status_code == 200
    assert [grant["kind"] for grant in (await page.get("/grants")).json()["items"]] == ["trust"]


# -- pairing


async def test_an_agent_cannot_pair_itself(web: Web, home_cli: HomeCli) -> None:
    commitment = hashlib.sha256(b"dev_x").hexdigest()
    assert code(await web.nobody.post("/pair", {"commitment": commitment, "name": "x"})) == (403, "pairing_closed")
    held = lock(os.path.join(home_cli.root, "pairing.lock"))
    assert held is not None
    asked = (await web.nobody.post("/pair", {"commitment": commitment, "name": "x"})).json()
    environ = {**home_cli.environ, "CLAUDECODE": "1"}

    def type_it(app: object) -> None:
        from backburner.core.models import Caller

        for via in ("tool", "api", "web:device_x", "cli", "channel:discord:me"):
            with pytest.raises(BackburnerError, match="Only a person"):
                app.devices.accept_number(asked["number"], Caller("/", environ, via))  # type: ignore[attr-defined]

    await web.call(type_it)
    os.close(held)
    assert (await web.nobody.get(f"/pair/{asked['pairing']}")).json() == {"state": "waiting", "device_id": None}
    assert code(await Page(web.client, "dev_x").get("/home")) == (401, "unauthorized")


async def test_a_wrong_number_pairs_nothing_and_five_tries_a_minute_are_allowed(web: Web, home_cli: HomeCli) -> None:
    for number in range(5):
        with pytest.raises(BackburnerError, match="No page shows this number"):
            await web.type(f"{number:06d}")
    with pytest.raises(BackburnerError, match="Too many attempts"):
        await web.type("000005")


async def test_a_page_may_ask_to_be_paired_five_times_a_minute(web: Web, home_cli: HomeCli) -> None:
    held = lock(os.path.join(home_cli.root, "pairing.lock"))
    assert held is not None
    body = {"commitment": "0" * 64, "name": "x"}
    found = [(await web.nobody.post("/pair", body)).status_code for _ in range(6)]
    os.close(held)
    assert found == [201] * 5 + [429]


async def test_a_revoked_device_can_do_nothing(web: Web, home_cli: HomeCli) -> None:
    page, other = await web.pair(), await web.pair("another")
    (mine, theirs) = (await page.get("/devices")).json()["items"]
    assert mine["own"] and not theirs["own"]
    assert code(await page.delete(f"/devices/{theirs['device_id']}")) == (403, "not_a_person")
    assert code(await web.token.delete(f"/devices/{theirs['device_id']}")) == (403, "not_a_person")
    assert (await page.delete(f"/devices/{mine['device_id']}")).status_code == 204
    assert code(await page.get("/home")) == (401, "unauthorized")
    home_cli.ok("devices", "revoke", theirs["device_id"])
    assert code(await other.get("/home")) == (401, "unauthorized") and home_cli.json("devices") == []


async def test_a_device_that_was_not_used_for_thirty_days_must_be_paired_again(web: Web) -> None:
    page = await web.pair()

    def later(app: object) -> None:
        app.clock = lambda now=app.clock: now() + 30 * 86_400_000  # type: ignore[attr-defined]

    await web.call(later)
    assert code(await page.get("/home")) == (401, "unauthorized")


# -- passkeys


async def test_a_passkey_cannot_be_used_before_its_number_was_typed(web: Web, home_cli: HomeCli) -> None:
    task_id, page = propose(home_cli, "touch", "made"), await web.pair()
    added = (await web.register(page, SoftPasskey())).json()
    assert (added["state"], added["confirm"]) == ("pending", "terminal")
    seen = (await page.get(f"/tasks/{task_id}/question")).json()["seen"]
    assert code(await page.post(f"/tasks/{task_id}/challenge", {"seen": seen, "choice": "once"})) == (403, "no_passkey")


async def test_a_further_passkey_needs_one_that_is_there(web: Web, home_cli: HomeCli) -> None:
    page, phone = await web.pair(), await web.pair("phone")
    passkey = await web.add_passkey(page)
    added = (await web.register(phone, SoftPasskey())).json()
    assert added["confirm"] == "passkey"
    with pytest.raises(BackburnerError, match="No page shows this number"):
        await web.type(added["number"])  # a terminal alone is not enough any more
    where = f"/passkeys/{added['passkey_id']}"
    assert code(await phone.post(f"{where}/challenge")) == (403, "no_passkey")
    asked = (await page.post(f"{where}/challenge")).json()
    wrong = await page.post(f"{where}/confirm", {"nonce": asked["nonce"], "proof": SoftPasskey().sign(asked["challenge"])})
    assert code(wrong) == (403, "proof_refused")
    asked = (await page.post(f"{where}/challenge")).json()
    done = await page.post(f"{where}/confirm", {"nonce": asked["nonce"], "proof": passkey.sign(asked["challenge"])})
    assert done.status_code == 200 and done.json()["state"] == "active", done.text


async def test_passkeys_work_only_at_the_own_name(web: Web) -> None:
    page = await web.pair()
    elsewhere = Page(web.client, page.credential, host="127.0.0.1:8765")
    assert code(await elsewhere.post("/passkeys/options")) == (403, "passkeys_not_here")
    assert (await elsewhere.get("/home")).json()["passkeys_here"] is False


async def test_a_phone_approves_through_an_https_proxy(home_cli: HomeCli) -> None:
    origin = "https://laptop.example.ts.net"
    home_cli.configure(f'{CONFIG}\n[web]\norigin = "{origin}"\n')
    async with open_web(home_cli.home, home_cli.environ, origin) as web:
        task_id, page = propose(home_cli, "touch", "made"), await web.pair()
        page.headers |= {"host": "laptop.example.ts.net", "origin": origin}
        passkey = await web.add_passkey(page, SoftPasskey("laptop.example.ts.net", origin))
        asked = await web.challenge(page, task_id)
        assert (await web.approve(page, task_id, asked, passkey.sign(asked["challenge"]))).status_code == 200


# -- rejecting


async def test_a_paired_page_rejects_and_a_token_rejects_only_what_it_submitted(web: Web, home_cli: HomeCli, tmp_path: Path) -> None:
    task_id, page = propose(home_cli, "touch", "made"), await web.pair()
    assert code(await web.token.post(f"/tasks/{task_id}/reject")) == (403, "not_a_person")
    assert (await page.post(f"/tasks/{task_id}/reject")).json()["status"] == "rejected"
    mine = (await web.token.post("/tasks", {"do": "run", "command": ["touch", "x"], "cwd": str(home_cli.cwd)})).json()
    assert mine["verdict"] == "ask" and mine["task"]["client"] == "api"
    assert (await web.token.post(f"/tasks/{mine['task']['task_id']}/reject")).json()["status"] == "rejected"
