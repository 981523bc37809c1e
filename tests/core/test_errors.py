"""Every error has a one-sentence message, a stable code for scripts, and an exit code."""

import re

import pytest

from backburner.core import errors
from backburner.core.errors import BackburnerError, code_of

EXIT_CODES = {
    "BackburnerError": 1,
    "BadInput": 2,
    "ConfigError": 2,
    "AmbiguousId": 2,
    "NotResumable": 1,
    "NotRunning": 1,
    "ApprovalRequired": 3,
    "ApprovalDenied": 3,
    "NotAPerson": 3,
    "NotPermitted": 3,
    "NotYourTask": 3,
    "NoPasskey": 3,
    "PairingClosed": 3,
    "PasskeysNotHere": 3,
    "ProofRefused": 3,
    "WebApprovalOff": 3,
    "TooManyRequests": 1,
    "QuestionChanged": 3,
    "ChangesConflict": 1,
    "ChangesDiffer": 3,
    "TaskNotFound": 4,
    "BatchNotFound": 4,
    "NoTasks": 4,
    "SpanNotFound": 4,
    "WaitTimedOut": 124,
    "WorktreeFailed": 1,
    "IllegalTransition": 1,
    "AlreadyInState": 1,
    "StaleRun": 1,
    "StaleTask": 1,
    "HomeUnusable": 1,
    "LedgerUnreachable": 1,
    "BackupFailed": 1,
    "RestoreFailed": 1,
    "HomeInUse": 1,
    "EngineUnavailable": 1,
    "HostFenced": 1,
    "HostUnreachable": 1,
    "LedgerUnavailable": 1,
    "LedgerTooNew": 1,
}
CODES = {"TaskNotFound": "task_not_found", "BadInput": "bad_input", "NotAPerson": "not_a_person", "LedgerTooNew": "ledger_too_new"}
ERRORS = {kind.__name__: kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, BackburnerError)}


def make_error(kind: type[BackburnerError]) -> BackburnerError:
    fields = {name: f"<{name}>" for name in re.findall(r"\{(\w+)\}", kind.__doc__ or "")}
    return kind(str(fields.pop("message", "")), **fields)


@pytest.mark.parametrize("name", sorted(ERRORS))
def test_the_message_of_an_error_is_its_docstring(name: str) -> None:
    kind = ERRORS[name]
    assert str(make_error(kind)) == re.sub(r"\{(\w+)\}", r"<\1>", kind.__doc__ or "")


@pytest.mark.parametrize("name", sorted(ERRORS))
def test_every_error_has_its_documented_exit_code(name: str) -> None:
    assert ERRORS[name].exit_code == EXIT_CODES[name]


def test_braces_in_a_field_value_are_not_interpolated() -> None:
    assert str(errors.TaskNotFound(task_id="{message} {0} %s")) == "Task {message} {0} %s not found."


def test_an_error_code_is_the_class_name_in_snake_case() -> None:
    assert {name: code_of(ERRORS[name]) for name in CODES} == CODES
    assert errors.StaleRun(run_id="x").code == "stale_run"


def test_the_error_tree_in_the_module_docstring_is_correct() -> None:
    parents: dict[str, str | None] = {}
    ancestors: list[str] = []
    for line in (errors.__doc__ or "").splitlines():
        if found := re.match(r"^([│├└─ ]*)(\w+?)(?: +exit (\d+))?$", line):
            depth = len(found[1]) // 4
            ancestors = [*ancestors[:depth], found[2]]
            parents[found[2]] = ancestors[depth - 1] if depth else None
            if found[3]:
                assert ERRORS[found[2]].exit_code == int(found[3]), found[2]
            elif depth:
                assert ERRORS[found[2]].exit_code == ERRORS[ancestors[depth - 1]].exit_code, (
                    f"{found[2]} has an exit code of its own that is not parents"
                )
    assert parents == {name: kind.__base__.__name__ if kind is not BackburnerError else None for name, kind in ERRORS.items()}  # type: ignore[union-attr]
