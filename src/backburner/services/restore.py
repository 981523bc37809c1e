"""Replaces a home by the contents of a backup, as a whole: either all of it or nothing, and never a mixture of the two.

The backup is unpacked beside the home, checked, and prepared, so that nothing in it happens a second time: runs that had not ended are
`lost`, and slots that have passed since then are skipped. Only then it takes the place of the home, which is kept under another name.
"""

import contextlib
import os
import shutil
import tempfile
from collections.abc import Generator, Mapping
from typing import TYPE_CHECKING, NamedTuple

from backburner.core.errors import HomeInUse, NotAPerson, RestoreFailed
from backburner.core.models import Clock, Entry
from backburner.services.backup import HOME_FILES, LEDGER
from backburner.services.identity import require_no_agent
from backburner.system.archive import ArchiveError, ArchiveReader
from backburner.system.home import RESERVED_NAMES, Home, lock, swap_folders
from backburner.system.paths import real_path
from backburner.system.processes import engine_of, name_of, users_of

if TYPE_CHECKING:
    from backburner.core.schedule import Plan
    from backburner.store.ledger import Ledger

_LOCKS = ("start.lock", "engine.lock", "agents.lock", "integrations.lock")
_MAX_SHOWN = 5
_LOST = "it had not ended when the backup was made; whether it ended later is not known"
_SKIPPED = "it passed before the backup was restored; whether it ran then is not known"


class Restored(NamedTuple):
    """What was restored, and where the previous home is; None if there was none."""

    tasks: int
    created_at: str
    lost: int
    replaced: str | None


def restore(home: Home, path: str, environ: Mapping[str, str], clock: Clock) -> Restored:
    """Replace a home that no process uses by a backup. RestoreFailed if that is not possible; the home is unchanged then."""
    path = os.path.abspath(path)
    root = real_path(home.root)
    try:
        require_no_agent(environ)
        with _unused(root), open(path, "rb") as file:
            os.makedirs(os.path.dirname(root), exist_ok=True)
            folder = tempfile.mkdtemp(prefix=f".{os.path.basename(root)}-restore-", dir=os.path.dirname(root))
            try:
                manifest = _unpack(ArchiveReader(file), folder)
                tasks, lost = _prepare(folder, clock)
                os.sync()
                _check_unused(root)  # a process may have opened it meanwhile
                replaced = _put_in_place(folder, root)
            except BaseException:
                shutil.rmtree(folder, ignore_errors=True)
                raise
    except NotAPerson as error:
        raise RestoreFailed(file=path, reason=f"only a person can do this: {error.fields['reason']}") from None
    except ArchiveError as error:
        raise RestoreFailed(file=path, reason=str(error)) from None
    except OSError as error:
        raise RestoreFailed(file=path, reason=f"{error.filename or root}: {error.strerror}") from None
    return Restored(tasks, str(manifest.get("created_at")), lost, replaced)


@contextlib.contextmanager
def _unused(root: str) -> Generator[None]:
    """Make sure that no process uses the home, and that no engine starts in it."""
    held = []
    try:
        if os.path.isdir(root) and os.listdir(root):
            for name in _LOCKS:
                if (descriptor := lock(os.path.join(root, name))) is not None:
                    held.append(descriptor)
            _check_unused(root, locked=len(held) == len(_LOCKS))
        yield
    finally:
        for descriptor in held:
            os.close(descriptor)


def _check_unused(root: str, *, locked: bool = True) -> None:
    if users := users_of(root):
        engine = engine_of(Home(root))
        shown = sorted(users, key=lambda user: user != engine)[:_MAX_SHOWN]
        names = ", ".join(f"{'its engine' if user == engine else name_of(user.pid)} (pid {user.pid})" for user in shown)
        raise HomeInUse(home=root, users=f"{names}{' …' if len(users) > _MAX_SHOWN else ''}")
    if not locked:
        raise HomeInUse(home=root, users="another process")


def _unpack(archive: ArchiveReader, folder: str) -> dict[str, object]:
    """Unpack the ledger, the known files of a home, and the folders of runs that the ledger names; everything else is refused."""
    run_folders: set[str] | None = None
    for name, member in archive.members():
        if run_folders is None:
            if name != LEDGER or member.is_folder:
                raise ArchiveError("it is not a backup of Backburner")
            member.write(os.path.join(folder, LEDGER))
            run_folders = _check_ledger(os.path.join(folder, LEDGER))
            continue
        first = name.split("/", 1)[0]
        is_known = name in HOME_FILES and not member.is_folder
        if not is_known and (first not in run_folders or (first in RESERVED_NAMES and first != "tasks")):
            raise ArchiveError(f"it contains {name!r}, which is not a part of a home")
        member.write(os.path.join(folder, name))
    return archive.manifest


def _check_ledger(path: str) -> set[str]:
    """Check that the ledger contains only data and only names folders below the home; returns the first part of each folder's path."""
    from backburner.store.ledger import open_ledger

    ledger = open_ledger(path)  # upgrades it; LedgerTooNew for a newer one
    try:
        if damage := ledger.check():
            raise ArchiveError(f"its ledger is damaged: {damage[0]}")
        if unexpected := ledger.unexpected_objects():
            raise ArchiveError(f"its ledger contains {unexpected[0]!r}, which is not a part of a ledger")
        found = set()
        for folder, _, _ in ledger.records.run_folders():
            parts = folder.split("/")
            if os.path.isabs(folder) or any(part in ("", ".", "..") for part in parts):
                raise ArchiveError(f"its ledger contains the path {folder!r}")
            found.add(parts[0])
        return found
    finally:
        ledger.close()


def _prepare(folder: str, clock: Clock) -> tuple[int, int]:
    """End the runs that had not ended, and skip the slots that have passed; returns the number of tasks, and of runs that were ended."""
    from backburner.store.ledger import open_ledger

    home = Home(folder).make()
    ledger = open_ledger(home.ledger)
    try:
        now = clock()
        lost = ledger.runs.end_unobserved(_LOST, now)
        _skip_passed_slots(ledger, home, now)
        ledger.checkpoint()
        return ledger.records.count_tasks(), lost
    finally:
        ledger.close()


def _skip_passed_slots(ledger: "Ledger", home: Home, now: int) -> None:
    from backburner.core.schedule import SKIP, plan

    def decide(entry: Entry) -> "tuple[Plan, str | None]":
        assert entry.task.recurring.next_run_at is not None
        return plan(entry.task.spec.schedule._replace(missed=SKIP), entry.task.recurring.next_run_at, now, busy=_SKIPPED), None

    while ledger.recurring.fire(decide, now, home.tasks):
        pass


def _put_in_place(folder: str, root: str) -> str | None:
    """Exchange the unpacked folder and the home; returns the new path of the previous home, unless it was empty."""
    if not os.path.lexists(root):
        os.rename(folder, root)
        return None
    swap_folders(folder, root)
    with contextlib.suppress(OSError):
        os.rmdir(folder)
        return None
    number, replaced = 1, f"{root}.replaced"
    while os.path.lexists(replaced):
        number += 1
        replaced = f"{root}.replaced-{number}"
    os.rename(folder, replaced)
    return replaced
