"""Judges commands for one home: the pure policy with the rules and grants of the home, and the fingerprint an approval is bound to.

A grant holds for the words, the folder, the environment that decides what runs, the program that would run, and the content
of the script, Makefile or package.json it names; what those import is not covered. It is checked again in the moment of start.
"""

import contextlib
import os
import stat
from collections.abc import Mapping
from typing import TYPE_CHECKING

from backburner.approval.policy import Decision, Rule, Verdict, judge
from backburner.coordination.config_file import ConfigFile
from backburner.core.digests import sha256
from backburner.core.errors import BadInput
from backburner.core.models import Entry, Submission, Task
from backburner.core.recurring import tools_of
from backburner.core.states import RunState, TaskState, WaitKind
from backburner.core.task_spec import Order
from backburner.services.agent_catalog import AgentCatalog
from backburner.services.validation import validate
from backburner.system.command_context import LocalCommandContext, project_for
from backburner.system.home import project_of

if TYPE_CHECKING:
    from backburner.core.store_ports import GrantStore, LedgerQueries

_LARGEST_SCRIPT = 16 << 20


class Gate:
    """Verdicts and fingerprints. Whether a person gave an approval is decided in `identity.py`."""

    def __init__(
        self, grant_store: "GrantStore", ledger_queries: "LedgerQueries", catalog: AgentCatalog, config: ConfigFile, home: str
    ) -> None:
        self._grant_store, self._ledger_queries = grant_store, ledger_queries
        self._catalog, self._config, self._home = catalog, config, home

    def check(self, submission: Submission, *, ours: bool = True) -> Verdict:
        """The verdict on a valid submission, without storing anything; `ours` if Backburner itself would start the command."""
        validate(submission)
        return self.judge(submission, self.context(submission, ours=ours))

    def judge(self, submission: Submission, world: LocalCommandContext | None = None) -> Verdict:
        """What may happen to a command, without storing anything."""
        world = world or self.context(submission)
        always = [
            Rule(f"always, grant {grant.grant_id}", Decision.ALLOW, grant.command, literal=True)
            for grant in self._grant_store.grants(project_of(submission.spec.cwd))
            if grant.kind == "always"
        ]
        # what config denies or asks comes first: a grant of yesterday does not undo a rule of today
        rules = (*self._config.current.rules, *always)
        return judge(submission, world, rules, trusted=world.project in self._trusted())

    def fingerprint_of(self, entry: Entry) -> str:
        """The fingerprint of what an approval of a task would be for now. What it does not cover cannot change while the task waits."""
        task, run = entry
        if run and run.state == RunState.WAITING and (run.wait_kind not in (None, WaitKind.APPROVAL) or not task.spec.command.words):
            return _digest("step", run.run_id, run.wait and run.wait[:2], run.error, run.extensions)
        if task.state == TaskState.PAUSED:
            return _digest("paused", task.task_id, task.recurring.paused_because)
        submission = submission_of(task, self._ledger_queries.environment(task.task_id))
        return self.fingerprint(submission.with_spec(recurrence=task.spec.recurrence))

    def fingerprint(self, submission: Submission, world: LocalCommandContext | None = None) -> str:
        """The fingerprint of a submission: of its command as it would run, otherwise of the prompt and its agent's settings."""
        spec = submission.spec
        if not spec.command.words:
            settings: dict[str, str] = {}
            with contextlib.suppress(BadInput):  # there is no such agent any more
                settings = self._catalog.settings_for(submission)
            return _digest("prompt", spec.cwd, spec.env, settings, tools_of(submission, settings.get("tools", "")), spec.prompt)
        from backburner.approval.effects import injects
        from backburner.approval.programs import scripts_of
        from backburner.approval.shell_parser import parse_commands

        world = world or self.context(submission)
        env = {**submission.environment, **submission.spec.env}
        parts = parse_commands(submission.spec.command.words, submission.spec.command.shell)
        programs = {part.name: _stamp(world.executable(part.name)) for part in parts if part.name}
        bound = {
            "command": submission.spec.command.words,
            "shell": submission.spec.command.shell,
            "cwd": (submission.spec.cwd, world.cwd),
            "env": submission.spec.env,
            "environment": {name: value for name, value in sorted(env.items()) if injects(name) and not name.startswith("BACKBURNER_")},
            "programs": programs,
            "scripts": {path: _content(path) for path in scripts_of(parts, world)},
            **({"stdin": True} if submission.spec.command.stdin else {}),
        }
        return _digest_of(bound)

    def changed(self, task: Task, environment: dict[str, str]) -> tuple[str, str] | None:
        """Why a task may not start after all, with the fingerprint of what would; None where what was approved is what would run."""
        submission = submission_of(task, environment)
        if task.decision.by == "user":
            if task.decision.fingerprint is not None and (now := self.fingerprint(submission)) != task.decision.fingerprint:
                return "what would run has changed since a person said yes", now
            return None
        verdict = self.judge(submission)
        if verdict.decision == Decision.ALLOW:
            return None
        reason = f"it was allowed when it was asked for, and is not any more: {'; '.join(verdict.reasons)}"
        return reason, self.fingerprint(submission)

    def context(self, submission: Submission, *, ours: bool = True) -> LocalCommandContext:
        """The machine as the command would find it now; `ours` where Backburner itself would start it."""
        environ = {**submission.environment, **submission.spec.env}
        project = self.project(submission.spec.cwd, submission.opened, environ)
        return LocalCommandContext(submission.spec.cwd, environ, self._config.current.hosts, project=project, home=self._home, clean=ours)

    def project(self, cwd: str, opened: str | None, environ: Mapping[str, str]) -> str | None:
        """The project that what happens in `cwd` is judged by, for a session that was opened in `opened`; None where it is outside."""
        return project_for(cwd, opened, self._trusted(), environ, self._home)

    def _trusted(self) -> list[str]:
        return [grant.project for grant in self._grant_store.grants() if grant.kind == "trust"]


def submission_of(task: Task, environment: dict[str, str]) -> Submission:
    """What to submit in order to ask for a task once more. Its key, its start and what it came after were for once."""
    order = Order(batch=task.spec.order.batch, priority=task.spec.order.priority)
    spec = task.spec._replace(order=order, recurrence=None, channels=())
    return Submission(spec, environment, session=task.session, message=task.message, opened=task.opened)


def _digest(*shown: object) -> str:
    return _digest_of(shown)


def _digest_of(value: object) -> str:
    import json

    return sha256(json.dumps(value, sort_keys=True).encode("utf-8", "surrogateescape")).hexdigest()


def _stamp(path: str | None) -> list[object] | None:
    """Which file a program is, without reading all of it."""
    try:
        found = os.stat(path) if path else None
    except OSError:
        return [path]
    return [path, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns] if found else None


def _content(path: str) -> str | None:
    try:
        if os.stat(path).st_size > _LARGEST_SCRIPT or not stat.S_ISREG(os.stat(path).st_mode):
            return str(_stamp(path))
        with open(path, "rb") as file:
            return sha256(file.read()).hexdigest()
    except OSError:
        return None
