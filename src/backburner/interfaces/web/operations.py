"""The operations of the API as one table, from which the routes, the OpenAPI description, the reference and the security tests are made."""

from collections.abc import Callable
from enum import StrEnum
from typing import Any, NamedTuple

from backburner.interfaces.web import acting, audit, home, logs, people, permissions, questions, reading, shapes, why

BASE = "/api/v1"


class Who(StrEnum):
    """Who may call an operation. What a caller may do with a task is decided by the services."""

    OPEN = "open"  # anybody who reaches this server: only pairing, whose result a person must confirm at a terminal
    READ = "read"  # a token or a paired page
    ACT = "act"  # a token or a paired page; the gate decides as for every interface
    DEVICE = "device"  # only a paired page
    PASSKEY = "passkey"  # only a paired page, with the answer of one of its passkeys


class Operation(NamedTuple):
    """One operation. `verb` is its handler; `takes` the parameters (of the address for GET, else of the body), `answers` the result."""

    method: str
    path: str
    verb: Callable[..., Any]
    who: Who
    answers: Any
    summary: str
    takes: type | None = None
    status: int = 200

    @property
    def name(self) -> str:
        """A unique name: the method and the words of the path."""
        words = [word for word in self.path.replace(".", "-").split("/") if word and not word.startswith("{")]
        singular = "one" if self.path.endswith("}") else ""
        return "-".join(filter(None, [self.method.lower(), *words, singular]))


def _get(path: str, verb: Callable[..., Any], answers: Any, takes: type | None = None) -> Operation:
    return Operation("GET", path, verb, Who.READ, answers, _summary(verb), takes)


def _post(
    path: str, verb: Callable[..., Any], answers: Any, takes: type | None = None, *, who: Who = Who.ACT, status: int = 200
) -> Operation:
    return Operation("POST", path, verb, who, answers, _summary(verb), takes, status)


def _delete(path: str, verb: Callable[..., Any], who: Who = Who.ACT) -> Operation:
    return Operation("DELETE", path, verb, who, None, _summary(verb), None, 204)


def _summary(verb: Callable[..., Any]) -> str:
    return (verb.__doc__ or "").strip().split("\n")[0]


OPERATIONS: tuple[Operation, ...] = (
    _get("/home", home.home, shapes.HomeState),
    _get("/board", reading.board, shapes.Board, reading.BoardQuery),
    _get("/tasks", reading.tasks, shapes.TaskList, reading.TasksQuery),
    _post("/tasks", acting.submit, shapes.Submitted, acting.NewTask, status=201),
    _post("/tasks/clear", acting.clear, shapes.Cleared, acting.Clear),
    _post("/check", acting.check, shapes.Verdict, acting.CheckedCommand, who=Who.READ),
    _get("/tasks/{id}", reading.task, shapes.TaskDetails),
    _get("/tasks/{id}/runs", reading.runs, shapes.RunList, reading.LimitQuery),
    _get("/tasks/{id}/events", reading.events_of_task, shapes.EventItems, reading.LimitQuery),
    _get("/tasks/{id}/why", why.why, shapes.Why),
    _get("/tasks/{id}/children", reading.children, shapes.TaskList),
    _get("/tasks/{id}/conversation", reading.conversation, shapes.Conversation, reading.ConversationQuery),
    _get("/tasks/{id}/diff", reading.diff, shapes.Diff),
    _get("/tasks/{id}/question", questions.question, shapes.Question),
    _post("/tasks/{id}/challenge", questions.challenge, shapes.Challenge, questions.Ask, who=Who.PASSKEY),
    _post("/tasks/{id}/approve", questions.approve, shapes.Row, questions.Approve, who=Who.PASSKEY),
    _post("/tasks/{id}/reject", acting.reject, shapes.Row, acting.Reject),
    _post("/tasks/{id}/cancel", acting.cancel, shapes.Row, acting.Cancel),
    _post("/tasks/{id}/restart", acting.restart, shapes.Row),
    _post("/tasks/{id}/pause", acting.pause, shapes.Row),
    _post("/tasks/{id}/unpause", acting.unpause, shapes.Row),
    _post("/tasks/{id}/run-now", acting.run_now, shapes.Row),
    _post("/tasks/{id}/resume", acting.resume, shapes.Row, acting.Resume),
    _post("/tasks/{id}/send", acting.send, shapes.Row, acting.Send),
    _post("/tasks/{id}/retrieve", acting.retrieve, shapes.Row),
    _get("/runs/{id}", reading.run, shapes.RunDetails),
    _get("/runs/{id}/log", logs.LogReader.log, shapes.LogPart, logs.LogQuery),
    _get("/runs/{id}/log/search", logs.LogReader.search, shapes.LogHits, logs.SearchQuery),
    _get("/runs/{id}/log.txt", logs.LogReader.text, str, logs.TextQuery),
    _get("/runs/{id}/artifacts", logs.LogReader.artifacts, shapes.Artifacts),
    _get("/runs/{id}/artifacts/{name}", logs.LogReader.artifact, bytes),
    _get("/inbox", home.inbox, shapes.InboxItems, home.InboxQuery),
    _post("/inbox/ack", home.acknowledge, shapes.Acknowledged, home.Acknowledge),
    _get("/notices", home.notices, shapes.NoticeItems, home.NoticesQuery),
    _post("/notices/{id}/retry", home.retry, shapes.Retried),
    _get("/audit", audit.audit, shapes.AuditList, audit.AuditQuery),
    _get("/grants", home.grants, shapes.Items),
    _post("/grants/challenge", permissions.challenge, shapes.Challenge, permissions.Permission, who=Who.PASSKEY),
    _post("/grants", permissions.grant, shapes.Items, permissions.SignedPermission, who=Who.PASSKEY, status=201),
    _delete("/grants/{id}", home.revoke_grant),
    _get("/sessions", home.sessions, shapes.Items),
    _get("/projects", home.projects, shapes.Items),
    _get("/batches", home.batches, shapes.Items),
    _get("/agents", home.agents, shapes.Items),
    _get("/channels", home.channels, shapes.Items),
    _get("/doctor", home.doctor, shapes.Findings),
    _get("/config", home.config, shapes.Settings),
    _get("/devices", people.devices, shapes.Devices),
    _delete("/devices/{id}", people.revoke_device, Who.DEVICE),
    _post("/pair", people.pair, shapes.Pairing, people.Pair, who=Who.OPEN, status=201),
    Operation("GET", "/pair/{id}", people.pairing, Who.OPEN, shapes.PairingState, _summary(people.pairing)),
    _post("/passkeys/options", people.passkey_options, shapes.PasskeyOptions, who=Who.DEVICE),
    _post("/passkeys", people.add_passkey, shapes.Passkey, people.NewPasskey, who=Who.DEVICE, status=201),
    _post("/passkeys/{id}/challenge", people.ask_to_confirm, shapes.Challenge, who=Who.PASSKEY),
    _post("/passkeys/{id}/confirm", people.confirm_passkey, shapes.Passkey, people.ConfirmPasskey, who=Who.PASSKEY),
    _delete("/passkeys/{id}", people.remove_passkey, Who.DEVICE),
    _get("/events", home.events, shapes.Events, home.EventsQuery),
    Operation("GET", "/stream", shapes.stream, Who.READ, str, _summary(shapes.stream), shapes.StreamQuery),
)
