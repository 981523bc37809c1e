"""Judges commands with the rules and grants of one home, and computes the fingerprint that an approval is bound to.

The fingerprint covers the arguments, the directory, the environment variables that decide what runs, the program, and the content of
the script, Makefile or package.json that the command names, but not what these import. It is checked again right before the start.
"""

import contextlib
import os
import stat
from collections.abc import Callable, Mapping, Sequence

from backburner.approval.policy import Decision, Rule, SandboxSettings, Verdict, judge, judge_for_sandbox
from backburner.coordination.config_file import ConfigFile
from backburner.core import light_json as json
from backburner.core.claims import ClaimedRun, Recheck
from backburner.core.digests import sha256
from backburner.core.errors import BadInput
from backburner.core.grants import Grant
from backburner.core.light_typing import TYPE_CHECKING
from backburner.core.models import SANDBOX, Entry, Submission, Task
from backburner.core.queues import host_of, lane_of
from backburner.core.recurring import tools_of
from backburner.core.sandbox import Sandbox, Support
from backburner.core.states import RunState, TaskState, WaitKind
from backburner.core.task_spec import Order, TaskSpec
from backburner.services.agent_catalog import AgentCatalog
from backburner.services.validation import validate
from backburner.system.command_context import LocalCommandContext, Read, project_for
from backburner.system.home import Home
from backburner.system.paths import project_above, real_path
from backburner.system.processes import executable_of, is_confined
from backburner.system.recorded_reads import Answers
from backburner.system.sandbox_support import find_support

if TYPE_CHECKING:
    from backburner.core.store_ports import GrantStore, HostStore, LedgerQueries

_MAX_SCRIPT_BYTES = 16 << 20
_DENIED = 126  # exit code, as of a shell that may not run a program


class HostNames:
    """This host and the names of the others, as the ledger knows them. In a ledger file there is only this one."""

    def __init__(self, host_id: str = "", store: "Callable[[], HostStore] | None" = None) -> None:
        self.host_id, self._store = host_id, store

    @property
    def own_name(self) -> str:
        return self.name_of(self.host_id)

    def name_of(self, host_id: str) -> str:
        hosts = self._store().beats() if self._store else ()
        return next((host.name for host in hosts if host.host_id == host_id), host_id)

    def require_worker(self) -> None:
        """BadInput if this host may only submit what others run."""
        if self._store and not self._store().may_run_tasks():
            raise BadInput(
                "This host only submits tasks, because its database user is not a worker: say where it runs with --lane NAME or --host NAME."
                " To see the hosts and their lanes: backburner hosts"
            )


class Gate:
    """Verdicts and fingerprints. Whether a person gave an approval is decided in `identity.py`."""

    def __init__(
        self,
        grant_store: "GrantStore",
        ledger_queries: "LedgerQueries",
        catalog: AgentCatalog,
        config: ConfigFile,
        home: str,
        hosts: HostNames | None = None,
    ) -> None:
        self._hosts = hosts or HostNames()
        self._grant_store, self._ledger_queries = grant_store, ledger_queries
        self._catalog, self._config, self._home = catalog, config, home
        self._support: tuple[str, Support] | None = None
        self._verdicts: Answers[tuple[Verdict, str]] = Answers()  # with a fingerprint, if one was needed
        self._fingerprints: Answers[str] = Answers()

    def check(self, submission: Submission, *, ours: bool = True) -> Verdict:
        """Validate and judge a submission without storing anything; `ours` if Backburner itself would start the command."""
        validate(submission, elsewhere=self.is_elsewhere(submission.spec.order.place))
        return self.judge(submission, ours=ours)

    def judge(self, submission: Submission, *, ours: bool = True, confined: bool | None = None) -> Verdict:
        """Judge a submission without storing anything. What Backburner does not start itself (`ours`) cannot run in a sandbox.

        `confined`: nothing is allowed without a sandbox, whatever the rules say. The default is whether this process is in one. What runs
        on another host is judged there when it starts, but a rule of this host can deny it.
        """
        verdict = self._judge(submission, ours=ours, confined=confined)[0]
        if verdict.decision == Decision.DENY or not self.is_elsewhere(submission.spec.order.place):
            return verdict
        return Verdict(Decision.SANDBOX, ("the host that runs it decides in which sandbox it runs, or asks",), SANDBOX)

    def is_elsewhere(self, place: str) -> bool:
        """Whether what is submitted for a place may run on another host."""
        return bool(self._hosts.host_id and place and place != f"@{self._hosts.host_id}")

    def require_runnable(self, place: str) -> None:
        """BadInput if what is submitted for a place would stay on this host, which runs nothing."""
        if self._hosts.host_id and not self.is_elsewhere(place):
            self._hosts.require_worker()

    def host_of(self, entry: Entry) -> str:
        """The name of the other host on which a task waits, or will start; empty if it is this one. A lane is named `lane NAME`."""
        task, run = entry
        if run and run.host:
            return "" if run.host == self._hosts.host_id else self._hosts.name_of(run.host)
        if not self.is_elsewhere(task.place):
            return ""
        return f"lane {lane}" if (lane := lane_of(task.place)) else self._hosts.name_of(host_of(task.place))

    def judge_for_approval(self, submission: Submission) -> tuple[Verdict, str]:
        """Judge a submission that a person approves, and return the fingerprint that this approval is bound to."""
        return self._judge(submission, fingerprinted=True)

    def _judge(
        self, submission: Submission, *, ours: bool = True, confined: bool | None = None, fingerprinted: bool = False
    ) -> tuple[Verdict, str]:
        submission, grants = _judged_part(submission), tuple(self._grant_store.grants())
        confined = is_confined() if confined is None else confined
        about = submission.spec.command.words, submission.spec.cwd
        question = submission, grants, ours, confined, fingerprinted, self._config.current, self.support() if ours else None
        if (found := self._verdicts.find(about, question)) is None:
            context = self._context(submission, grants, ours=ours)
            found = self._new_verdict(submission, context, grants, confined), _fingerprint(submission, context) if fingerprinted else ""
            self._verdicts.keep(about, question, context.reads, found)
        verdict, fingerprint = found
        if verdict.sandbox and self._failed_before(submission, verdict.sandbox):
            reason = "it may have failed before because of the sandbox"
            verdict = verdict._replace(decision=Decision.ASK, reasons=(reason, *verdict.reasons), rule="default", sandbox=None)
        return verdict, fingerprint

    def _failed_before(self, submission: Submission, sandbox: Sandbox) -> bool:
        command = submission.spec.command
        found = self._ledger_queries.failed_in_sandbox(command.words, command.shell, submission.spec.cwd)
        return bool(found) and sandbox.to_json() in found

    def _new_verdict(self, submission: Submission, context: LocalCommandContext, grants: Sequence[Grant], confined: bool) -> Verdict:
        folder = context.reads(project_above, context.cwd)
        always = [
            Rule(f"always, grant {grant.grant_id}", Decision.ALLOW, grant.command, literal=True)
            for grant in grants
            if grant.kind == "always" and grant.project == folder
        ]
        # Configured rules come first, so that an older grant cannot override them.
        rules: tuple[Rule, ...] = (*self._config.current.rules, *always)
        if confined:
            rules = tuple(rule for rule in rules if rule.decision != Decision.ALLOW)
        # A worktree that an agent got for itself may be changed: a person reviews the result.
        trusted = context.is_checkout or context.project in _trusted(grants)
        if not context.ours:
            return judge(submission, context, rules, trusted=trusted)
        ports = [int(port) for port in self._config.current.listed("sandbox.connect")]
        if trusted:
            ports += [int(grant.command[0]) for grant in grants if grant.kind == "connect" and grant.project == context.project]
        read = self._config.current.listed("sandbox.read")
        settings = SandboxSettings(self.support(), context.user_home, tuple(sorted(set(ports))), read)
        return judge_for_sandbox(submission, context, rules, settings, trusted=trusted)

    def support(self) -> Support:
        """What kind of sandbox this machine offers."""
        limit = self._config.current.text("sandbox.level")
        if self._support is None or self._support[0] != limit:
            self._support = limit, find_support(Home(self._home), limit)
        return self._support[1]

    def fingerprint_of(self, entry: Entry) -> str:
        """Return the fingerprint of what an approval of the task would cover now."""
        task, run = entry
        if run and run.state == RunState.WAITING and (run.wait_kind not in (None, WaitKind.APPROVAL) or not task.spec.command.words):
            return _digest("step", run.run_id, run.wait and run.wait[:2], run.error, run.extensions)
        if task.state == TaskState.PAUSED:
            return _digest("paused", task.task_id, task.recurring.paused_because)
        if (asked := entry.question_fingerprint) and self.host_of(entry):
            return asked  # only the other host has the files that it covers, and checks it when the command starts
        submission = submission_of(task, self._ledger_queries.environment(task.task_id))
        return self.fingerprint(submission.with_spec(recurrence=task.spec.recurrence))

    def fingerprint(self, submission: Submission) -> str:
        """Return the fingerprint of a submission's command; without a command, of its prompt and the settings of its agent."""
        spec = submission.spec
        if not spec.command.words:
            settings: dict[str, str] = {}
            with contextlib.suppress(BadInput):  # the agent was removed from the configuration
                settings = self._catalog.settings_for(submission)
            return _digest("prompt", spec.cwd, spec.env, settings, tools_of(submission, settings.get("tools", "")), spec.prompt)
        submission, grants = _judged_part(submission), tuple(self._grant_store.grants())
        about, question = (spec.command.words, spec.cwd), (submission, grants)
        if (fingerprint := self._fingerprints.find(about, question)) is None:
            context = self._context(submission, grants)
            fingerprint = _fingerprint(submission, context)
            self._fingerprints.keep(about, question, context.reads, fingerprint)
        return fingerprint

    def files_of(self, submission: Submission) -> tuple[list[str], list[str]]:
        """Return the programs and the scripts that a fingerprint covers, as paths."""
        from backburner.approval.programs import scripts_of
        from backburner.approval.shell_parser import parse_commands

        context = self._context(submission, tuple(self._grant_store.grants()))
        parts = parse_commands(submission.spec.command.words, submission.spec.command.shell)
        programs = [context.executable(part.name) or part.name for part in parts if part.name]
        return list(dict.fromkeys(programs)), [path for path in scripts_of(parts, context) if os.path.isfile(path)]

    def placed(self, work: ClaimedRun) -> ClaimedRun:
        """A run that was submitted on another host, with its folder on this one; CannotStart if there is none."""
        if work.task.origin_host == self._hosts.host_id:
            return work
        from backburner.services.placement import placed

        return placed(work, self._hosts.host_id, self._hosts.own_name, self._config.current)

    def recheck(self, task: Task, environment: dict[str, str]) -> Recheck:
        """Check again, right before it starts, whether a task may start, and in which sandbox."""
        submission = submission_of(task, environment)
        is_ours = task.origin_host == self._hosts.host_id
        if task.decision.by == "user":
            approved = task.decision.fingerprint
            if (approved is None and is_ours) or (now := self.fingerprint(submission)) == approved:
                return Recheck()
            if is_ours:
                return Recheck(reason="the command has changed since it was approved", fingerprint=now)
        # What another host has decided, or a person for that host, says nothing about the files and the rules of this one. A task for a lane
        # was not judged when it was submitted, also if this host submitted it.
        is_judged = is_ours and not self.is_elsewhere(task.place)
        verdict = self._judge(submission, confined=task.is_unapproved if is_judged else None)[0]
        if verdict.sandbox and (task.is_unapproved or not is_ours):
            return Recheck(sandbox=verdict.sandbox.to_json())
        if verdict.decision == Decision.ALLOW:
            return Recheck(rule="" if is_judged else verdict.rule)
        reasons, name = "; ".join(verdict.reasons), "" if is_judged else self._hosts.own_name
        if verdict.decision == Decision.DENY and not is_judged:
            from backburner.core.ports import CannotStart  # slow to import, and only a host of several needs it

            raise CannotStart(f"host {name} denies it: {reasons}", _DENIED)
        reason = f"it was allowed when it was submitted, but no longer is: {reasons}" if is_judged else f"on host {name}, {reasons}"
        return Recheck(reason=reason, fingerprint=self.fingerprint(submission))

    def _context(self, submission: Submission, grants: Sequence[Grant], *, ours: bool = True) -> LocalCommandContext:
        """Return the context in which the command would run now; `ours` if Backburner itself would start it."""
        cwd, environ = submission.spec.cwd, {**submission.environment, **submission.spec.env}

        def project(look: Read) -> str | None:
            return project_for(cwd, submission.opened, _trusted(grants), environ, self._home, look)

        return LocalCommandContext(cwd, environ, self._config.current.hosts, project=project, home=self._home, clean=ours, confined=ours)

    def require_program(self, submission: Submission) -> None:
        """Raise BadInput if the program does not exist, so that nobody is asked about a typing error.

        Not for a command that starts later: its program may be created before that.
        """
        spec = submission.spec
        starts_later = submission.is_recurring or spec.order.after or spec.order.start_at is not None
        if spec.command.shell or not spec.command.words or starts_later or self.is_elsewhere(spec.order.place):
            return
        name, path = spec.command.words[0], {**submission.environment, **spec.env}.get("PATH", os.defpath)
        if executable_of(name, real_path(spec.cwd), path) or ("/" in name and os.path.exists(os.path.join(spec.cwd, name))):
            return
        hint = " For a shell command line, use --shell (in tools: shell=true)." if " " in name else ""
        raise BadInput(f"{name}: command not found.{hint}")

    def project(self, cwd: str, opened: str | None, environ: Mapping[str, str]) -> str | None:
        """Return the project that applies to `cwd` for a session that was opened in `opened`; None if `cwd` is outside of it."""
        return project_for(cwd, opened, _trusted(self._grant_store.grants()), environ, self._home)


def _trusted(grants: Sequence[Grant]) -> list[str]:
    return [grant.project for grant in grants if grant.kind == "trust"]


def _judged_part(submission: Submission) -> Submission:
    """What a verdict or a fingerprint can depend on, besides the machine and the settings."""
    spec = submission.spec
    return Submission(TaskSpec(spec.cwd, spec.env, command=spec.command), submission.environment, opened=submission.opened)


def _fingerprint(submission: Submission, context: LocalCommandContext) -> str:
    from backburner.approval.effects import injects
    from backburner.approval.programs import scripts_of
    from backburner.approval.shell_parser import parse_commands

    spec, look = submission.spec, context.reads
    env = {**submission.environment, **spec.env}
    parts = parse_commands(spec.command.words, spec.command.shell)
    covered = {
        "command": spec.command.words,
        "shell": spec.command.shell,
        "cwd": (spec.cwd, context.cwd),
        "env": spec.env,
        "environment": {name: value for name, value in sorted(env.items()) if injects(name) and not name.startswith("BACKBURNER_")},
        "programs": {part.name: look(_stamp, context.executable(part.name) or "") for part in parts if part.name},
        "scripts": {path: look(_content, path) for path in scripts_of(parts, context)},
        **({"stdin": True} if spec.command.stdin else {}),
    }
    return _digest_of(covered)


def submission_of(task: Task, environment: dict[str, str]) -> Submission:
    """Return a submission that repeats a task, without its key, start time and dependencies."""
    before = task.spec.order
    order = Order(batch=before.batch, priority=before.priority, place=before.place, rerun=before.rerun)
    spec = task.spec._replace(order=order, recurrence=None, channels=())
    return Submission(spec, environment, session=task.session, message=task.message, opened=task.opened)


def _digest(*values: object) -> str:
    return _digest_of(values)


def _digest_of(value: object) -> str:
    return sha256(json.dumps(value, sort_keys=True).encode("utf-8", "surrogateescape")).hexdigest()


def _stamp(path: str) -> list[object] | None:
    """Identify the file of a program without reading it; None for an empty path."""
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
