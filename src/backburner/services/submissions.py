"""Stores a task: checks it, resolves what it depends on, asks the gate, and writes it as ready to run or as a proposal.

Every interface submits through here, so none can bypass the approval.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from backburner.coordination.config_file import ConfigFile
from backburner.coordination.publisher import Publisher
from backburner.core import ids, trace_context
from backburner.core.errors import ApprovalDenied, BadInput, TaskNotFound
from backburner.core.formatting import short_fingerprint
from backburner.core.masking import masked_line
from backburner.core.models import DISCOVERY, EXTERNAL, Approval, Caller, Clock, Entry, ProcessId, Submission
from backburner.core.optional_dependencies import need
from backburner.core.recurring import explain_schedule, tools_of
from backburner.core.sessions import agent_task
from backburner.core.task_spec import Budget, CommandSpec, Recurrence, Source, SourceKind
from backburner.core.terminal_text import shortened, visible
from backburner.services.agent_catalog import AgentCatalog
from backburner.services.identity import Identity, started_by_agent
from backburner.services.queries import Queries
from backburner.services.refusals import Refusals
from backburner.services.validation import TOOL_SETS, validate
from backburner.system.home import Home, project_of
from backburner.system.processes import umask

if TYPE_CHECKING:
    from backburner.core.store_ports import LedgerQueries, RecurringStore, TaskStore
    from backburner.services.gate import Gate

_MAX_AGENT_DEPTH = 3
_MAX_SUGGESTIONS = 3
_DOES_NOT_ASK = "its agent does not ask before it acts"


class Decision(NamedTuple):
    """What the gate decided: an approval, or None if a person has to be asked; with the reasons and the rule that applied."""

    approval: Approval | None
    reasons: tuple[str, ...]
    rule: str


class Submissions:
    """The one way in for tasks."""

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

        `approved_via` is the interface through which a person approved what they had `seen`. A key that was used before returns the
        existing task. An `owner` that runs tasks itself and has room finds the task claimed already, unless others come first.
        """
        if existing := self.find_by_key(submission):
            return existing
        submission = self._with_defaults(submission)
        self._refusals.require_not_refused(submission, by_agent=submission.session is not None or started_by_agent(caller.environ))
        submission = self._limit_tools_to_parent(submission.with_spec(channels=self._channels(submission)))
        validate(submission)
        if watcher := self._watcher(submission):
            self._recurring_store.check_name(submission.spec.name, project_of(submission.spec.cwd))
            task_id = self.submit(watcher, caller, approved_via=approved_via).task.task_id
            submission = submission.with_spec(order=submission.spec.order._replace(after=(task_id,)))
        submission, parent = self._resolve_dependencies(submission, caller)
        self._home.create_socket_dir()
        now = self._clock()
        if submission.spec.agent_name is not None:
            need("agent", "Agents need")
            self._catalog.require_usable(submission, {**submission.environment, **submission.spec.env})
            self._limit_depth(submission)
        decision = self._decide(submission, approved_via, seen, now)
        asked = self._gate.fingerprint(submission) if decision.approval is None else None
        lane = self._catalog.lane(submission)
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
            question=self._question(submission, decision.reasons, asked) if asked else None,
            asked=asked,
        )
        self._publisher.publish(entry)
        return entry

    def find_by_key(self, submission: Submission) -> Entry | None:
        """The task that was submitted under the same key before; BadInput if that was another command or prompt."""
        if submission.spec.order.key is None:
            return None
        entry = self._ledger_queries.by_key(project_of(submission.spec.cwd), submission.spec.order.key)
        asked = submission.spec.command.words, submission.spec.command.shell, submission.spec.agent_name, submission.spec.prompt
        if (
            entry
            and (entry.task.spec.command.words, entry.task.spec.command.shell, entry.task.spec.agent_name, entry.task.spec.prompt) != asked
        ):
            what = "command" if submission.spec.agent_name is None else "prompt"
            raise BadInput(f"The key '{submission.spec.order.key}' belongs to {entry.task.task_id}, which is another {what}.")
        return entry

    def copy_of(self, entry: Entry, environment: dict[str, str], caller: Caller) -> Submission:
        """What to submit in order to run a task once more, as a new task that the gate judges again."""
        from backburner.services.gate import submission_of

        self._identity.require_own(entry.task, "restart", caller)
        asked = submission_of(entry.task, environment)
        asked = asked.with_spec(command=asked.spec.command._replace(umask=umask()))
        return asked._replace(restarted_from=entry.task.task_id, session=caller.session)

    # -- the steps of submit, in their order

    def _with_defaults(self, submission: Submission) -> Submission:
        recurrence = submission.spec.recurrence
        if recurrence is None:
            return submission
        timeout_ms = submission.spec.timeout_ms or self._config.current.whole("tasks.task_timeout_ms")
        return submission.with_spec(timeout_ms=timeout_ms, recurrence=recurrence._replace(notify=recurrence.notify or "on_change"))

    def _channels(self, submission: Submission) -> tuple[str, ...]:
        """The channels it reports to besides the inbox: those it names, or those of `[notify] to`."""
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
                known = ", ".join(sorted(config.channels)) or "none yet: see [channels.NAME] in docs/channels.md"
                raise BadInput(f"There is no channel '{name}'; there are {known}.")
            if name in submission.spec.channels and name != "inbox":
                need(config.channels[name]["type"], f"The channel {name} needs")
        return tuple(name for name in dict.fromkeys(wanted) if name != "inbox")

    def _limit_tools_to_parent(self, submission: Submission) -> Submission:
        """Give what an agent submits no more tools than the agent has, and let the one that suggests work suggest only a few tasks."""
        parent = self._task_or_none(agent_task(submission.session))
        if parent is None or parent.task.spec.agent_name is None:
            return submission
        if parent.task.session == DISCOVERY and len(self._ledger_queries.requested_by(str(submission.session))) >= _MAX_SUGGESTIONS:
            raise BadInput(f"That is enough: at most {_MAX_SUGGESTIONS} proposals at a time.")
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

    def _watcher(self, submission: Submission) -> Submission | None:
        """The task that runs the watch command of a task which is triggered by a command's output."""
        source = submission.spec.source
        if source is None or source.kind is not SourceKind.COMMAND or submission.spec.order.after:
            return None
        if submission.proposed:
            raise BadInput(
                "Propose it with an interval, and the command in front of the prompt: then its agent is asked when the output changes."
            )
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
            channels=(),
        )

    def _resolve_dependencies(self, submission: Submission, caller: Caller) -> tuple[Submission, trace_context.ParentSpan | None]:
        """The submission with the ids of the tasks it comes after, and its place in a trace; the traceparent is not kept with it."""
        env = {**submission.environment, **submission.spec.env}
        kept = {name: value for name, value in submission.environment.items() if name != trace_context.VARIABLE}
        after = tuple(
            dict.fromkeys(self._resolve_dependency(reference, submission.spec.name, caller) for reference in submission.spec.order.after)
        )
        placed = submission.with_spec(order=submission.spec.order._replace(after=after))._replace(environment=kept)
        return placed, trace_context.parse(env.get(trace_context.VARIABLE))

    def _resolve_dependency(self, reference: str, name: str | None, caller: Caller) -> str:
        try:
            entry = self._queries.find(reference, caller)
        except TaskNotFound:
            if reference == name:
                raise BadInput(f"'{reference}' cannot come after itself, and there is no other task of that name.") from None
            raise
        if entry.run and entry.run.runner == EXTERNAL:
            raise BadInput(f"Task {entry.task.task_id} is not run by Backburner; nothing can wait for it.")
        return entry.task.task_id

    def _limit_depth(self, submission: Submission) -> None:
        """Agents may ask agents, but not without end."""
        task_id = agent_task(submission.session)
        for _ in range(_MAX_AGENT_DEPTH):
            parent = self._task_or_none(task_id)
            if parent is None:
                return
            task_id = parent.task.parent_task
        raise BadInput(f"Agents may ask agents {_MAX_AGENT_DEPTH} deep, not deeper: do this one yourself.")

    def _decide(self, submission: Submission, approved_via: str | None, seen: str | None, now: int) -> Decision:
        """Whether it may run: by the gate, by a person's approval, or not yet. ApprovalDenied if a rule forbids it."""
        if submission.proposed:
            if submission.spec.command.words:
                self._judge(submission, None, now)  # what is denied is not proposed
            return Decision(None, ("an agent proposes it",), "proposal")
        if not submission.spec.command.words:
            if self._catalog.asks_before_acting(submission):
                return Decision(Approval("auto", "prompt", now), ("a prompt; what its agent does is asked for",), "prompt")
            return Decision(Approval("user", approved_via, now) if approved_via else None, (_DOES_NOT_ASK,), "agent")
        decision = self._judge(submission, approved_via, now)
        if seen is not None and decision.approval and decision.approval.fingerprint not in (None, seen):
            raise ApprovalDenied(reason="what would run has changed while it was asked about; ask for it again to see it as it is now")
        unasked = submission.spec.agent_name is not None and not self._catalog.asks_before_acting(submission)
        if unasked and decision.approval and not approved_via:
            return Decision(None, (_DOES_NOT_ASK,), "agent")
        return decision

    def _judge(self, submission: Submission, approved_via: str | None, now: int) -> Decision:
        from backburner.approval.policy import Decision as Verdicts

        gate = self._gate
        context = gate.context(submission)
        verdict = gate.judge(submission, context)
        match verdict.decision:
            case Verdicts.DENY:
                raise ApprovalDenied(reason="; ".join(verdict.reasons))
            case Verdicts.ALLOW if approved_via is None:
                approval = Approval("auto", "gate", now)
            case Verdicts.ALLOW | Verdicts.ASK:
                approval = Approval("user", approved_via, now, gate.fingerprint(submission, context)) if approved_via else None
        return Decision(approval, verdict.reasons, verdict.rule)

    def _question(self, submission: Submission, reasons: Sequence[str], asked: str) -> Callable[[str], str] | None:
        """The text that asks a person about a proposal, given the id of its task; None if they are at the interface themselves."""
        if not submission.spec.channels and not (submission.session and submission.is_recurring) and not submission.proposed:
            return None
        parts = [f"Proposed: {visible(submission.spec.name or '')}".rstrip(": "), visible(submission.spec.description)]
        if submission.is_recurring:
            parts.append(f"When: {explain_schedule(submission, self._clock())}")
        if submission.spec.command.words:
            parts.append(
                f"It would run: {shortened(masked_line(submission.spec.command.words, submission.spec.command.shell), longest=4000)}"
            )
        if submission.spec.prompt:
            parts.append(
                f"It would ask an agent, with the tools {tools_of(submission)}: {shortened(visible(submission.spec.prompt), longest=4000)}"
            )
        parts.append(f"It asks because: {visible('; '.join(reasons))}")
        parts.append(f"Fingerprint: {short_fingerprint(asked)}")
        text = "\n".join(part for part in parts if part)
        return lambda task_id: f"{text}\nYes: backburner approve {task_id}; no: backburner reject {task_id}"


def _kind(submission: Submission) -> str:
    if not submission.is_recurring or submission.spec.schedule.at is not None:
        return "oneshot"
    return "event" if submission.spec.order.after or submission.spec.source_kind not in (None, SourceKind.POLL) else "scheduled"


def _word_for_id(submission: Submission) -> str:
    """The readable part of the task's id: from its label, its agent or its command."""
    word = ids.slug(submission.spec.name or submission.spec.agent_name or "") if submission.spec.name or submission.spec.agent_name else ""
    return word or ids.stem(submission.spec.command.words, submission.spec.command.shell)
