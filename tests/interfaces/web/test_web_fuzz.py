"""Every operation of the API with generated parameters and bodies, against a real server: no answer is a failure of the server,
and every answer is as the OpenAPI description says. The examples are the same in every run."""

import hashlib
import secrets
import socket
import sys
from collections.abc import Iterator

import pytest
import requests
import schemathesis
from conftest import CONFIG, HomeCli, wait_until
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi import checks
from terminal import Terminal

from backburner.core.version import VERSION
from backburner.interfaces.web.openapi import describe
from backburner.interfaces.web.operations import BASE, OPERATIONS, Operation

EXAMPLES = 12
STREAMS = ("/stream",)  # it does not end; it has tests of its own
FUZZED = [operation for operation in OPERATIONS if operation.path not in STREAMS]
CHECKS = [
    not_a_server_error,
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_schema_conformance,
    checks.negative_data_rejection,
]
SCHEMA = schemathesis.openapi.from_dict(describe(OPERATIONS, BASE, VERSION))
EVERY_EXAMPLE_ONCE = settings(
    derandomize=True,
    database=None,
    deadline=None,
    max_examples=EXAMPLES,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)


class Server:
    """`backburner web` at a terminal, its token, and a paired page."""

    def __init__(self, home: HomeCli) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        command = [sys.executable, "-m", "backburner", "web", "--no-open", "--port", str(port)]
        self.home, self.address, self.origin = home, f"http://127.0.0.1:{port}", f"http://backburner.localhost:{port}"
        self.terminal = Terminal(command, cwd=home.cwd, env=home.environ, columns=160)
        self.token = self.page = ""
        self.tasks: list[str] = []

    def prepare(self) -> None:
        """Wait until it serves, pair a page, and make two tasks."""
        self.terminal.wait("To pair a browser", 60)
        wait_until((self.home.root / "token").exists, "the token")
        self.token = (self.home.root / "token").read_text().strip()
        self.page = f"dev_{secrets.token_hex(24)}"
        body = {"commitment": hashlib.sha256(self.page.encode()).hexdigest(), "name": "fuzz"}
        pairing = requests.post(f"{self.address}{BASE}/pair", json=body, timeout=30).json()
        self.terminal.wait("type the number", 30)
        self.terminal.type(f"{pairing['number']}\r")
        state = f"{self.address}{BASE}/pair/{pairing['pairing']}"
        wait_until(lambda: requests.get(state, timeout=30).json()["state"] == "paired", "the page to be paired")
        self.home.finish("true")
        self.home.cli("run", "--", "touch", "made")
        self.tasks = [str(task["task_id"]) for task in self.home.json("list")]  # type: ignore[union-attr, index, call-overload]

    def headers(self, *, as_page: bool) -> dict[str, str]:
        if not as_page:
            return {"Authorization": f"Bearer {self.token}"}
        return {"Authorization": f"Bearer {self.page}", "Host": self.origin.removeprefix("http://"), "Origin": self.origin}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("fuzzed")
    (folder / "project").mkdir()
    home = HomeCli(folder / "home", folder / "project")
    home.configure(CONFIG)
    started = Server(home)
    try:
        started.prepare()
        yield started
    finally:
        started.terminal.__exit__()
        home.stop_all()
        wait_until(lambda: not home.processes(), "all processes of the home to exit")


@pytest.mark.parametrize("operation", FUZZED, ids=lambda operation: operation.name)
def test_generated_requests_are_answered_as_the_description_says(server: Server, operation: Operation) -> None:
    described = SCHEMA[f"{BASE}{operation.path}"][operation.method]

    @EVERY_EXAMPLE_ONCE
    @given(case=described.as_strategy(), task=st.sampled_from([None, *server.tasks]), as_page=st.booleans())
    def check(case: schemathesis.Case, task: str | None, as_page: bool) -> None:
        if task and "id" in case.path_parameters and operation.path.startswith(("/tasks", "/runs")):
            case.path_parameters["id"] = task
        response = case.call(base_url=server.address, headers=server.headers(as_page=as_page), timeout=60)
        case.validate_response(response, checks=CHECKS)

    check()
