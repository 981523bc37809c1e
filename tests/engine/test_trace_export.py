"""Traces: ids inherited from the caller and passed to commands, the tree, and export to a collector on loopback."""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest
from conftest import CONFIG, HomeCli, wait_until
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from backburner.core import trace_context

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


class Collector:
    """An OTLP endpoint that keeps every span it receives, and can be made to fail."""

    def __init__(self) -> None:
        self.spans: list[Any] = []
        self.services: set[str] = set()
        self.headers: list[str | None] = []
        self.broken = False
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if collector.broken or self.path != "/v1/traces":
                    self.send_response(400)
                else:
                    collector.take(ExportTraceServiceRequest.FromString(body), self.headers.get("x-token"))
                    self.send_response(200)
                self.end_headers()

            def log_message(self, *_: object) -> None: ...

        self.server = HTTPServer(("127.0.0.1", 0), Handler)
        self.thread = threading.Thread(target=self.server.serve_forever, daemon=True)
        self.thread.start()

    def take(self, request: Any, token: str | None) -> None:
        self.headers.append(token)
        for resource in request.resource_spans:
            self.services |= {pair.value.string_value for pair in resource.resource.attributes if pair.key == "service.name"}
            self.spans += [span for scope in resource.scope_spans for span in scope.spans]

    @property
    def settings(self) -> str:
        return f'[telemetry]\notlp_endpoint = "http://127.0.0.1:{self.server.server_port}"\notlp_headers = "x-token=abc"\n'

    def by_name(self, task_id: str) -> dict[str, Any]:
        return {span.name: span for span in self.spans if attributes(span)["task.id"] == task_id}


def attributes(span: Any) -> dict[str, object]:
    return {pair.key: pair.value.string_value or pair.value.int_value for pair in span.attributes}


@pytest.fixture
def collector() -> Iterator[Collector]:
    one = Collector()
    yield one
    one.server.shutdown()
    one.server.server_close()
    one.thread.join()


def test_a_task_inherits_its_trace_and_passes_it_to_the_command(home_cli: HomeCli) -> None:
    environ = {"TRACEPARENT": trace_context.traceparent(TRACE, PARENT)}
    task_id = home_cli.ok("run", "--yes", "--shell", "--", "echo $TRACEPARENT", env=environ).strip()
    home_cli.ok("wait", task_id)
    given = trace_context.parse(home_cli.log(task_id).decode())
    assert given == (TRACE, home_cli.status(task_id)["span_id"])
    spans = {span["name"]: span for span in home_cli.json("traces", "--task", task_id)}  # type: ignore[union-attr]
    start, run = spans["background_task_start"], spans["background_task_execute"]
    assert (start["trace_id"], start["parent_span_id"]) == (TRACE, PARENT)
    assert (run["trace_id"], run["parent_span_id"], run["span_id"]) == (TRACE, start["span_id"], given.span_id)
    assert run["attributes"]["task.exit_code"] == 0 and run["attributes"]["task.id"] == task_id
    assert run["attributes"]["task.approved_by"] == "user"


@pytest.mark.parametrize("nonsense", ["", "00-0-0-00", f"00-{'0' * 32}-{PARENT}-01", f"ff-{TRACE}-{PARENT}-01", "x" * 10_000])
def test_an_invalid_traceparent_is_ignored(home_cli: HomeCli, nonsense: str) -> None:
    task_id = home_cli.ok("run", "--", "true", env={"TRACEPARENT": nonsense}).strip()
    found = home_cli.json("traces", "--task", task_id)
    assert found[0]["parent_span_id"] is None and len(found[0]["trace_id"]) == 32  # type: ignore[index,call-overload]


def test_the_tree_shows_tasks_below_the_task_that_started_them(home_cli: HomeCli) -> None:
    inner = "python -m backburner run -- true"
    outer = home_cli.ok("run", "--yes", "--shell", "--", inner, env={"PATH": f"{home_cli.python}:/usr/bin:/bin"}).strip()
    home_cli.ok("wait", outer)
    span = str(home_cli.status(outer)["span_id"])
    lines = home_cli.ok("traces", "--span", span).splitlines()
    assert lines[0].startswith("trace ")
    names = [line.split("─ ", 1)[1].split()[0] for line in lines[1:]]
    assert names == ["background_task_start", "background_task_execute"] * 2
    depths = [len(line) - len(line.lstrip("│└├ ")) for line in lines[1:]]
    assert depths == sorted(depths) and len(set(depths)) == 4
    assert lines[2].endswith("◀")


def test_spans_of_an_ended_task_arrive_at_a_collector(home_cli: HomeCli, collector: Collector) -> None:
    home_cli.configure(CONFIG + collector.settings)
    task_id = home_cli.run("sh", "-c", "exit 3")
    home_cli.cli("wait", task_id)
    wait_until(lambda: len(collector.by_name(task_id)) == 2, "both spans")
    start, run = (collector.by_name(task_id)[f"background_task_{name}"] for name in ("start", "execute"))
    status = home_cli.status(task_id)
    assert run.span_id.hex() == status["span_id"] and run.trace_id.hex() == status["trace_id"]
    assert run.parent_span_id == start.span_id and not start.parent_span_id
    assert attributes(run)["task.exit_code"] == 3 and attributes(run)["task.status"] == "failed"
    assert attributes(run)["task.command"] == "sh -c 'exit 3'" and run.status.code == 2
    assert 0 < run.start_time_unix_nano <= run.end_time_unix_nano
    assert collector.services == {"backburner"} and set(collector.headers) == {"abc"}


def test_spans_that_could_not_be_sent_are_sent_later(home_cli: HomeCli, collector: Collector) -> None:
    from backburner.engine.trace_export import NOT_SENT, main
    from backburner.system.home import Home

    task_id = home_cli.finish("true")["task_id"]
    home_cli.stop_engine()
    home_cli.configure(CONFIG + collector.settings)
    collector.broken = True
    assert main([Home(str(home_cli.root)).root]) == NOT_SENT
    collector.broken = False
    assert main([Home(str(home_cli.root)).root]) == 0
    assert main([Home(str(home_cli.root)).root]) == 0  # nothing is left to send
    assert [span.name for span in collector.spans] == ["background_task_start", "background_task_execute"]
    assert collector.by_name(str(task_id))
