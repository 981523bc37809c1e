"""Judges commands with the rules and grants of one home, and computes the fingerprint that an approval is bound to.

The fingerprint covers the arguments, the directory, the environment variables that decide what runs, the program, and the content of
the script, Makefile or package.json that the command names, but not what these import. It is checked again right before the start.
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
from backburner.system.home import project_above

if TYPE_CHECKING:
    from backburner.core.store_ports import GrantStore, LedgerQueries

_MAX_SCRIPT_BYTES = 16 << 20


class Gate:
    """Verdicts and fingerprints. Whether a person gave an approval is decided in `identity.py`."""

    def __init__(
        self, grant_store: "GrantStore", ledger_queries: "LedgerQueries", catalog: AgentCatalog, config: ConfigFile, home: str
    ) -> None:
        self._grant_store, self._ledger_queries = grant_store, ledger_queries
        self._catalog, self._config, self._home = catalog, config, home

    def check(self, submission: Submission, *, ours: bool = True) -> Verdict:
        """Validate and judge a submission without storing anything; `ours` if Backburner itself would start the command."""
        validate(submission)
        return self.judge(submission, self.context(submission, ours=ours))

    def judge(self, submission: Submission, context: LocalCommandContext | None = None) -> Verdict:
        """Judge a submission without storing anything."""
        context = context or self.context(submission)
        always = [
            Rule(f"always, grant {grant.grant_id}", Decision.ALLOW, grant.command, literal=True)
            for grant in self._grant_store.grants(project_above(context.cwd))
            if grant.kind == "always"
        ]
        # Configured rules come first, so that an older grant cannot override them.
        rules = (*self._config.current.rules, *always)
        return judge(submission, context, rules, trusted=context.is_trusted)

    def fingerprint_of(self, entry: Entry) -> str:
        """Return the fingerprint of what an approval of the task would cover now."""
        task, run = entry
        if run and run.state == RunState.WAITING and (run.wait_kind not in (None, WaitKind.APPROVAL) or not task.spec.command.words):
            return _digest("step", run.run_id, run.wait and run.wait[:2], run.error, run.extensions)
        if task.state == TaskState.PAUSED:
            return _digest("paused", task.task_id, task.recurring.paused_because)
        submission = submission_of(task, self._ledger_queries.environment(task.task_id))
        return self.fingerprint(submission.with_spec(recurrence=task.spec.recurrence))

    def fingerprint(self, submission: Submission, context: LocalCommandContext | None = None) -> str:
        """Return the fingerprint of a submission's command; without a command, of its prompt and the settings of its agent."""
        spec = submission.spec
        if not spec.command.words:
            settings: dict[str, str] = {}
            with contextlib.suppress(BadInput):  # the agent was removed from the configuration
                settings = self._catalog.settings_for(submission)
            return _digest("prompt", spec.cwd, spec.env, settings, tools_of(submission, settings.get("tools", "")), spec.prompt)
        from backburner.approval.effects import injects
        from backburner.approval.programs import scripts_of
        from backburner.approval.shell_parser import parse_commands

        context = context or self.context(submission)
        env = {**submission.environment, **submission.spec.env}
        parts = parse_commands(submission.spec.command.words, submission.spec.command.shell)
        programs = {part.name: _stamp(context.executable(part.name)) for part in parts if part.name}
        covered = {
            "command": submission.spec.command.words,
            "shell": submission.spec.command.shell,
            "cwd": (submission.spec.cwd, context.cwd),
            "env": submission.spec.env,
            "environment": {name: value for name, value in sorted(env.items()) if injects(name) and not name.startswith("BACKBURNER_")},
            "programs": programs,
            "scripts": {path: _content(path) for path in scripts_of(parts, context)},
            **({"stdin": True} if submission.spec.command.stdin else {}),
        }
        return _digest_of(covered)

    def changed(self, task: Task, environment: dict[str, str]) -> tuple[str, str] | None:
        """Return why an approved task may no longer start, with the current fingerprint; None if it may start."""
        submission = submission_of(task, environment)
        if task.decision.by == "user":
            if task.decision.fingerprint is not None and (now := self.fingerprint(submission)) != task.decision.fingerprint:
                return "the command has changed since it was approved", now
            return None
        verdict = self.judge(submission)
        if verdict.decision == Decision.ALLOW:
            return None
        reason = f"it was allowed when it was submitted, but no longer is: {'; '.join(verdict.reasons)}"
        return reason, self.fingerprint(submission)

    def context(self, submission: Submission, *, ours: bool = True) -> LocalCommandContext:
        """Return the context in which the command would run now; `ours` if Backburner itself would start it."""
        environ = {**submission.environment, **submission.spec.env}
        trusted = self._trusted()
        project = project_for(submission.spec.cwd, submission.opened, trusted, environ, self._home)
        hosts, is_trusted = self._config.current.hosts, project in trusted
        return LocalCommandContext(submission.spec.cwd, environ, hosts, project=project, is_trusted=is_trusted, home=self._home, clean=ours)

    def project(self, cwd: str, opened: str | None, environ: Mapping[str, str]) -> str | None:
        """Return the project that applies to `cwd` for a session that was opened in `opened`; None if `cwd` is outside of it."""
        return project_for(cwd, opened, self._trusted(), environ, self._home)

    def _trusted(self) -> list[str]:
        return [grant.project for grant in self._grant_store.grants() if grant.kind == "trust"]


def submission_of(task: Task, environment: dict[str, str]) -> Submission:
    """Return a submission that repeats a task, without its key, start time and dependencies."""
    order = Order(batch=task.spec.order.batch, priority=task.spec.order.priority)
    spec = task.spec._replace(order=order, recurrence=None, channels=())
    return Submission(spec, environment, session=task.session, message=task.message, opened=task.opened)


def _digest(*values: object) -> str:
    return _digest_of(values)


def _digest_of(value: object) -> str:
    import json

    return sha256(json.dumps(value, sort_keys=True).encode("utf-8", "surrogateescape")).hexdigest()


def _stamp(path: str | None) -> list[object] | None:
    """Identify the file of a program without reading it."""
    try:
        found = os.stat(path) if path else None
    except OSError:
        return [path]
    return [path, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns] if found else None


def _content(path: str) -> str | None:
    try:
        if os.stat(path).st_size > _MAX_SCRIPT_BYTES or not stat.S_ISREG(os.stat(path).st_mode):
            return str(_stamp(path))
        with open(path, "rb") as file:
            return sha256(file.read()).hexdigest()
    except OSError:
        return None
