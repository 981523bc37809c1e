"""Operations about the home as a whole: what this caller may do, inbox, audit, permissions, sessions, settings, and the event log."""

from typing import TypedDict

from backburner.core import formatting, task_text
from backburner.core.errors import BackburnerError, BadInput
from backburner.core.masking import MASK, masked_words
from backburner.core.notices import Notice
from backburner.core.recipients import Recipient, RecipientKind
from backburner.core.settings import SETTINGS
from backburner.core.version import VERSION
from backburner.interfaces.web.calls import Call, Reply, limit_of
from backburner.services.app import App
from backburner.services.identity import AGENT_VARIABLES
from backburner.system.processes import engine_of

_MAX_EVENTS = 1000


class InboxQuery(TypedDict, total=False):
    read: bool
    limit: int


class Acknowledge(TypedDict, total=False):
    ids: list[int]
    tasks: list[str]
    all: bool


class NoticesQuery(TypedDict, total=False):
    failed: bool


class EventsQuery(TypedDict, total=False):
    after: int
    limit: int


def home(app: App, call: Call) -> dict[str, object]:
    """The version, the state of the engine, and what this caller may do."""
    device = call.caller.device
    engine, problem = engine_of(app.home), None
    state = "running" if engine else "idle"
    try:
        app.supervisor.ensure_supervised()
    except BackburnerError as error:
        state, problem = "away", str(error)
    kind = {"kind": "token"}
    if device:
        passkeys = len(app.passkeys.active(device.device_id))
        kind = {"kind": "device", "device_id": device.device_id, "name": device.name, "passkeys": passkeys}
    environ = call.caller.environ
    return {
        "version": VERSION,
        "home_id": app.devices.home_id(),
        "home": app.home.root,
        "server_time": formatting.iso(app.now()),
        "engine": {"state": state, "pid": engine.pid if engine else None, "problem": problem},
        "caller": kind,
        "may": {"act": True, "reject": device is not None, "approve": level_of(app, call)},
        "address": call.canonical,
        "passkeys_here": _passkeys_here(app, call),
        "started_by_agent": next((name for variable, name in AGENT_VARIABLES.items() if environ.get(variable)), None),
        "limits": {"max_concurrent": app.config.whole("commands.max_concurrent")},
        "last_event": app.overview.last_event(),
        "counts": counts(app),
    }


def counts(app: App, unread: int | None = None) -> dict[str, int]:
    """How many tasks run, are queued and wait for a person, and how many notices are unread, if that is not known."""
    return {**app.overview.counts(), "inbox": app.inbox.unread_count() if unread is None else unread}


def level_of(app: App, call: Call) -> str:
    """What this caller can use to approve: passkey, no_passkey, not_here, off, or never for a token."""
    device = call.caller.device
    if device is None:
        return "never"
    if app.config.text("approval.web") != "passkey":
        return "off"
    if not _passkeys_here(app, call):
        return "not_here"
    rp_id = app.passkeys.rp_of(call.origin)
    return "passkey" if app.passkeys.active(device.device_id, rp_id) else "no_passkey"


def _passkeys_here(app: App, call: Call) -> bool:
    try:
        app.passkeys.rp_of(call.origin)
    except BackburnerError:
        return False
    return True


# -- notices


def inbox(app: App, call: Call) -> dict[str, object]:
    """The notices for the person, newest first; with `read` also those that were seen, and those of sessions."""
    is_read = call.get("read", False)
    found = app.inbox.notices(unread=not is_read, limit=limit_of(call, 200, 1000) if is_read else None)
    return {
        "items": [_notice(notice) for notice in sorted(found, key=lambda notice: (-notice.created_at, -notice.notice_id))],
        "quiet_hours": app.config.text("notify.quiet_hours"),
        "digest_minutes": app.config.number("notify.digest_minutes"),
        "failed": len(app.deliveries.failed()),
    }


def _notice(notice: Notice) -> dict[str, object]:
    recipient = Recipient.parse(notice.channel)
    to = recipient.name if recipient.kind in (RecipientKind.SESSION, RecipientKind.CHANNEL) else "you"
    times = ("next_attempt_at", "failed_at")
    return {
        **{name: value for name, value in task_text.notice_json(notice).items() if name not in ("external_id", "acknowledged_at")},
        **{name: formatting.iso(getattr(notice, name)) for name in times},
        "to": to,
        "comes_at": formatting.iso(notice.next_attempt_at),
    }


def acknowledge(app: App, call: Call) -> dict[str, object]:
    """Mark notices of the person as seen: by id, by task, or all."""
    unread = app.inbox.notices()
    wanted, tasks = set(call.get("ids", [])), set(call.get("tasks", []))
    if not wanted and not tasks and not call.get("all", False):
        raise BadInput("Use 'ids', 'tasks' or 'all'.")
    found = [n.notice_id for n in unread if call.get("all", False) or n.notice_id in wanted or n.task_id in tasks]
    app.inbox.acknowledge(notice_ids=found)
    app.changes.announce()
    return {"acknowledged": len(found)}


def notices(app: App, call: Call) -> dict[str, object]:
    """Notices that wait for delivery to channels; with `failed`, those whose delivery was given up."""
    found = app.deliveries.failed() if call.get("failed", False) else app.deliveries.pending()
    return {"items": [_notice(notice) for notice in found]}


def retry(app: App, call: Call) -> dict[str, object]:
    """Deliver a notice again."""
    failed = [notice.notice_id for notice in app.deliveries.failed() if str(notice.notice_id) == call.path["id"]]
    if not failed:
        raise BadInput(f"Notice {call.path['id']} is not a failed delivery.")
    app.deliveries.retry(failed)
    return {"retried": len(failed)}


# -- permissions, sessions, settings


def grants(app: App, call: Call) -> dict[str, object]:
    """The permanent permissions."""
    return {
        "items": [
            {**grant._asdict(), "command": masked_words(grant.command), "created_at": formatting.iso(grant.created_at)}
            for grant in app.approvals.grants()
        ]
    }


def revoke_grant(app: App, call: Call) -> Reply:
    """Revoke a permanent permission."""
    if not call.path["id"].isdecimal():
        raise BadInput(f"'{call.path['id']}' is not the number of a permission.")
    app.approvals.revoke(int(call.path["id"][:15]))
    return Reply(204)


def sessions(app: App, call: Call) -> dict[str, object]:
    """The sessions that submitted tasks, latest first."""
    times = ("seen_at", "created_at")
    return {
        "items": [
            {
                **session._asdict(),
                "process": str(session.process) if session.process else None,
                **{name: formatting.iso(getattr(session, name)) for name in times},
            }
            for session in app.sessions.list()
        ]
    }


def projects(app: App, call: Call) -> dict[str, object]:
    """All projects with the number of their tasks."""
    trusted = {grant.project for grant in app.approvals.grants() if grant.kind == "trust"}
    return {"items": [{"project": name, "tasks": count, "trusted": name in trusted} for name, count in app.overview.projects().items()]}


def batches(app: App, call: Call) -> dict[str, object]:
    """All batches with the number of tasks in each status."""
    found = app.queries.batches(call.caller, everywhere=True)
    return {"items": [{**batch._asdict(), "created_at": formatting.iso(batch.created_at)} for batch in found]}


def agents(app: App, call: Call) -> dict[str, object]:
    """The agents that are configured or installed."""
    items = []
    for name in sorted({"default", *app.config.agents, *app.agents.installed(call.caller)}):
        row = {"name": name, "type": "", "model": "", "command": "", "description": "", "problem": ""}
        try:
            settings = app.agents.settings(name)
            command = (settings.get("url") or settings["command"]) if settings["type"] else ""
            row |= {"type": settings["type"], "model": settings["model"], "command": command}
            row["description"] = settings.get("description", "")
        except BackburnerError as error:
            row["problem"] = str(error)
        items.append(row)
    return {"items": items}


def channels(app: App, call: Call) -> dict[str, object]:
    """The configured channels, with the number of notices that wait or failed."""
    failed = [Recipient.parse(notice.channel).name for notice in app.deliveries.failed()]
    return {
        "items": [
            {"name": name, "type": settings["type"], "pending": len(app.deliveries.pending(name)), "failed": failed.count(name)}
            for name, settings in sorted(app.config.channels.items())
        ]
    }


def doctor(app: App, call: Call) -> dict[str, object]:
    """What `backburner doctor` finds."""
    from backburner.interfaces.cli.doctor import examine

    findings = list(examine(app.home.root, call.caller.environ, {}))
    return {"ok": all(finding.ok for finding in findings), "findings": [finding._asdict() for finding in findings]}


def config(app: App, call: Call) -> dict[str, object]:
    """All settings with their origins. Secrets are masked."""
    values, origins = app.config.values, app.config.origins
    items = [
        {
            "name": name,
            "value": MASK if value and "headers" in name else list(value) if isinstance(value, tuple) else value,
            "origin": origins[name],
            "default": list(setting.default) if isinstance(setting.default, tuple) else setting.default,
            "description": setting.description,
        }
        for name, setting in SETTINGS.items()
        for value in [values[name]]
    ]
    problem = str(app.config_file.problem) if app.config_file.problem else None
    return {"items": items, "path": app.home.config, "rules": len(app.config.rules), "problem": problem}


def events(app: App, call: Call) -> dict[str, object]:
    """The event log after an event, oldest first; a negative `after` counts from the end."""
    found = app.queries.events(call.get("after", -_MAX_EVENTS))[: limit_of(call, _MAX_EVENTS, _MAX_EVENTS)]
    last = found[-1].event_id if found else app.overview.last_event()
    return {"items": [task_text.event_json(event) for event in found], "last": last}
