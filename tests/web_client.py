"""The web interface in the process of a test: an app without a socket, callers of every kind, and a passkey made of software."""

import base64
import contextlib
import hashlib
import json
import os
import secrets
from collections.abc import AsyncIterator
from typing import Any

import httpx2
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from fido2.cose import ES256
from fido2.webauthn import AttestedCredentialData, AuthenticatorData

from backburner.interfaces.web.app import Served, WebApp
from backburner.interfaces.web.guard import addresses
from backburner.services.app import App, open_app
from backburner.services.async_app import AsyncApp
from backburner.system.caller_identity import current_caller
from backburner.system.home import Home, lock

PORT = 8765
HOST = f"backburner.localhost:{PORT}"
ORIGIN = f"http://{HOST}"
TOKEN = "a-token"


def b64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


class SoftPasskey:
    """An authenticator that signs what it is asked to, without asking anybody: it stands for the finger of a person."""

    def __init__(self, rp_id: str = "backburner.localhost", origin: str = ORIGIN, *, verifies: bool = True) -> None:
        self._rp_id, self._origin = rp_id, origin
        self._key = ec.generate_private_key(ec.SECP256R1())
        self.credential_id, self._count = secrets.token_bytes(16), 0
        self._flags = AuthenticatorData.FLAG.UP | (AuthenticatorData.FLAG.UV if verifies else 0)

    def register(self, options: dict[str, Any]) -> dict[str, Any]:
        """The answer to `navigator.credentials.create`."""
        data = AttestedCredentialData.create(bytes(16), self.credential_id, ES256.from_cryptography_key(self._key.public_key()))
        flags = AuthenticatorData.FLAG(self._flags) | AuthenticatorData.FLAG.AT
        auth_data = AuthenticatorData.create(hashlib.sha256(self._rp_id.encode()).digest(), flags, 0, bytes(data))
        from fido2 import cbor

        attestation = cbor.encode({"fmt": "none", "attStmt": {}, "authData": bytes(auth_data)})
        response = {
            "clientDataJSON": b64(self._client_data("webauthn.create", options["challenge"])),
            "attestationObject": b64(attestation),
        }
        return {"id": b64(self.credential_id), "rawId": b64(self.credential_id), "type": "public-key", "response": response}

    def sign(self, challenge: str, origin: str | None = None) -> dict[str, Any]:
        """The answer to `navigator.credentials.get`."""
        self._count += 1
        rp_hash = hashlib.sha256(self._rp_id.encode()).digest()
        auth_data = bytes(AuthenticatorData.create(rp_hash, AuthenticatorData.FLAG(self._flags), self._count))
        client_data = self._client_data("webauthn.get", challenge, origin)
        signature = self._key.sign(auth_data + hashlib.sha256(client_data).digest(), ec.ECDSA(SHA256()))
        response = {"clientDataJSON": b64(client_data), "authenticatorData": b64(auth_data), "signature": b64(signature)}
        return {"id": b64(self.credential_id), "rawId": b64(self.credential_id), "type": "public-key", "response": response}

    def _client_data(self, kind: str, challenge: str, origin: str | None = None) -> bytes:
        return json.dumps({"type": kind, "challenge": challenge, "origin": origin or self._origin, "crossOrigin": False}).encode()


class Page:
    """A caller of the API. A browser sends Origin and Sec-Fetch-Site; a program does not."""

    def __init__(self, client: httpx2.AsyncClient, credential: str | None, *, browser: bool = True, host: str = HOST) -> None:
        self._client, self.credential = client, credential
        self.headers = {"host": host}
        if credential:
            self.headers["authorization"] = f"Bearer {credential}"
        if browser:
            self.headers |= {"origin": f"http://{host}", "sec-fetch-site": "same-origin"}

    async def get(self, path: str, headers: dict[str, str] | None = None, **query: Any) -> httpx2.Response:
        sent = {name: value for name, value in self.headers.items() if name != "origin"}
        return await self._client.get(_address(path), params=query, headers={**sent, **(headers or {})})

    async def post(self, path: str, body: object = None, headers: dict[str, str] | None = None) -> httpx2.Response:
        return await self._client.post(_address(path), json={} if body is None else body, headers={**self.headers, **(headers or {})})

    async def delete(self, path: str, headers: dict[str, str] | None = None) -> httpx2.Response:
        return await self._client.delete(_address(path), headers={**self.headers, **(headers or {})})


def _address(path: str) -> str:
    return path if path.startswith(("/_/", "/api", "/mcp")) or not path.startswith("/") or path in ("/", "/ask") else f"/api/v1{path}"


class Web:
    """The app of one home, and callers of every kind."""

    def __init__(self, async_app: AsyncApp, app: WebApp, home: Home) -> None:
        self.app, self.home, self._async_app = app, home, async_app
        self.client = httpx2.AsyncClient(transport=httpx2.ASGITransport(app=app, raise_app_exceptions=True), base_url=ORIGIN)
        self.nobody, self.token = Page(self.client, None), Page(self.client, TOKEN, browser=False)

    async def call(self, function: Any) -> Any:
        """Call a function with the services."""
        return await self._async_app.call(function)

    async def pair(self, name: str = "Firefox 140 on Linux") -> Page:
        """Pair a page as a person does it, at a terminal that waits for numbers."""
        credential = f"dev_{b64(secrets.token_bytes(32))}"
        held = lock(os.path.join(self.home.root, "pairing.lock"))
        assert held is not None
        try:
            commitment = hashlib.sha256(credential.encode()).hexdigest()
            asked = await self.nobody.post("/pair", {"commitment": commitment, "name": name})
            assert asked.status_code == 201, asked.text
            await self.type(asked.json()["number"])
        finally:
            os.close(held)
        return Page(self.client, credential)

    async def type(self, number: str) -> None:
        """Type a number at the terminal."""
        await self.call(lambda app: app.devices.accept_number(number, _person(app)))

    async def add_passkey(self, page: Page, passkey: SoftPasskey | None = None) -> SoftPasskey:
        """Add the first passkey of a home, and type its number at the terminal."""
        passkey = passkey or SoftPasskey()
        added = await self.register(page, passkey)
        assert added.status_code == 201, added.text
        await self.type(added.json()["number"])
        return passkey

    async def register(self, page: Page, passkey: SoftPasskey) -> httpx2.Response:
        options = (await page.post("/passkeys/options")).json()
        return await page.post(
            "/passkeys", {"nonce": options["nonce"], "credential": passkey.register(options["publicKey"]), "name": "Key"}
        )

    async def challenge(self, page: Page, task_id: str, choice: str = "once", seen: str | None = None) -> dict[str, Any]:
        """Look at a question and ask for the challenge of its approval."""
        seen = seen or (await page.get(f"/tasks/{task_id}/question")).json()["seen"]
        asked = await page.post(f"/tasks/{task_id}/challenge", {"seen": seen, "choice": choice})
        assert asked.status_code == 200, asked.text
        return {**asked.json(), "seen": seen, "choice": choice}

    async def approve(self, page: Page, task_id: str, asked: dict[str, Any], proof: dict[str, Any], **changed: Any) -> httpx2.Response:
        body = {"nonce": asked["nonce"], "seen": asked["seen"], "choice": asked["choice"], "proof": proof, **changed}
        return await page.post(f"/tasks/{task_id}/approve", body)


def _person(app: App) -> Any:
    return current_caller("cli", app.environ)


@contextlib.asynccontextmanager
async def open_web(home: Home, environ: dict[str, str], origin: str = "") -> AsyncIterator[Web]:
    """The web interface of a home, without a socket."""
    async with AsyncApp(lambda: open_app(home, environ)) as async_app:
        served = Served(home, environ, TOKEN, addresses(PORT, origin=origin), origin or ORIGIN)
        web = Web(async_app, WebApp(async_app, served), home)
        try:
            yield web
        finally:
            web.app.hub.close()
            await web.client.aclose()
            await web.app.close()
