"""What the house says and hears by itself, at the Runtime: proposals, letters and answers, what sources saw, and who is here."""

import contextlib
import hashlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from backburner.core.errors import ApprovalDenied, BadInput, LedgerUnavailable
from backburner.core.formatting import short
from backburner.core.masking import masked_line
from backburner.core.models import DISCOVERY, Notice, Submission, Task
from backburner.core.optional_dependencies import need
from backburner.core.recurring import tools_of
from backburner.core.terminal_text import shortened, visible
from backburner.services.recurring import Timetable, over_all
from backburner.services.validation import TOOL_SETS
from backburner.system import wakeups as wake
from backburner.system.home import project_of

if TYPE_CHECKING:
    from backburner.core.ports import Happening  # protocols are slow to build

_COOLDOWN_MS = 24 * 3_600_000
_YEAR_MS = 365 * 86_400_000
_MOST_PROPOSALS = 3
_MINUTE_MS = 60_000


def digest_of(command: Sequence[str], prompt: str) -> str:
    """What something does, whatever it is called."""
    words = " ".join(" ".join(command).split())  # with a shell or without
    return hashlib.sha256(f"{words}\0{' '.join(prompt.split()).casefold()}".encode("utf-8", "surrogateescape")).hexdigest()


class Outward(Timetable):
    """The verbs for whatever leaves the house or comes in."""

    def _not_refused(self, submission: Submission) -> None:
        """An agent does not bring back what a person deleted, nor propose again within a day what they rejected."""
        from backburner.services.gate import started_by_agent

        by_agent = submission.session is not None or started_by_agent(self.environ)
        if not by_agent or not (submission.standing or submission.proposed):
            return
        now, digest = self.clock(), digest_of(submission.command, submission.prompt)
        project, name = project_of(submission.cwd), submission.name or ""
        if self.store.buried(project, name, digest, now - _YEAR_MS, "deleted") is not None:
            raise ApprovalDenied(reason=f"the user cancelled '{name}'; only they can add it again")
        if self.store.buried(project, name, digest, now - _COOLDOWN_MS, "rejected") is not None:
            raise ApprovalDenied(reason=f"the user rejected '{name}' less than 24 hours ago; do not propose it again now")

    def _bury(self, task: Task, why: str) -> None:
        """A person did not want a standing task."""
        if task.standing or task.rule == "proposal":
            self.store.bury(task, digest_of(task.command, task.prompt), why, self.clock())

    def _channels(self, submission: Submission) -> tuple[str, ...]:
        """Where it reports besides the inbox: as was said, or as is usual for this person."""
        wanted = submission.channels
        if not wanted and submission.session != DISCOVERY and (submission.session is None or submission.standing or submission.proposed):
            usual = [name.strip() for name in self.config.text("notify.to").split(",")]
            wanted = tuple(name for name in usual if name in self.config.channels)
        for name in wanted:
            if name not in self.config.channels and name != "inbox":
                known = ", ".join(sorted(self.config.channels)) or "none yet: see [channels.NAME] in docs/channels.md"
                raise BadInput(f"There is no channel '{name}'; there are {known}.")
            if name in submission.channels and name != "inbox":
                need(self.config.channels[name]["type"], f"The channel {name} needs")
        return tuple(name for name in dict.fromkeys(wanted) if name != "inbox")

    def _within_makers(self, submission: Submission) -> Submission:
        """What an agent makes has no more tools than the agent itself, and one that looks for work proposes only a few things."""
        maker = self.store.show((submission.session or "").partition(":")[2]) if submission.session else None
        if maker is None or maker.task.agent is None:
            return submission
        if maker.task.session == DISCOVERY and len(self.store.asked_by(str(submission.session))) >= _MOST_PROPOSALS:
            raise BadInput(f"That is enough: at most {_MOST_PROPOSALS} proposals at a time.")
        if submission.agent is None:
            return submission
        own = self.config.agents.get(maker.task.agent, {}).get("tools", "")
        if not (limit := tools_of(maker.task, own)):
            return submission
        mine = {name.strip() for name in limit.split(",")}
        wanted = tools_of(submission, self.config.agents.get(submission.agent, {}).get("tools", "")) or ",".join(TOOL_SETS)
        fewer = [name for name in map(str.strip, wanted.split(",")) if name in mine or (name == "read" and "files" in mine)]
        return submission._replace(terms={**submission.terms, "tools": ",".join(fewer) or "read"})

    def _watcher(self, submission: Submission) -> Submission | None:
        """A task that is set off by a command's output has another one that runs the command and looks."""
        if submission.source.get("kind") != "command" or submission.after:
            return None
        if submission.proposed:
            raise BadInput(
                "Propose it with an interval, and the command in front of the prompt: then its agent is asked when the output changes."
            )
        from backburner.core.command_words import words_of
        from backburner.core.schedule import every
        from backburner.core.time_input import duration_ms

        line, shell = submission.source["command"], submission.source.get("shell") == "true"
        return submission._replace(
            command=(line,) if shell else words_of(line),
            shell=shell,
            agent=None,
            prompt="",
            terms={},
            budget={},
            key=None,
            name=f"{submission.name}:watch"[:80],
            description=f"Watches for {submission.name}",
            schedule=every(duration_ms(submission.source.get("every", "1m")), self.clock()).fields(),
            notify="never",
            channels=(),
            source={"kind": "poll", "compare": submission.source.get("compare", "hash")},
        )

    def _question(self, submission: Submission, reasons: Sequence[str], asked: str) -> Callable[[str], str] | None:
        """What the person is asked about a proposal of an agent, given the id of its task; None where they sit at the interface themselves."""
        if not submission.channels and not (submission.session and submission.standing) and not submission.proposed:
            return None
        parts = [f"Proposed: {visible(submission.name or '')}".rstrip(": "), visible(submission.description)]
        if submission.standing:
            parts.append(f"When: {self.explain(submission)}")
        if submission.command:
            parts.append(f"It would run: {shortened(masked_line(submission.command, submission.shell), longest=4000)}")
        if submission.prompt:
            parts.append(
                f"It would ask an agent, with the tools {tools_of(submission)}: {shortened(visible(submission.prompt), longest=4000)}"
            )
        parts.append(f"It asks because: {visible('; '.join(reasons))}")
        parts.append(f"Fingerprint: {short(asked)}")
        text = "\n".join(part for part in parts if part)
        return lambda task_id: f"{text}\nYes: backburner approve {task_id}; no: backburner reject {task_id}"

    # -- letters and answers

    def outgoing(self, channel: str | None = None) -> Sequence[Notice]:
        return self.store.outgoing(channel)

    def delivered(self, notice_ids: Sequence[int], external: str | None) -> None:
        """They have arrived."""
        self.store.delivered(notice_ids, external, self.clock())
        wake.ring_all(self.home.bells)

    def undelivered(self, notice_ids: Sequence[int], error: str, again_at: int | None) -> None:
        """They have not."""
        self.store.undelivered(notice_ids, error, again_at, self.clock())

    def dead_letters(self) -> Sequence[Notice]:
        """What could not be delivered."""
        return self.store.dead_letters()

    def revive(self, notice_ids: Sequence[int]) -> None:
        """Try dead letters again."""
        self.store.revive(notice_ids)
        self.ring_engine()

    def questions(self, channel: str) -> Sequence[str]:
        """The messages of a channel that nobody has answered."""
        return self.store.questions(channel)

    # -- sources, and who is here

    def watched(self) -> Sequence[Task]:
        """The tasks whose sources are watched."""
        return self.store.watched()

    def hook(self, name: str) -> Task | None:
        """The task that a webhook of this name is for."""
        return self.store.hook(name)

    def watch_state(self, task_id: str) -> dict[str, object]:
        return self.store.watch_state(task_id)

    def happened(self, task_id: str, state: dict[str, object] | None, happening: "Happening | None", delivery: str = "") -> bool:
        """What a source saw, and what it remembers; False for a delivery that was received before."""
        payload = {**happening.payload, "summary": happening.summary} if happening else None
        held = happening is not None and (
            not self.config.flag("tasks.enabled")
            or over_all(self.store, self.config, self.known_as(task_id).task, self.clock()) is not None
        )
        fresh = self.store.happened(task_id, state, payload, self.clock(), self.home.tasks, delivery, hold=held)
        if payload and fresh:
            self._publish(self.known_as(task_id))
        return fresh

    def source_broken(self, task_id: str, reason: str | None) -> None:
        self.store.source_broken(task_id, reason, self.clock())

    def broken_source(self, task: Task) -> str | None:
        """Why the source of a task cannot be watched; None where it can."""
        return self.store.broken_sources().get(task.task_id) if task.source else None

    def present(self, door: str) -> None:
        """A person did something at a door; that is written down once a minute."""
        with contextlib.suppress(LedgerUnavailable):  # nobody waits for it
            if abs(self.clock() - (self.store.last_present() or 0)) > _MINUTE_MS:
                self.store.present(door, self.clock())

    def last_present(self) -> int | None:
        return self.store.last_present()
