"""`inbox`: what ended and was not told yet, in the order of its weight; as it comes, in a box; and letters that could not be delivered."""

import argparse
import contextlib
import sys
from collections.abc import Sequence

from backburner.core import formatting as words
from backburner.core import task_text as render
from backburner.core.models import Caller
from backburner.core.notices import Notice
from backburner.core.recipients import Recipient
from backburner.core.terminal_text import readable, visible
from backburner.interfaces.cli.tasks import hint
from backburner.services.app import App
from backburner.system.home import project_of

_RULE = "─"
_WIDTH = 46


def inbox(app: App, caller: Caller, args: argparse.Namespace) -> int:
    if args.hook is not None:
        from backburner.interfaces.mcp.client_hooks import answer

        return answer(app, caller, args.hook)
    if args.again:
        dead = app.deliveries.failed()
        app.deliveries.retry([notice.notice_id for notice in dead])
        render.print_json({"again": len(dead)}) if args.json else print(f"{len(dead)} are tried again.")
        return 0
    if args.follow:
        return _follow(app)
    session = caller.session
    project = project_of(caller.cwd) if args.here else None
    notices, mine = app.inbox.notices(session=session, project=project, unread=not args.read), ()
    if args.ack:
        unread = {notice.notice_id for notice in app.inbox.notices(session=session)}  # not what living agents are owed
        mine = app.inbox.lease([notice for notice in notices if notice.notice_id in unread])
        # What another reader is about to print is left to that one.
        notices = [notice for notice in notices if notice in mine or (args.read and notice.notice_id not in unread)]
    if args.json:
        render.print_json([render.notice_json(notice) for notice in notices])
    for notice in sorted(notices, key=lambda one: (-one.priority, one.notice_id)) if not args.json else []:
        print(f"{'! ' if notice.priority > 0 else ''}{words.local_time(notice.created_at)}  {notice.text}")
    if not notices and not args.json:
        hint("Nothing new.")
    if dead := app.deliveries.failed() if session is None and not args.json else ():
        hint(_undelivered(dead))
    if mine:
        sys.stdout.flush()
        app.inbox.acknowledge(notice_ids=[notice.notice_id for notice in mine])
    return 0


def _follow(app: App) -> int:
    """Each notice as it comes, once."""
    hint("What ends is shown here as it comes. Ctrl-C leaves.")
    with contextlib.suppress(KeyboardInterrupt):
        for _ in app.changes.changes():
            for notice in app.inbox.lease(app.inbox.notices()):
                print(box(notice), flush=True)
                app.inbox.acknowledge(notice_ids=[notice.notice_id])
    return 0


def box(notice: Notice) -> str:
    """A notice between two rules, so that it does not get tangled with what else is on the screen."""
    title = f"{_RULE * 3} background: {visible(notice.task_id.split('_', 3)[-1])} "
    return "\n".join([title + _RULE * max(3, _WIDTH - len(title)), readable(notice.text).rstrip(), _RULE * _WIDTH])


def _undelivered(dead: Sequence[Notice]) -> str:
    first = dead[0]
    return f"{len(dead)} could not be delivered ({Recipient.parse(first.channel).name}: {first.error}). Try again: backburner inbox --again"
