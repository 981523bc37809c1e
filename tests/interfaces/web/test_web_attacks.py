"""What an attacker tries, against a real server and in a real browser that is paired with it: no approval, and nothing is read.

The hostile page is on another port of the same host name, and on a name that points to this machine (DNS rebinding)."""

# ruff: noqa: F811 - fixtures are imported by their names

import http.server
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import requests
from browser_fixture import AS_A_PERSON, Authenticator, ServedHome, Watched, browser_path, served, started_browser  # noqa: F401
from playwright.sync_api import Browser, Page, expect

MARKER = "marker-of-the-command"
# Each is tried by a page that is not ours, with the address of the API, the ID of a waiting task and the token, and returns what it read.
ATTEMPTS = {
    "reads with cookies": "fetch(api + '/board', {credentials: 'include'}).then(answer => answer.text())",
    "reads with the token": "fetch(api + '/board', {headers: {authorization: 'Bearer ' + token}}).then(answer => answer.text())",
    "reads without CORS": "fetch(api + '/board', {mode: 'no-cors'}).then(answer => answer.text())",
    "loads it as a script": "new Promise(done => { const s = document.createElement('script'); s.src = api + '/board'; s.onload = () => done('loaded'); s.onerror = () => done(''); document.head.append(s); })",
    "shows the page in a frame": "new Promise(done => { const f = document.createElement('iframe'); f.src = api.replace('/api/v1', '/ask/' + task); f.onload = () => { try { done(f.contentDocument.body.innerText) } catch { done('') } }; document.body.append(f); })",
    "looks into an opened window": "new Promise(done => { const w = open(api.replace('/api/v1', '/ask/' + task)); setTimeout(() => { try { done(w.document.body.innerText) } catch { done('') } }, 1500); })",
    "reads the database of the page": "indexedDB.databases().then(all => all.map(one => one.name).join())",
    "listens to the stream": "new Promise(done => { const s = new EventSource(api + '/stream'); s.onmessage = event => done(event.data); s.onerror = () => done(''); })",
    "rejects with a form": "new Promise(done => { const f = document.createElement('form'); f.method = 'post'; f.enctype = 'text/plain'; f.action = api + '/tasks/' + task + '/reject'; f.target = 'frame'; const t = document.createElement('iframe'); t.name = 'frame'; t.onload = () => setTimeout(done, 300, ''); document.body.append(t, f); f.submit(); })",
    "rejects as JSON": "fetch(api + '/tasks/' + task + '/reject', {method: 'POST', headers: {'content-type': 'application/json', authorization: 'Bearer ' + token}, body: '{}'}).then(answer => answer.text())",
    "cancels without CORS": "fetch(api + '/tasks/' + task + '/cancel', {method: 'POST', mode: 'no-cors', body: '{}'}).then(() => '')",
    "approves with a beacon": 'Promise.resolve(navigator.sendBeacon(api + \'/tasks/\' + task + \'/approve\', new Blob([\'{"nonce":"x","seen":"x","choice":"once","proof":{}}\'], {type: \'text/plain\'})) && \'\')',
    "asks to be paired": "fetch(api + '/pair', {method: 'POST', mode: 'no-cors', body: '{\"commitment\":\"' + '0'.repeat(64) + '\",\"name\":\"x\"}'}).then(answer => answer.text())",
}


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    with started_browser(AS_A_PERSON, "--host-resolver-rules=MAP rebound.example 127.0.0.1") as started:
        yield started


@pytest.fixture(scope="module")
def hostile_port() -> Iterator[int]:
    """A server of somebody else on this machine, with an empty page."""

    class Empty(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("content-type", "text/html")
            self.end_headers()
            self.wfile.write(b"<!doctype html><title>hostile</title><body>")

        def log_message(self, *_: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Empty)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server.server_address[1]
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture(scope="module")
def task(served: ServedHome) -> str:
    return served.propose("touch", MARKER)


def token_of(served: ServedHome) -> str:
    return (served.home.root / "token").read_text().strip()


def unanswered(served: ServedHome, task: str) -> bool:
    found = served.home.status(task)
    return found["status"] == "proposed" and not (served.home.cwd / MARKER).exists()


@pytest.fixture
def victim(chromium: Browser, served: ServedHome) -> Iterator[Page]:
    """A tab of the paired browser in which somebody else's page is open. That it complains is expected."""
    watched = Watched(chromium, state=served.state)
    watched.expect("")
    yield watched.context.new_page()
    watched.close()


class Answers:
    """The statuses with which the API has answered requests of a page, by path: also those that the browser keeps from the page."""

    def __init__(self, page: Page, api: str) -> None:
        self.found: dict[str, set[int]] = {}
        asked: dict[str, str] = {}

        def answered(event: dict[str, Any]) -> None:
            address = asked.get(event["requestId"], "")
            if address.startswith(api):
                self.found.setdefault(address.removeprefix(api), set()).add(event["statusCode"])

        cdp = page.context.new_cdp_session(page)
        cdp.on("Network.requestWillBeSent", lambda event: asked.update({event["requestId"]: event["request"]["url"]}))
        cdp.on("Network.responseReceivedExtraInfo", answered)
        cdp.send("Network.enable")


@pytest.mark.parametrize("where", ["another port", "rebound name"])
def test_a_page_of_somebody_else_reads_nothing_and_changes_nothing(
    victim: Page, served: ServedHome, hostile_port: int, task: str, where: str
) -> None:
    host = "backburner.localhost" if where == "another port" else "rebound.example"
    api = f"{served.address}/api/v1"
    if where == "rebound name":
        # The name of the attacker points to this machine, and so is of the same origin for the browser.
        assert victim.goto(f"http://{host}:{served.port}/").status == 421  # type: ignore[union-attr]
        api = f"http://{host}:{served.port}/api/v1"
        assert (
            requests.get(
                f"{served.address.replace('backburner.localhost', '127.0.0.1')}/", headers={"host": f"{host}:{served.port}"}, timeout=30
            ).status_code
            == 421
        )
    else:
        victim.goto(f"http://{host}:{hostile_port}/")
    answers = Answers(victim, api)
    for name, attempt in ATTEMPTS.items():
        run = f"([api, task, token]) => Promise.race([{attempt}, new Promise(done => setTimeout(done, 5000, 'waited'))]).catch(() => '')"
        read = victim.evaluate(run, [api, task, token_of(served)]) or ""
        assert MARKER not in read and "task_id" not in read and "credential" not in read.lower().replace("the credential is missing", ""), (
            name,
            read,
        )
        assert "needs_you" not in read and unanswered(served, task), (name, read)
    # The server itself has refused them; it does not rely on the browser, nor on the credential that is missing.
    paths = ("/board", "/stream", "/pair", *(f"/tasks/{task}/{verb}" for verb in ("reject", "cancel", "approve")))
    assert answers.found == {path: {403 if where == "another port" else 421} for path in paths}


def test_what_a_page_can_send_without_permission_is_refused_without_the_headers_of_a_browser_too(served: ServedHome, task: str) -> None:
    """A browser that said nothing about the origin of a request: the credential is missing, and only JSON is accepted."""
    api = f"http://127.0.0.1:{served.port}/api/v1"
    for path in ("/board", "/stream", f"/tasks/{task}"):
        assert requests.get(f"{api}{path}", timeout=30).status_code == 401, path
    for path in ("/pair", *(f"/tasks/{task}/{verb}" for verb in ("reject", "cancel", "approve"))):
        for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x"):
            assert requests.post(f"{api}{path}", data="{}", headers={"content-type": kind}, timeout=30).status_code == 415, (path, kind)
    assert requests.post(f"{api}/tasks/{task}/cancel", json={}, timeout=30).status_code == 401
    assert unanswered(served, task)


def test_programs_with_the_token_and_those_that_pair_themselves_get_no_approval(served: ServedHome, task: str) -> None:
    api = f"http://127.0.0.1:{served.port}/api/v1"
    token = {"authorization": f"Bearer {token_of(served)}"}
    seen = requests.get(f"{api}/tasks/{task}/question", headers=token, timeout=30).json()["seen"]
    body = {"nonce": "x", "seen": seen, "choice": "once", "proof": {}}
    for path, sent in (
        (f"/tasks/{task}/approve", body),
        (f"/tasks/{task}/challenge", {"seen": seen, "choice": "once"}),
        ("/passkeys/options", {}),
    ):
        assert requests.post(f"{api}{path}", json=sent, headers=token, timeout=30).status_code == 403, path
    assert requests.post(f"{api}/tasks/{task}/reject", json={}, headers=token, timeout=30).status_code == 403
    pairing = requests.post(f"{api}/pair", json={"commitment": "0" * 64, "name": "an agent"}, timeout=30)
    if pairing.status_code == 201:  # it gets a number that nobody types
        assert requests.get(f"{api}/pair/{pairing.json()['pairing']}", timeout=30).json()["state"] == "waiting"
    else:
        assert pairing.status_code == 429
    assert unanswered(served, task)
    refused = requests.get(f"{api}/audit?decision=refused&task={task}", headers=token, timeout=30).json()["items"]
    assert len(refused) >= 2 and all("a token proves nothing" in item["reason"] for item in refused)


def test_a_browser_that_an_agent_drives_gets_no_approval(chromium: Browser, served: ServedHome, task: str) -> None:
    """It has the credential of the page, calls the API itself, and has an authenticator of its own."""
    automated = chromium.browser_type.launch(executable_path=browser_path())
    watched = Watched(automated, state=served.state)
    watched.expect("Failed to load resource", "pubKeyCredParams")
    page = watched.context.new_page()
    page.goto(f"{served.address}/ask/{task}")
    expect(page.locator(".answers")).to_contain_text("controlled by a program")
    expect(page.locator(".answers .buttons button")).to_have_count(0)
    Authenticator(page)  # it holds no registered key
    outcome = page.evaluate(
        """async task => {
            const net = await import(document.querySelector('script[type=module]').src);
            const card = await net.get(`/tasks/${task}/question`);
            const challenge = await net.post(`/tasks/${task}/challenge`, {seen: card.seen, choice: 'once'});
            const own = await navigator.credentials.create({publicKey: {challenge: new Uint8Array(32), rp: {name: 'x'}, user: {id: new Uint8Array(8), name: 'x', displayName: 'x'}, pubKeyCredParams: [{type: 'public-key', alg: -7}]}});
            const options = PublicKeyCredential.parseRequestOptionsFromJSON(challenge.publicKey);
            const proof = await navigator.credentials.get({publicKey: {...options, allowCredentials: [{type: 'public-key', id: own.rawId}]}});
            return net.post(`/tasks/${task}/approve`, {nonce: challenge.nonce, seen: card.seen, choice: 'once', proof: proof.toJSON()}).then(() => 'approved', error => error.code);
        }""",
        task,
    )
    assert outcome == "proof_refused" and unanswered(served, task)
    watched.close()
    automated.close()
