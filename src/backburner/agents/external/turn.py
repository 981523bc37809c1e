"""Agents from outside, which bring a model and tools of their own: what is the same for all of them.

A turn with one goes on in a task of its own. Where it asks for permission and the gate leaves that to a person, the run waits and gives
its seat back, while the agent is held: the word goes to the very step that was asked for. One that is not held any more, because its host
ended, is told the word in the same session; what was granted is not asked for twice.
"""

import asyncio
import contextlib
import hashlib
import json
import logging
import os
import time
from collections.abc import Iterable
from typing import Any, NamedTuple, Protocol

from backburner.agents import budgets as spending
from backburner.agents import prompts as briefing
from backburner.agents.permissions import PermissionRequest, cut, judge
from backburner.approval.policy import Decision
from backburner.core.errors import BackburnerError, LedgerUnavailable
from backburner.core.notice_text import fitting, notification
from backburner.core.notices import Notice
from backburner.core.ports import AgentTurn, Outcome, Suspended
from backburner.core.sessions import session_of
from backburner.core.states import Result, WaitKind
from backburner.core.terminal_text import clean, shortened, visible
from backburner.services.async_app import AsyncApp
from backburner.system.home import read_plain, write_atomically
from backburner.system.run_files import ACTIVITY

log = logging.getLogger("backburner")
_ACTIVITY_SECONDS, _LAST_SECONDS = 0.3, 0.05
_PARKING_SECONDS = 10
_LONGEST_WORDS = 20_000
_LARGEST_RECORD = 8 << 20
EXPIRED = "Session expired or was deleted. Start a new background_task to continue."
REFUSED = "A person said no. Do not try the same in another way."
_YES = "A person said yes to this, which you had asked for: {asked}\nGo on."
_NO = "A person said no to this, which you had asked for: {asked}\nGo on without it, and do not try the same in another way."
GO_ON = "You were interrupted in the middle of your work. See what was done of it, and go on."


class Failed(Exception):
    """The agent could not answer; the message says why. `problem` is the kind of failure, where it is known."""

    def __init__(self, reason: str, problem: str | None = None) -> None:
        super().__init__(shortened(clean(reason), longest=2000))
        self.problem = problem


class _Request(NamedTuple):
    """A step that a person is asked about, and their word."""

    asked: PermissionRequest
    why: str
    word: "asyncio.Future[bool]"


class ExternalTurn:
    """One turn with an agent, as its driver sees it: what to say, where to ask, and whom to tell how it goes."""

    def __init__(self, home: AsyncApp, turn: AgentTurn, limits: dict[str, float]) -> None:
        self.home, self.turn = home, turn
        self.record = _read(turn.conversation)
        self.leaving = False  # it is we who end, not the turn
        self.tools: list[str] = []
        self.tokens, self.cost = 0.0, 0.0
        self.earlier = {} if turn.is_new_message else _read(os.path.join(turn.folder, ACTIVITY))  # of this run, before it had to wait
        self._limits, self._started = limits, time.monotonic()
        self._requests: list[_Request] = []
        self._news = asyncio.Event()
        self._writing: asyncio.TimerHandle | None = None
        self._shown = 0  # of the tools
        self._told: list[Notice] = []
        self._driver: asyncio.Task[Outcome] | None = None
        self._parked: _Request | None = None  # what its run waits for
        self._parked_at = 0.0
        self._unparking: set[asyncio.Task[None]] = set()

    # -- for its driver

    @property
    def session(self) -> str:
        """What the agent calls the conversation; empty before there is one."""
        return str(self.record.get("session") or "")

    @property
    def environment(self) -> dict[str, str]:
        """What the agent is to work in."""
        return {**self.turn.work.environment, **self.turn.work.task.spec.env}

    def save_state(self, **about: Any) -> None:
        """Remember something of the conversation, on disk before this returns."""
        self.record = {**self.record, "agent": self.turn.settings["name"], **about}
        os.makedirs(os.path.dirname(self.turn.conversation), 0o700, exist_ok=True)
        write_atomically(self.turn.conversation, json.dumps(self.record, ensure_ascii=False, indent=1))

    async def next_prompt(self) -> str:
        """What to say to the agent now, with what has ended since for which it had asked."""
        task, run = self.turn.work.task, self.turn.work.run
        if self.record.get("heard") != run.run_id:
            text = self.turn.message
            if not self.record.get("heard"):
                own = self.turn.settings.get("instructions", "")
                text = "\n\n".join(part for part in (own, briefing.result_instructions(task) if task.is_recurring else "", text) if part)
        elif run.wait_kind is WaitKind.TOOL:
            text = (_YES if run.reply == "yes" else _NO).format(asked=self.record.get("asked", ""))
        else:
            text = GO_ON
        self._told = await self.new_notices()
        return f"{notification(self._told)}\n\n{text}" if self._told else text

    async def new_notices(self) -> list[Notice]:
        """What it is owed, ours to tell now."""
        session = session_of(self.turn.work.task)
        owed = [one for one in await self.home.call(lambda app: app.inbox.pending(session)) if one.task_id != self.turn.work.task.task_id]
        return list(await self.home.call(lambda app: app.inbox.lease(fitting(owed)))) if owed else []

    @property
    def delivering_notices(self) -> list[int]:
        """The notices in the words that were last to be said."""
        return [notice.notice_id for notice in self._told]

    async def prompt_received(self, notice_ids: list[int] | None = None) -> None:
        """The agent has what was said to it, and the notices in it."""
        self.save_state(heard=self.turn.work.run.run_id, said=self.turn.message)
        await self.notices_delivered(self.delivering_notices if notice_ids is None else notice_ids)
        self._told = []

    async def notices_delivered(self, notice_ids: list[int]) -> None:
        """The agent need not be told these any more."""
        if notice_ids:
            with contextlib.suppress(LedgerUnavailable):  # then it is told once more
                await self.home.call(lambda app: app.inbox.acknowledge(notice_ids=notice_ids))

    async def request_permission(self, asked: PermissionRequest) -> tuple[bool, str]:
        """Whether the agent may do what it asks for, and why not: by the gate, or by a person's word, however long that takes."""
        here = self.turn.work.task.spec.cwd
        elsewhere = asked.cwd and os.path.realpath(os.path.join(here, asked.cwd)) != os.path.realpath(here)
        asked = asked._replace(words=visible(cut(f"{asked.words} in {asked.cwd}" if elsewhere else asked.words, _LONGEST_WORDS)))
        words = dict(self.record.get("words") or {})
        if (word := words.pop(_digest(asked), None)) is not None:
            self.save_state(words=words)
            return word, REFUSED
        decision, why = await self.home.call(lambda app: judge(app, self.turn.work, asked))
        if decision != Decision.ASK:
            return decision == Decision.ALLOW, why
        request = _Request(asked, why, asyncio.get_running_loop().create_future())
        self._requests.append(request)
        self._news.set()
        try:
            return await request.word, REFUSED
        finally:
            self._requests.remove(request)
            if request is self._parked:  # it was withdrawn: who has a word takes that away first
                self._resume_suspended()

    def _resume_suspended(self) -> None:
        """The run need not wait any more: its agent withdrew what it asked for, or has ended."""
        if self._parked is None:
            return
        self._parked = None
        task = asyncio.get_running_loop().create_task(self._unparked())
        self._unparking.add(task)
        task.add_done_callback(self._unparking.discard)

    async def _unparked(self) -> None:
        run_id = self.turn.work.run.run_id
        for _ in range(_PARKING_SECONDS * 10):  # it may be about to be written down as waiting
            if self.leaving or await self.home.call(lambda app: app.agent_runs.resume_suspended(run_id)):
                return
            await asyncio.sleep(0.1)

    def progress_changed(self) -> None:
        """Something happened: have it seen by who asks how it goes, and see whether it may go on."""
        if spending.exceeded(self._limits, self.used):
            self._news.set()
        if len(self.tools) != self._shown:  # a new call is seen at once: who learns of the end finds it there
            self._write()
        elif self._writing is None:
            self._writing = asyncio.get_running_loop().call_later(_ACTIVITY_SECONDS, self._write)

    @property
    def used(self) -> dict[str, float]:
        """What the run has used so far."""
        calls, tokens, cost = (float(self.earlier.get(name) or 0) for name in ("tool_calls", "tokens", "cost"))
        used = {"tokens": tokens + self.tokens, "tool_calls": calls + len(self.tools)}
        return {**used, **({"cost": cost + self.cost} if cost + self.cost else {})}

    def _write(self) -> None:
        if self._writing is not None:
            self._writing.cancel()
        self._writing, self._shown = None, len(self.tools)
        recent = [*(self.earlier.get("recent") or []), *self.tools][-5:]
        about = {**self.used, "tools": int(self.used["tool_calls"]), "recent": recent, "at": int(time.time() * 1000)}
        with contextlib.suppress(OSError):
            write_atomically(os.path.join(self.turn.folder, ACTIVITY), json.dumps(about))

    # -- for who has it held

    def begin(self, driver: "Driver") -> None:
        """Start. A person's word to a step counts once for just that, in the run that it was given in."""
        run = self.turn.work.run
        if self.turn.is_new_message and self.record.get("words"):
            self.save_state(words={})
        elif not self.turn.is_new_message and run.wait_kind is WaitKind.TOOL and run.reply and (known := self.record.get("digest")):
            self.save_state(words={**(self.record.get("words") or {}), known: run.reply == "yes"})
        self._driver = asyncio.get_running_loop().create_task(self._drive(driver))

    async def _drive(self, driver: "Driver") -> Outcome:
        try:
            outcome = await driver.drive(self)
        except Failed as error:
            outcome = Outcome(Result.EXIT, 1, str(error), problem=error.problem)
        except (OSError, BackburnerError) as error:
            outcome = Outcome(Result.EXIT, 1, f"{error}")
        except Exception as error:  # whatever an agent made of its protocol: it ends, and says so
            log.exception("%s failed", self.turn.work.run.run_id)
            outcome = Outcome(Result.EXIT, 1, shortened(clean(f"{type(error).__name__}: {error}"), longest=2000))
        if outcome.exit_code == 0 and self.turn.work.task.is_recurring:
            outcome = briefing.parse_result(self.turn.work.task, outcome)
        self._resume_suspended()
        return outcome._replace(usage=self.used)

    @property
    def waits_since(self) -> float:
        """When it began to wait for a person; 0 while it does not."""
        return self._parked_at if self._parked else 0.0

    def go_on(self, turn: AgentTurn) -> None:
        """Its run waits no more: a person has answered what it had asked for, or it asks no more."""
        turn.running_tools[:] = self.turn.running_tools
        self._started += time.monotonic() - self._parked_at
        self.turn, parked, self._parked = turn, self._parked, None
        if parked is not None and turn.work.run.reply and not parked.word.done():
            parked.word.set_result(turn.work.run.reply == "yes")

    async def result(self) -> Outcome:
        """The end of the turn; Parked where it cannot go on."""
        assert self._driver is not None
        while True:
            self._news.clear()
            if self._driver.done():
                return self._driver.result()
            if reason := spending.exceeded(self._limits, {**self.used, "seconds": time.monotonic() - self._started}):
                await self.stop()
                raise Suspended(reason, WaitKind.BUDGET)
            if (first := next((one for one in self._requests if not one.word.done()), None)) is not None:
                self.save_state(asked=first.asked.words, digest=_digest(first.asked))
                self._parked, self._parked_at = first, time.monotonic()
                raise Suspended(f"it wants to {first.asked.words} ({first.why})", WaitKind.TOOL)
            seconds = self._limits["seconds"] - (time.monotonic() - self._started) if "seconds" in self._limits else None
            news = asyncio.ensure_future(self._news.wait())
            try:
                await asyncio.wait({self._driver, news}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            finally:
                news.cancel()

    def close(self) -> None:
        """It has ended. What it used is written down after that is known: the ledger has it."""
        if self._writing is not None:
            self._writing.cancel()
        self._writing = asyncio.get_running_loop().call_later(_LAST_SECONDS, self._write)

    async def stop(self) -> None:
        """End the turn, as far as it has not ended."""
        self._parked = None
        if self._driver is not None and not self._driver.done():
            self._driver.cancel()
            await asyncio.wait({self._driver})
        self._write()


class Driver(Protocol):
    """The way to speak with one kind of agents."""

    async def drive(self, talk: ExternalTurn) -> Outcome:
        """See one turn to its end; Failed where there is no answer. Cancelled, it ends the turn, unless the talk is `leaving`."""
        ...

    async def check(self, settings: dict[str, str], environ: dict[str, str]) -> str | None: ...


class ExternalAgent:
    """Somebody with tools of their own, asked through a driver. Where each is a program, few are kept while their runs wait for a person."""

    def __init__(self, home: AsyncApp, driver: Driver, most_held: int | None = None) -> None:
        self._home, self._driver, self._most_held = home, driver, most_held
        self._talks: dict[str, ExternalTurn] = {}
        self._sparing: dict[str, asyncio.Task[None]] = {}

    @property
    def has_open_session(self) -> set[str]:
        """The runs whose agents are here, at work or waiting for a word."""
        return set(self._talks)

    async def answer(self, turn: AgentTurn) -> Outcome:
        """One run of a task, or the rest of one that had to wait."""
        run_id = turn.work.run.run_id
        if sparing := self._sparing.get(run_id):
            await asyncio.wait({sparing})
        if (talk := self._talks.get(run_id)) is not None:
            talk.go_on(turn)
        else:
            limits = await self._home.call(lambda app: spending.budget(app, turn.work))
            talk = self._talks[run_id] = ExternalTurn(self._home, turn, limits)
            talk.begin(self._driver)
        try:
            outcome = await talk.result()
        except Suspended as parked:
            if parked.kind is not WaitKind.TOOL:
                del self._talks[run_id]
            self._spare()
            raise
        except asyncio.CancelledError:
            await self._end(run_id)
            raise
        self._talks.pop(run_id, None)
        talk.close()
        return outcome

    async def check(self, settings: dict[str, str], environ: dict[str, str]) -> str | None:
        return await self._driver.check(settings, environ)

    def _spare(self) -> None:
        """Where too many wait for a person, the one that has waited longest is not kept: it is told the word in its session."""
        waiting = [run_id for run_id, talk in self._talks.items() if talk.waits_since]
        if self._most_held is None or len(waiting) <= self._most_held:
            return
        run_id = min(waiting, key=lambda one: self._talks[one].waits_since)
        talk = self._talks.pop(run_id)
        talk.leaving = True
        self._sparing[run_id] = asyncio.get_running_loop().create_task(talk.stop())
        self._sparing[run_id].add_done_callback(lambda _: self._sparing.pop(run_id))

    async def _end(self, run_id: str) -> None:
        if talk := self._talks.pop(run_id, None):
            await talk.stop()

    async def release(self, run_ids: Iterable[str]) -> None:
        """The runs of these agents are over."""
        for run_id in run_ids:
            await self._end(run_id)

    async def close(self) -> None:
        """We leave; what can go on without us does."""
        for talk in self._talks.values():
            talk.leaving = True
        for run_id in list(self._talks):
            await self._end(run_id)
        if self._sparing:
            await asyncio.wait(self._sparing.values())


def _digest(asked: PermissionRequest) -> str:
    return hashlib.sha256((asked.whole or asked.words).encode("utf-8", "surrogateescape")).hexdigest()


def _read(path: str) -> dict[str, Any]:
    with contextlib.suppress(OSError, ValueError):
        if isinstance(found := json.loads(read_plain(path, _LARGEST_RECORD)), dict):
            return found
    return {}
