"""Every error a user can meet. The docstring is the message, filled in with the fields of the error.

BackburnerError                 exit 1
├── BadInput                    exit 2
│   ├── ConfigError
│   ├── AmbiguousId
│   ├── NotResumable            exit 1
│   └── NotRunning              exit 1
├── ApprovalRequired            exit 3
├── ApprovalDenied              exit 3
├── NotAPerson                  exit 3
├── NotYourTask                 exit 3
├── QuestionChanged             exit 3
├── TaskNotFound                exit 4
│   ├── BatchNotFound
│   └── SpanNotFound
├── WaitTimedOut                exit 124
├── IllegalTransition
├── StaleRun
├── StaleTask
├── HomeUnusable
├── EngineUnavailable
├── LedgerUnavailable
├── LedgerTooNew
└── WorktreeFailed
"""

from backburner.core.terminal_text import visible


class BackburnerError(Exception):
    """{message}"""

    exit_code = 1

    def __init__(self, message: str = "", **fields: object) -> None:
        self.fields = {"message": message, **fields}
        shown = {name: visible(str(value)) for name, value in self.fields.items()}
        super().__init__((type(self).__doc__ or "{message}").format(**shown))

    @property
    def code(self) -> str:
        return code_of(type(self))


class BadInput(BackburnerError):
    """{message}"""

    exit_code = 2


class ConfigError(BadInput):
    """{where}: {message}"""


class AmbiguousId(BadInput):
    """'{reference}' fits several tasks: {candidates}. Give more of the id."""


class NotRunning(BadInput):
    """Task {task_id} is not running (status: {status})."""

    exit_code = 1


class NotResumable(BadInput):
    """{message}"""

    exit_code = 1


class ApprovalRequired(BackburnerError):
    """{task_id} is waiting for approval ({reason}). A person can answer with: backburner approve {task_id}"""

    exit_code = 3


class ApprovalDenied(BackburnerError):
    """Not started: {reason}."""

    exit_code = 3


class NotAPerson(BackburnerError):
    """Only a person can say yes: {reason}."""

    exit_code = 3


class NotYourTask(BackburnerError):
    """Task {task_id} was approved by a person, so only the session that asked for it, or a person, can {act} it: {reason}."""

    exit_code = 3


class QuestionChanged(BackburnerError):
    """Not approved: what {task_id} would run has changed since it was asked about. Read it as it is now, then: backburner approve {task_id} --seen {seen}"""

    exit_code = 3


class TaskNotFound(BackburnerError):
    """Task {task_id} not found."""

    exit_code = 4


class BatchNotFound(TaskNotFound):
    """There is no batch '{batch}'. See: backburner batch"""


class SpanNotFound(TaskNotFound):
    """There is no span {span_id}; what was cleared is forgotten."""


class WaitTimedOut(BackburnerError):
    """Still running after {seconds} s: {task_ids}."""

    exit_code = 124


class IllegalTransition(BackburnerError):
    """A {noun} that is {state} cannot become {event}."""


class StaleRun(BackburnerError):
    """Run {run_id} was changed by somebody else meanwhile; nothing was written."""


class StaleTask(BackburnerError):
    """Task {task_id} was changed by somebody else meanwhile; nothing was written."""


class HomeUnusable(BackburnerError):
    """The home {home} cannot be used: {message}."""


class EngineUnavailable(BackburnerError):
    """The engine did not start: {message}. Its log is {log}."""


class LedgerUnavailable(BackburnerError):
    """The ledger {path} cannot be used: {message}."""


class LedgerTooNew(BackburnerError):
    """The ledger {path} was written by a newer Backburner (version {found}, this one knows {known}). Upgrade Backburner, or use another --home."""


class WorktreeFailed(BackburnerError):
    """The git worktree of {task_id} could not be used: {reason}."""


def code_of(kind: type[BackburnerError]) -> str:
    """The name a script can rely on: `TaskNotFound` becomes `task_not_found`."""
    return "".join(f"_{c.lower()}" if c.isupper() else c for c in kind.__name__).lstrip("_")
