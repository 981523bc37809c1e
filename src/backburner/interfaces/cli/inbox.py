"""`inbox`: lists pending notices by priority, follows new ones, and retries failed deliveries."""

import argparse
import contextlib
import sys
from collections.abc import Sequence

from backburner.core import formatting, task_text
from backburner.core.models import Caller
from backburner.core.notice_text import first_lines
from backburner.core.notices import Notice
from backburner.core.recipients import Recipient
from backburner.core.terminal_text import readable, visible
from backburner.interfaces.cli.tasks import LIST_LIMIT, hint
from backburner.services.app import App
from backburner.system.paths import project_of

_RULE = "─"
_WIDTH = 46
_MAX_FULL_NOTICES, _MAX_LINES = 3, 10


def inbox(app: App, caller: Caller, args: argparse.Namespace) -> int:
    if args.hook is not None:
        from backburner.interfaces.mcp.client_hooks import answer

        return answer(app, caller, args.hook)
    if args.again:
        failed = app.deliveries.failed()
        app.deliveries.retry([notice.notice_id for notice in failed])
        if args.json:
            task_text.print_json({"again": len(failed)})
        else:
            print(f"Retrying {len(failed)} {'delivery' if len(failed) == 1 else 'deliveries'}.")
        return 0
    if args.follow:
        return _follow(app)
    session = caller.session
    project = project_of(caller.cwd) if args.here else None
    notices, leased = app.inbox.notices(session=session, project=project, unread=not args.read, limit=LIST_LIMIT if args.read else None), ()
    if args.ack:
        unread = {notice.notice_id for notice in app.inbox.notices(session=session)}  # without the notices of agents that are still running
        leased = app.inbox.lease([notice for notice in notices if notice.notice_id in unread])
        # Notices leased by another reader are printed by that reader.
        notices = [notice for notice in notices if notice in leased or (args.read and notice.notice_id not in unread)]
    if args.json:
        task_text.print_json([task_text.notice_json(notice) for notice in notices])
    else:
        _print_notices(notices)
        if session is None and (failed := app.deliveries.failed()):
            hint(_failure_text(failed))
    if leased:
        sys.stdout.flush()
        app.inbox.acknowledge(notice_ids=[notice.notice_id for notice in leased])
    return 0


def _print_notices(notices: Sequence[Notice]) -> None:
    """Print notices by priority; those of high priority are marked. Of many notices, only the first lines of each are printed."""
    for notice in sorted(notices, key=lambda notice: (-notice.priority, notice.notice_id)):
        text = notice.text if len(notices) <= _MAX_FULL_NOTICES else first_lines(notice, _MAX_LINES)
        print(f"{'! ' if notice.priority > 0 else ''}{formatting.local_time(notice.created_at)}  {text}")
    if not notices:
        hint("No new notices.")


def _follow(app: App) -> int:
    """Print and acknowledge each new notice until Ctrl-C."""
    hint("Waiting for notices. Press Ctrl-C to exit.")
    with contextlib.suppress(KeyboardInterrupt):
        for _ in app.changes.changes():
            for notice in app.inbox.lease(app.inbox.notices()):
                print(box(notice, notice.text), flush=True)
                app.inbox.acknowledge(notice_ids=[notice.notice_id])
    return 0


def box(notice: Notice, text: str) -> str:
    """The text of a notice between two horizontal lines, so that it stands out from other output."""
    title = f"{_RULE * 3} background: {visible(notice.task_id.split('_', 3)[-1])} "
    return "\n".join([title + _RULE * max(3, _WIDTH - len(title)), readable(text).rstrip(), _RULE * _WIDTH])


def _failure_text(failed: Sequence[Notice]) -> str:
    first = failed[0]
    noun = "delivery" if len(failed) == 1 else "deliveries"
    return f"{len(failed)} {noun} failed ({Recipient.parse(first.channel).name}: {first.error}). To retry: backburner inbox --again"
