"""Submits tasks: validates them, resolves dependencies, asks the gate, and stores them as ready to run or as proposals.

Every interface submits tasks through this module, so none can bypass approval.
"""

import os
from collections.abc import Callable, Sequence

from backburner.coordination.config_file import ConfigFile
from backburner.coordination.publisher import Publisher
from backburner.core import ids, trace_context
from backburner.core.errors import ApprovalDenied, BadInput, TaskNotFound
from backburner.core.formatting import short_fingerprint
from backburner.core.light_typing import TYPE_CHECKING, NamedTuple
from backburner.core.masking import masked_line
from backburner.core.models import AGENT_LANE, DISCOVERY, EXTERNAL, Approval, Caller, Clock, Entry, ProcessId, Submission, Task
from backburner.core.optional_dependencies import need
from backburner.core.recurring import explain_schedule, how_to_answer, tools_of
from backburner.core.sessions import agent_task
from backburner.core.states import TaskState
from backburner.core.task_spec import Budget, CommandSpec, Recurrence, Source, SourceKind, TaskSpec
from backburner.core.terminal_text import shortened, visible
from backburner.services.agent_catalog import AgentCatalog
from backburner.services.identity import Identity, started_by_agent
from backburner.services.queries import Queries
from backburner.services.refusals import Refusals
from backburner.services.validation import TOOL_SETS, validate
from backburner.system.home import Home
from backburner.system.paths import project_of
from backburner.system.processes import umask

if TYPE_CHECKING:
    from backburner.core.store_ports import LedgerQueries, RecurringStore, TaskStore
    from backburner.services.gate import Gate

_MAX_AGENT_DEPTH = 3
_MAX_SUGGESTIONS = 3
_ASKS_ELSEWHERE = "a prompt; the host that runs its agent asks before it acts"
_NO_PERMISSION_REQUESTS = "its agent does not ask for permission before it acts"


class Decision(NamedTuple):
    """The decision of the gate: an approval, or None if a person must approve; with the reasons and the rule that applied."""

    approval: Approval | None
    reasons: tuple[str, ...]
    rule: str


class Submissions:
    """The only way to submit tasks."""

    def __init__(
        self,
        home: Home,
        task_store: "TaskStore",
        ledger_queries: "LedgerQueries",
        recurring_store: "RecurringStore",
        config: ConfigFile,
        queries: Queries,
        catalog: AgentCatalog,
        gate: "Gate",
        refusals: Refusals,
        identity: Identity,
        publisher: Publisher,
        clock: Clock,
        runner: str,
    ) -> None:
        self._home, self._task_store, self._ledger_queries, self._recurring_store = home, task_store, ledger_queries, recurring_store
        self._config, self._clock, self._runner = config, clock, runner
        self._queries, self._catalog, self._gate, self._refusals = queries, catalog, gate, refusals
        self._identity, self._publisher = identity, publisher
        self._has_socket_dir = False  # it is checked before the first task is stored

    def submit(
        self,
        submission: Submission,
        caller: Caller,
        *,
        approved_via: str | None = None,
        seen: str | None = None,
        owner: ProcessId | None = None,
    ) -> Entry:
        """Store a task: ready to run if the gate allows it or a person approved it, otherwise as a proposal.

        `approved_via` is the interface through which a person approved the fingerprint `seen`. If the key is already used, the existing
        task is returned. For an `owner` that runs tasks itself and has free capacity, the task is claimed immediately, unless others
        are ahead in the queue. If the same session is already asked whether exactly this command may run without its sandbox, that
        question is returned.
        """
        if existing := self.find_by_key(submission):
            return existing
        submission = self._with_defaults(submission)
        self._refusals.require_not_refused(submission, by_agent=submission.session is not None or started_by_agent(caller.environ))
        if (channels := self._channels(submission)) != submission.spec.channels:
            submission = submission.with_spec(channels=channels)
        submission = self._limit_tools_to_parent(submission)
        elsewhere = self._gate.is_elsewhere(submission.spec.order.place)
        validate(submission, elsewhere=elsewhere)
        self._gate.require_runnable(submission.spec.order.place)
        if watcher := self.watcher_of(submission):
            return self.submit_watched(submission, self.submit(watcher, caller), lambda watched: self.submit(watched, caller))
        submission, parent = self._resolve_dependencies(submission, caller)
        if not self._has_socket_dir:
            self._home.create_socket_dir()
            self._has_socket_dir = True
        now = self._clock()
        if elsewhere:
            submission = self._for_another_host(submission, approved_via)
        if submission.spec.agent_name is not None:
            if not elsewhere:
                self._catalog.require_usable(submission, {**submission.environment, **submission.spec.env})
                need("agent", "Agents require")
            self._limit_depth(submission)
        decision = self._decide(submission, approved_via, seen, now)
        fingerprint = self._gate.fingerprint(submission) if decision.approval is None else None
        if fingerprint and (offer := self._open_offer(submission, fingerprint)):
            return offer
        lane = AGENT_LANE if elsewhere and submission.spec.agent else self._catalog.lane(submission)
        entry = self._task_store.submit(
            submission,
            project=project_of(submission.spec.cwd),
            wanted_id=ids.base_id(_word_for_id(submission)),
            approval=decision.approval,
            reasons=decision.reasons,
            rule=decision.rule,
            runner=lane or self._runner,
            folder=self._home.tasks,
            now=now,
            expires_at=now + int(self._config.current.number("approval.proposal_expiry_hours") * 3_600_000),
            parent=parent,
            owner=owner,
            kind=_kind(submission),
            lane=lane,
            max_active=self._config.current.whole("tasks.max_active"),
            question=self._question(submission, decision.reasons, fingerprint) if fingerprint else None,
            asked=fingerprint,
            has_folder=self._has_folder,
        )
        if entry.run is None or entry.run.owner is None:  # an owner starts it first and wakes the others then
            self._publisher.publish(entry)
        return entry

    def _has_folder(self, task_id: str) -> bool:
        return os.path.lexists(self._home.folder(os.path.join(self._home.tasks, task_id)))

    def check(self, submission: Submission) -> None:
        """Raise BadInput if a recurring task could not be stored as it is. Stores nothing."""
        submission = self._with_defaults(submission)
        validate(submission.with_spec(channels=self._channels(submission)))
        self._recurring_store.check_name(submission.spec.name, project_of(submission.spec.cwd))

    def submit_watched(self, submission: Submission, watcher: Entry, submit: Callable[[Submission], Entry]) -> Entry:
        """Submit the task of a stored watcher with `submit`; the watcher is removed again if that fails."""
        task_id = watcher.task.task_id
        try:
            return submit(submission.with_spec(order=submission.spec.order._replace(after=(task_id,))))
        except BaseException:
            self._task_store.request_cancel(task_id, self._clock())
            self._task_store.clear([task_id], self._clock())
            raise

    def find_by_key(self, submission: Submission) -> Entry | None:
        """Return the existing task with the same key; raises BadInput if it has a different command or prompt."""
        if submission.spec.order.key is None:
            return None
        entry = self._ledger_queries.by_key(project_of(submission.spec.cwd), submission.spec.order.key)
        if entry and _work_of(entry.task.spec) != _work_of(submission.spec):
            what = "command" if submission.spec.agent_name is None else "prompt"
            key, task_id = submission.spec.order.key, entry.task.task_id
            raise BadInput(f"The key '{key}' is already used by {task_id}, which has a different {what}.")
        return entry

    def copy_of(self, entry: Entry, environment: dict[str, str], caller: Caller) -> Submission:
        """Return a submission that runs a task again, as a new task that the gate judges again."""
        from backburner.services.gate import submission_of

        if entry.task.is_recurring:
            raise BadInput(f"Task {entry.task.task_id} is a recurring task. To run it now: backburner run-now {entry.task.task_id}")
        if caller.device is None:  # a paired page may restart any task: the copy is a new task, for which no approval counts
            self._identity.require_own(entry.task, "restart", caller)
        submission = submission_of(entry.task, environment)
        before, order = entry.task.spec.order, submission.spec.order
        submission = submission.with_spec(
            command=submission.spec.command._replace(umask=umask()), order=order._replace(place=before.place, rerun=before.rerun)
        )
        return submission._replace(restarted_from=entry.task.task_id, session=caller.session)

    def edit(self, before: Task, spec: TaskSpec, caller: Caller, *, approved_via: str | None = None, seen: str | None = None) -> Entry:
        """Change an open recurring task. Only a person may, because what runs was approved together with when it runs.

        A new command or prompt is judged as in `submit`. The task keeps its environment.
        """
        self._identity.require_person(caller)
        submission = self._with_defaults(self.edited(before, spec))
        submission = submission.with_spec(channels=self._channels(submission))
        validate(submission)
        spec, now = submission.spec, self._clock()
        after = before._replace(spec=spec, kind=_kind(submission))
        if _work_of(spec) != _work_of(before.spec):
            found = self._decide(submission, approved_via, seen, now)
            if found.approval is None:
                raise BadInput(f"Nothing was changed: it needs approval ({'; '.join(found.reasons)}). To approve it, use --yes.")
            approval = found.approval
            decision = before.decision._replace(reasons=found.reasons, rule=found.rule, by=approval.by, via=approval.via, at=approval.at)
            after = after._replace(decision=decision._replace(fingerprint=approval.fingerprint, sandbox=approval.sandbox))
        changed = _changes(before.spec, spec)
        if not changed:
            raise BadInput("Nothing to change: the task is already like this.")
        max_active = self._config.current.whole("tasks.max_active")
        entry = self._recurring_store.edit(before, after, changed, now, max_active)
        self._publisher.publish(entry)
        return entry

    def edited(self, before: Task, spec: TaskSpec) -> Submission:
        """Return a submission of what an open recurring task would become; raises BadInput if it cannot be edited."""
        if not before.is_recurring or before.state not in (TaskState.ACTIVE, TaskState.PAUSED):
            raise BadInput(f"Task {before.task_id} cannot be edited; only active and paused recurring tasks can.")
        environment = self._ledger_queries.environment(before.task_id)
        return Submission(spec, environment, session=before.session, message=before.message, opened=before.opened)

    def _open_offer(self, submission: Submission, fingerprint: str) -> Entry | None:
        """Return the open question whether exactly this command may run without the sandbox in which it failed; None if there is none."""
        command = submission.spec.command
        if not command.words or submission.proposed or submission.is_recurring:
            return None
        for task_id in self._ledger_queries.open_offers(command.words, command.shell, submission.spec.cwd):
            offer = self._queries.get_or_none(task_id)
            if offer is None or offer.status != TaskState.PROPOSED or offer.task.session != submission.session:
                continue
            if offer.task.spec == submission.spec and self._gate.fingerprint_of(offer) == fingerprint:
                return offer
        return None

    # -- the steps of `submit`, in order

    def _for_another_host(self, submission: Submission, approved_via: str | None) -> Submission:
        """Return what is stored of a submission that may run on another host: with the few variables that it takes along."""
        if approved_via:
            raise BadInput(
                "A command for another host cannot be approved in advance, because only that host knows what would run."
                " If it needs approval, it asks when it starts; answer with: backburner approve ID"
            )
        names = [name for name in self._config.current.listed("worker.pass_env") if name in submission.environment]
        return submission.with_spec(env={name: submission.environment[name] for name in names} | submission.spec.env)

    def _with_defaults(self, submission: Submission) -> Submission:
        recurrence = submission.spec.recurrence
        if recurrence is None:
            return submission
        timeout_ms = submission.spec.timeout_ms or self._config.current.whole("tasks.task_timeout_ms")
        return submission.with_spec(timeout_ms=timeout_ms, recurrence=recurrence._replace(notify=recurrence.notify or "on_change"))

    def _channels(self, submission: Submission) -> tuple[str, ...]:
        """Return the channels of a submission besides the inbox: those it names, or those of `[notify] to`."""
        config, wanted = self._config.current, submission.spec.channels
        if (
            not wanted
            and submission.session != DISCOVERY
            and (submission.session is None or submission.is_recurring or submission.proposed)
        ):
            usual = [name.strip() for name in config.text("notify.to").split(",")]
            wanted = tuple(name for name in usual if name in config.channels)
        for name in wanted:
            if name not in config.channels and name != "inbox":
                known = ", ".join(sorted(config.channels)) or "none; to add one, see [channels.NAME] in docs/channels.md"
                raise BadInput(f"Unknown channel '{name}'. Configured channels: {known}.")
            if name in submission.spec.channels and name != "inbox":
                need(config.channels[name]["type"], f"The channel {name} requires")
        return tuple(name for name in dict.fromkeys(wanted) if name != "inbox")

    def _limit_tools_to_parent(self, submission: Submission) -> Submission:
        """Limit a task that an agent submits to the tools of that agent, and limit the number of suggested tasks."""
        parent = self._task_or_none(agent_task(submission.session))
        if parent is None or parent.task.spec.agent_name is None:
            return submission
        if parent.task.session == DISCOVERY and len(self._ledger_queries.requested_by(str(submission.session))) >= _MAX_SUGGESTIONS:
            raise BadInput(f"Too many proposals: at most {_MAX_SUGGESTIONS} at a time.")
        if (agent := submission.spec.agent) is None:
            return submission
        agents = self._config.current.agents
        if not (limit := tools_of(parent.task, agents.get(parent.task.spec.agent_name, {}).get("tools", ""))):
            return submission
        allowed = {name.strip() for name in limit.split(",")}
        wanted = tools_of(submission, agents.get(agent.name, {}).get("tools", "")) or ",".join(TOOL_SETS)
        fewer = [name for name in map(str.strip, wanted.split(",")) if name in allowed or (name == "read" and "files" in allowed)]
        options = agent.options._replace(tools=",".join(fewer) or "read")
        return submission.with_spec(agent=agent._replace(options=options))

    def _task_or_none(self, task_id: str | None) -> Entry | None:
        return self._queries.get_or_none(task_id) if task_id is not None else None

    def watcher_of(self, submission: Submission) -> Submission | None:
        """Return the helper task that runs the watch command of a task with a command source; None if it needs none.

        The gate judges it on its own: an approval of the task does not cover its watch command.
        """
        source = submission.spec.source
        if source is None or source.kind is not SourceKind.COMMAND or submission.spec.order.after:
            return None
        if submission.proposed:
            raise BadInput(
                "A command source cannot be proposed. Propose an interval with a pre-check command; the agent runs when its output changes."
            )
        validate(self._with_defaults(submission))
        self._recurring_store.check_name(submission.spec.name, project_of(submission.spec.cwd))
        from backburner.core.command_words import words_of
        from backburner.core.schedule import every
        from backburner.core.time_input import duration_ms

        shell = source.shell == "true"
        every_ms = duration_ms(source.every or "1m")
        return submission.with_spec(
            command=CommandSpec((source.target,) if shell else words_of(source.target), shell, umask=submission.spec.command.umask),
            agent=None,
            budget=Budget(),
            order=submission.spec.order._replace(key=None),
            name=f"{submission.spec.name}:watch"[:80],
            description=f"Watches for {submission.spec.name}",
            recurrence=Recurrence(
                every(every_ms, self._clock()), notify="never", source=Source(SourceKind.POLL, compare=source.compare or "hash")
            ),
        )

    def _resolve_dependencies(self, submission: Submission, caller: Caller) -> tuple[Submission, trace_context.ParentSpan | None]:
        """Return the submission with the ids of its dependencies and without TRACEPARENT, and the parent span from TRACEPARENT."""
        parent = submission.spec.env.get(trace_context.VARIABLE, submission.environment.get(trace_context.VARIABLE))
        if parent is None and not submission.spec.order.after:
            return submission, None
        environment = submission.environment
        if trace_context.VARIABLE in environment:
            environment = {name: value for name, value in environment.items() if name != trace_context.VARIABLE}
        after = tuple(
            dict.fromkeys(self._resolve_dependency(reference, submission.spec.name, caller) for reference in submission.spec.order.after)
        )
        resolved = submission.with_spec(order=submission.spec.order._replace(after=after))._replace(environment=environment)
        return resolved, trace_context.parse(parent)

    def _resolve_dependency(self, reference: str, name: str | None, caller: Caller) -> str:
        try:
            entry = self._queries.find(reference, caller)
        except TaskNotFound:
            if reference == name:
                raise BadInput(f"'{reference}' cannot run after itself, and there is no other task of that name.") from None
            raise
        if entry.run and entry.run.runner == EXTERNAL:
            raise BadInput(f"Task {entry.task.task_id} is not run by Backburner, so no task can run after it.")
        return entry.task.task_id

    def _limit_depth(self, submission: Submission) -> None:
        """Raise BadInput if agents that submit agents are nested too deeply."""
        task_id = agent_task(submission.session)
        for _ in range(_MAX_AGENT_DEPTH):
            parent = self._task_or_none(task_id)
            if parent is None:
                return
            task_id = parent.task.parent_task
        raise BadInput(f"Agents can be nested at most {_MAX_AGENT_DEPTH} levels deep. Do this task yourself.")

    def _decide(self, submission: Submission, approved_via: str | None, seen: str | None, now: int) -> Decision:
        """Decide whether a task may run: allowed by the gate, approved by a person, or not yet. ApprovalDenied if a rule forbids it."""
        if submission.proposed:
            if submission.spec.command.words:
                self._judge(submission, None, now)  # a denied command cannot be proposed
            return Decision(None, (f"it was proposed by {'a person' if submission.session is None else 'an agent'}",), "proposal")
        elsewhere = self._gate.is_elsewhere(submission.spec.order.place)
        if not submission.spec.command.words:
            if elsewhere:
                return Decision(Approval("auto", "prompt", now), (_ASKS_ELSEWHERE,), "prompt")
            if self._catalog.asks_before_acting(submission):
                return Decision(Approval("auto", "prompt", now), ("a prompt; its agent asks for permission before it acts",), "prompt")
            return Decision(Approval("user", approved_via, now) if approved_via else None, (_NO_PERMISSION_REQUESTS,), "agent")
        decision = self._judge(submission, approved_via, now)
        if seen is not None and decision.approval and decision.approval.fingerprint not in (None, seen):
            raise ApprovalDenied(reason="the command changed while approval was requested; submit it again to review the current command")
        never_asks = not elsewhere and submission.spec.agent_name is not None and not self._catalog.asks_before_acting(submission)
        if never_asks and decision.approval and not approved_via:
            return Decision(None, (_NO_PERMISSION_REQUESTS,), "agent")
        return decision

    def _judge(self, submission: Submission, approved_via: str | None, now: int) -> Decision:
        from backburner.approval.policy import Decision as Verdicts

        gate, fingerprint = self._gate, ""
        if approved_via and submission.spec.command.words:
            verdict, fingerprint = gate.judge_for_approval(submission)
        else:
            verdict = gate.judge(submission)
        match verdict.decision:
            case Verdicts.DENY:
                raise ApprovalDenied(reason="; ".join(verdict.reasons))
            case Verdicts.SANDBOX if approved_via is None:
                # The sandbox is not known yet if another host runs it.
                approval = Approval("auto", "gate", now, sandbox=verdict.sandbox.to_json() if verdict.sandbox else None)
            case Verdicts.ALLOW if approved_via is None:
                approval = Approval("auto", "gate", now)
            case Verdicts.SANDBOX | Verdicts.ALLOW | Verdicts.ASK:
                if approved_via is None:
                    gate.require_program(submission)
                approval = Approval("user", approved_via, now, fingerprint) if approved_via else None
        return Decision(approval, verdict.reasons, verdict.rule)

    def _question(self, submission: Submission, reasons: Sequence[str], fingerprint: str) -> Callable[[str], str] | None:
        """Return a function that makes the approval request from the task id; None if the interface itself asks the person."""
        if not submission.spec.channels and not (submission.session and submission.is_recurring) and not submission.proposed:
            return None
        parts = [f"Proposed: {visible(submission.spec.name or '')}".rstrip(": "), visible(submission.spec.description)]
        if submission.is_recurring:
            parts.append(f"When: {explain_schedule(submission, self._clock())}")
        if submission.spec.command.words:
            parts.append(f"Command: {shortened(masked_line(submission.spec.command.words, submission.spec.command.shell), longest=4000)}")
        if submission.spec.prompt:
            parts.append(
                f"Prompt for an agent with the tools {tools_of(submission)}: {shortened(visible(submission.spec.prompt), longest=4000)}"
            )
        parts.append(f"Why it needs approval: {visible('; '.join(reasons))}")
        parts.append(f"Fingerprint: {short_fingerprint(fingerprint)}")
        text = "\n".join(part for part in parts if part)
        return lambda task_id: f"{text}\n{how_to_answer(task_id)}"


def _work_of(spec: TaskSpec) -> tuple[object, ...]:
    """Return what a task does: the parts of its specification that must be equal for the same key."""
    return spec.command.words, spec.command.shell, spec.agent_name, spec.prompt


def _changes(before: TaskSpec, after: TaskSpec) -> list[str]:
    """Return what is different between two specifications of a recurring task, as words."""
    names = ("schedule", "notify", "command", "prompt", "description", "timeout_ms", "channels")
    return [name.removesuffix("_ms") for name in names if getattr(before, name) != getattr(after, name)]


def _kind(submission: Submission) -> str:
    if not submission.is_recurring or submission.spec.schedule.at is not None:
        return "oneshot"
    return "event" if submission.spec.order.after or submission.spec.source_kind not in (None, SourceKind.POLL) else "scheduled"


def _word_for_id(submission: Submission) -> str:
    """Return the readable part of a task id, from the label, the agent or the command."""
    word = ids.slug(submission.spec.name or submission.spec.agent_name or "") if submission.spec.name or submission.spec.agent_name else ""
    return word or ids.stem(submission.spec.command.words, submission.spec.command.shell)
