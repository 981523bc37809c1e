"""What hosts ask of each other about runs, and the answers."""

from backburner.core.host_records import FILE, FILES, INPUT, LOG, HostResponse, RunPlace
from backburner.store.ledger import Ledger
from contract.cases import NOW, OURS, Open, submit

HERE, THERE = "host-here", "host-there"


def run_on(ledger: Ledger, host: str, wanted: str = "task_x") -> str:
    """A running run whose folder is on a host."""
    run = submit(ledger, wanted).run
    assert run
    ledger.runs.claim(run.runner, OURS, 1, NOW)
    ledger.database.write("UPDATE runs SET host = ? WHERE run_id = ?", (host, run.run_id))
    return run.run_id


def add_host(ledger: Ledger, host_id: str, name: str, state: str = "active") -> None:
    ledger.database.write(
        "INSERT INTO hosts (host_id, name, state, changed_at, seen_at) VALUES (?, ?, ?, ?, ?)", (host_id, name, state, NOW, NOW)
    )


def piece(n: int, body: bytes, *, position: int = 0, last: bool = False, error: str | None = None) -> HostResponse:
    return HostResponse(n, position, body, last, error)


class HostRequestContract:
    def test_a_run_is_where_its_host_is(self, ledger: Ledger) -> None:
        run_id = run_on(ledger, THERE)
        assert ledger.host_requests.place(run_id) == RunPlace(THERE, THERE, "")
        add_host(ledger, THERE, "gpu1", "suspected")
        assert ledger.host_requests.place(run_id) == RunPlace(THERE, "gpu1", "suspected")
        assert ledger.host_requests.place("task_missing") is None
        assert ledger.host_requests.place(run_on(ledger, "", "task_y")) is None

    def test_a_host_gets_the_requests_for_its_own_runs(self, ledger: Ledger, open_ledger: Open) -> None:
        run_id, other = run_on(ledger, THERE), run_on(ledger, HERE, "task_y")
        first = ledger.host_requests.ask(THERE, run_id, LOG, NOW, NOW + 1, position=1 << 40, body=b'{"wait": true}')
        ledger.host_requests.ask(HERE, other, FILES, NOW, NOW + 1)
        ledger.host_requests.ask(THERE, other, FILES, NOW, NOW + 1)  # the folder of this run is not there
        second = ledger.host_requests.ask(THERE, run_id, FILE, NOW, NOW + 1, path="a/b\nc")
        found = open_ledger().host_requests.requests(THERE, 0)
        assert [request.request_id for request in found] == [first, second]
        assert (found[0].kind, found[0].position, found[0].body, found[0].folder) == (LOG, 1 << 40, b'{"wait": true}', f"tasks/{run_id}")
        assert (found[1].kind, found[1].path, found[1].body) == (FILE, "a/b\nc", b"")
        assert [request.request_id for request in ledger.host_requests.requests(THERE, first)] == [second]

    def test_pieces_are_taken_in_order_and_once(self, ledger: Ledger, open_ledger: Open) -> None:
        request = ledger.host_requests.ask(THERE, run_on(ledger, THERE), LOG, NOW, NOW + 1)
        there = open_ledger().host_requests
        pieces = [piece(n, bytes([n, 0, 255]) * 100, position=n * 300, last=n == 11) for n in range(12)]
        assert all(there.answer(request, each) for each in pieces)
        assert ledger.host_requests.take_parts(request) == pieces and ledger.host_requests.take_parts(request) == []
        assert there.answer(request, piece(12, b"", error="no\x1b such file", last=True))
        assert ledger.host_requests.take_parts(request) == [piece(12, b"", error="no\x1b such file", last=True)]

    def test_what_was_withdrawn_cannot_be_answered(self, ledger: Ledger) -> None:
        run_id = run_on(ledger, THERE)
        kept, request = (ledger.host_requests.ask(THERE, run_id, LOG, NOW, NOW + 1) for _ in range(2))
        assert ledger.host_requests.answer(request, piece(0, b"a"))
        ledger.host_requests.withdraw(request)
        assert not ledger.host_requests.answer(request, piece(1, b"b")) and ledger.host_requests.take_parts(request) == []
        assert [found.request_id for found in ledger.host_requests.requests(THERE, 0)] == [kept]

    def test_input_is_taken_or_withdrawn_but_not_both(self, ledger: Ledger) -> None:
        run_id = run_on(ledger, THERE)
        taken, withdrawn = (ledger.host_requests.ask(THERE, run_id, INPUT, NOW, NOW + 1, body=b"yes\n") for _ in range(2))
        assert ledger.host_requests.begin_input(taken) and not ledger.host_requests.begin_input(taken)
        assert not ledger.host_requests.withdraw_input(taken) and ledger.host_requests.answer(taken, piece(0, b"", last=True))
        assert ledger.host_requests.withdraw_input(withdrawn) and not ledger.host_requests.begin_input(withdrawn)
        assert ledger.host_requests.requests(THERE, 0) == []

    def test_only_expired_requests_are_swept(self, ledger: Ledger) -> None:
        run_id = run_on(ledger, THERE)
        old, new = (ledger.host_requests.ask(THERE, run_id, LOG, NOW, NOW + after) for after in (1, 3))
        ledger.host_requests.answer(old, piece(0, b"a"))
        assert ledger.host_requests.sweep(NOW + 2) == 1
        assert [found.request_id for found in ledger.host_requests.requests(THERE, 0)] == [new]

    def test_requests_go_with_their_run(self, ledger: Ledger) -> None:
        run_id = run_on(ledger, THERE)
        request = ledger.host_requests.ask(THERE, run_id, LOG, NOW, NOW + 1)
        ledger.host_requests.answer(request, piece(0, b"a"))
        ledger.database.write("DELETE FROM tasks")
        assert ledger.host_requests.requests(THERE, 0) == [] and ledger.host_requests.take_parts(request) == []

    def test_waiting_ends_at_the_latest_after_its_time(self, ledger: Ledger) -> None:
        ledger.host_requests.wait(0.01)
