"""All errors that can be shown to a user. The docstring of an error is its message; the error's fields are filled in.

BackburnerError                 exit 1
├── BadInput                    exit 2
│   ├── ConfigError
│   ├── AmbiguousId
│   ├── NotResumable            exit 1
│   └── NotRunning              exit 1
├── ApprovalRequired            exit 3
├── ApprovalDenied              exit 3
├── NotAPerson                  exit 3
│   └── NotPermitted            exit 3
├── NotYourTask                 exit 3
├── NoPasskey                   exit 3
├── PairingClosed               exit 3
├── PasskeysNotHere             exit 3
├── ProofRefused                exit 3
├── WebApprovalOff              exit 3
├── TooManyRequests
├── QuestionChanged             exit 3
├── ChangesConflict             exit 1
├── ChangesDiffer               exit 3
├── TaskNotFound                exit 4
│   ├── NoTasks
│   ├── BatchNotFound
│   └── SpanNotFound
├── WaitTimedOut                exit 124
├── IllegalTransition
│   └── AlreadyInState
├── StaleRun
├── StaleTask
├── HomeUnusable
├── HomeInUse
├── BackupFailed
├── RestoreFailed
├── EngineUnavailable
├── HostFenced
├── HostUnreachable
├── LedgerUnavailable
│   └── LedgerUnreachable
├── LedgerTooNew
├── BackupFailed
├── RestoreFailed
├── HomeInUse
└── WorktreeFailed
"""

from backburner.core.terminal_text import visible


class BackburnerError(Exception):
    """{message}"""

    exit_code = 1

    def __init__(self, message: str = "", **fields: object) -> None:
        self.fields = {"message": message, **fields}
        shown = {name: _shown(value) for name, value in self.fields.items()}
        super().__init__((type(self).__doc__ or "{message}").format(**shown))

    @property
    def code(self) -> str:
        return code_of(type(self))


def _shown(value: object) -> str:
    """A field as text without control characters; the items of a list are on lines of their own."""
    return "".join(f"\n  {visible(str(item))}" for item in value) if isinstance(value, list) else visible(str(value))


class BadInput(BackburnerError):
    """{message}"""

    exit_code = 2


class ConfigError(BadInput):
    """{where}: {message}"""


class AmbiguousId(BadInput):
    """'{reference}' matches several tasks; use a longer part of the ID:{candidates}"""


class NotRunning(BadInput):
    """Task {task_id} is not running (status: {status})."""

    exit_code = 1


class NotResumable(BadInput):
    """{message}"""

    exit_code = 1


class ApprovalRequired(BackburnerError):
    """{task_id} is waiting for approval ({reason}). A person can approve it with: backburner approve {task_id}"""

    exit_code = 3


class ApprovalDenied(BackburnerError):
    """Not started: {reason}."""

    exit_code = 3


class NotAPerson(BackburnerError):
    """Only a person can approve: {reason}."""

    exit_code = 3


class NotPermitted(NotAPerson):
    """The database user {user} may not do this: {reason}."""


class NotYourTask(BackburnerError):
    """Cannot {act} task {task_id}: a person approved it, so only a person or the session that submitted it may do this ({reason})."""

    exit_code = 3


class NoPasskey(BackburnerError):
    """This page has no passkey. Add one in its settings, or approve in a terminal."""

    exit_code = 3


class PairingClosed(BackburnerError):
    """No terminal waits for the number of a page. Run in a terminal of your own: backburner web"""

    exit_code = 3


class PasskeysNotHere(BackburnerError):
    """Passkeys do not work at {origin}: open the page at http://backburner.localhost, or set `origin` under [web] in config.toml."""

    exit_code = 3


class ProofRefused(BackburnerError):
    """Not approved: {reason}."""

    exit_code = 3


class WebApprovalOff(BackburnerError):
    """Approving in the web interface is turned off: `web` under [approval] in config.toml is not "passkey"."""

    exit_code = 3


class TooManyRequests(BackburnerError):
    """Too many attempts. Try again in {seconds} s."""


class QuestionChanged(BackburnerError):
    """Not approved: the command of {task_id} has changed since approval was requested. Review it, then run: backburner approve {task_id} --seen {seen}"""

    exit_code = 3


class ChangesConflict(BackburnerError):
    """Nothing was applied: the project has changed since {task_id} started, or the changes cannot be applied safely: {paths}."""

    exit_code = 1


class ChangesDiffer(BackburnerError):
    """Nothing was applied: the changes of {task_id} are not those that were shown. Review them, then run: backburner apply {task_id} --seen {seen}"""

    exit_code = 3


class TaskNotFound(BackburnerError):
    """Task {task_id} not found."""

    exit_code = 4


class NoTasks(TaskNotFound):
    """There are no tasks in this project yet."""


class BatchNotFound(TaskNotFound):
    """Batch '{batch}' not found. See: backburner batch"""


class SpanNotFound(TaskNotFound):
    """Span {span_id} not found. Its task may have been cleared."""


class WaitTimedOut(BackburnerError):
    """Still running after {seconds} s: {task_ids}."""

    exit_code = 124


class IllegalTransition(BackburnerError):
    """The {noun} is {state} and cannot be {event}."""


class AlreadyInState(IllegalTransition):
    """The {noun} is already {state}."""


class StaleRun(BackburnerError):
    """Run {run_id} was changed by another process in the meantime; nothing was written."""


class StaleTask(BackburnerError):
    """Task {task_id} was changed by another process in the meantime; nothing was written."""


class HomeUnusable(BackburnerError):
    """Cannot use the home directory {home}: {message}."""


class EngineUnavailable(BackburnerError):
    """The engine did not start: {message}. See its log: {log}"""


class HostFenced(BackburnerError):
    """Exiting, because another host could not reach this one and has given it up; the next engine begins anew."""


class HostUnreachable(BackburnerError):
    """Host {host} does not answer: {message}."""


class LedgerUnavailable(BackburnerError):
    """Cannot use the ledger {path}: {message}."""


class LedgerUnreachable(LedgerUnavailable):
    """Cannot reach the ledger {path}: {message}."""


class LedgerTooNew(BackburnerError):
    """The ledger {path} was written by a newer version of Backburner (schema {found}; this version supports up to {known}). Upgrade Backburner, or use another --home."""


class BackupFailed(BackburnerError):
    """Cannot write the backup {file}: {reason}."""


class RestoreFailed(BackburnerError):
    """Cannot restore {file}: {reason}. Nothing was changed."""


class HomeInUse(BackburnerError):
    """The home {home} is in use by {users}. Cancel running tasks or wait for them, close chats, `top` and MCP clients, stop the engine (kill PID), then try again. Nothing was changed."""


class WorktreeFailed(BackburnerError):
    """Cannot use the git worktree of {task_id}: {reason}."""


def code_of(kind: type[BackburnerError]) -> str:
    """Return the stable error code for scripts: `TaskNotFound` becomes `task_not_found`."""
    return "".join(f"_{c.lower()}" if c.isupper() else c for c in kind.__name__).lstrip("_")
