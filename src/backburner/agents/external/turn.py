"""External agents, which have their own model and tools: the code that is common to all of them.

A turn with an external agent runs in its own asyncio task. If the agent requests permission and a person must decide, the run is
suspended and frees its capacity, but the agent stays alive so that the decision reaches the exact step that asked. If the agent process
ended meanwhile, the decision is sent to the agent in the same session; an approved step needs no second approval.
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

from backburner.agents import budgets, prompts
from backburner.agents.permissions import PermissionRequest, check_permission, truncate
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
_ACTIVITY_INTERVAL_SECONDS, _FINAL_WRITE_DELAY_SECONDS = 0.3, 0.05
_SUSPEND_TIMEOUT_SECONDS = 10
_MAX_DESCRIPTION_CHARACTERS = 20_000
_MAX_RECORD_BYTES = 8 << 20
EXPIRED = "Session expired or was deleted. Start a new background_task to continue."
REFUSED = "The user rejected this. Do not try the same thing in another way."
_APPROVED_PROMPT = "The user approved your request: {asked}\nContinue."
_REJECTED_PROMPT = "The user rejected your request: {asked}\nContinue without it, and do not try the same thing in another way."
CONTINUE_PROMPT = "You were interrupted in the middle of your work. Check what is already done, and continue."


class AgentFailed(Exception):
    """The agent could not answer; the message says why. `problem` is the kind of failure, if it is known."""

    def __init__(self, reason: str, problem: str | None = None) -> None:
        super().__init__(shortened(clean(reason), longest=2000))
        self.problem = problem


class _PendingRequest(NamedTuple):
    """A permission request that a person must decide, and the decision."""

    request: PermissionRequest
    reason: str
    decision: "asyncio.Future[bool]"


class ExternalTurn:
    """One turn with an external agent, as its driver uses it: the prompt, permission requests, progress, and saved state."""

    def __init__(self, home: AsyncApp, turn: AgentTurn, limits: dict[str, float]) -> None:
        self.home, self.turn = home, turn
        self.record = _read(turn.conversation)
        self.is_detaching = False  # our process exits or drops the agent, but the turn has not ended
        self.tools: list[str] = []
        self.tokens, self.cost = 0.0, 0.0
        # The usage of this run from before it was suspended.
        self.earlier = {} if turn.is_new_message else _read(os.path.join(turn.folder, ACTIVITY))
        self._limits, self._started = limits, time.monotonic()
        self._pending_requests: list[_PendingRequest] = []
        self._changed = asyncio.Event()
        self._write_timer: asyncio.TimerHandle | None = None
        self._written_tools = 0  # number of tool calls in the last written activity
        self._prompt_notices: list[Notice] = []
        self._driver: asyncio.Task[Outcome] | None = None
        self._suspended_on: _PendingRequest | None = None
        self._suspended_at = 0.0
        self._resume_tasks: set[asyncio.Task[None]] = set()

    # Methods for the driver

    @property
    def session(self) -> str:
        """The agent's id of the conversation; empty before it exists."""
        return str(self.record.get("session") or "")

    @property
    def environment(self) -> dict[str, str]:
        """The environment that the agent works in."""
        return {**self.turn.work.environment, **self.turn.work.task.spec.env}

    def save_state(self, **fields: Any) -> None:
        """Save fields in the record of the conversation. They are on disk when this returns."""
        self.record = {**self.record, "agent": self.turn.settings["name"], **fields}
        os.makedirs(os.path.dirname(self.turn.conversation), 0o700, exist_ok=True)
        write_atomically(self.turn.conversation, json.dumps(self.record, ensure_ascii=False, indent=1))

    async def next_prompt(self) -> str:
        """The next prompt for the agent, with the pending notices of tasks that it started."""
        task, run = self.turn.work.task, self.turn.work.run
        if self.record.get("heard") != run.run_id:
            text = self.turn.message
            if not self.record.get("heard"):
                instructions = self.turn.settings.get("instructions", "")
                text = "\n\n".join(
                    part for part in (instructions, prompts.result_instructions(task) if task.is_recurring else "", text) if part
                )
        elif run.wait_kind is WaitKind.TOOL:
            text = (_APPROVED_PROMPT if run.reply == "yes" else _REJECTED_PROMPT).format(asked=self.record.get("asked", ""))
            if why := await self.home.call(lambda app: app.agent_runs.rejection_reason(run)):
                text += f"\nTheir reason: {why}"
        else:
            text = CONTINUE_PROMPT
        self._prompt_notices = await self.new_notices()
        return f"{notification(self._prompt_notices)}\n\n{text}" if self._prompt_notices else text

    async def new_notices(self) -> list[Notice]:
        """Lease the pending notices of the agent's session."""
        session = session_of(self.turn.work.task)
        task_id = self.turn.work.task.task_id
        pending = [notice for notice in await self.home.call(lambda app: app.inbox.pending(session)) if notice.task_id != task_id]
        return list(await self.home.call(lambda app: app.inbox.lease(fitting(pending)))) if pending else []

    @property
    def delivering_notices(self) -> list[int]:
        """The ids of the notices in the last prompt."""
        return [notice.notice_id for notice in self._prompt_notices]

    async def prompt_received(self, notice_ids: list[int] | None = None) -> None:
        """Record that the agent has received the prompt and the notices in it."""
        self.save_state(heard=self.turn.work.run.run_id, said=self.turn.message)
        await self.notices_delivered(self.delivering_notices if notice_ids is None else notice_ids)
        self._prompt_notices = []

    async def notices_delivered(self, notice_ids: list[int]) -> None:
        """Acknowledge notices that the agent has received."""
        if notice_ids:
            with contextlib.suppress(LedgerUnavailable):  # the notices are then delivered again
                await self.home.call(lambda app: app.inbox.acknowledge(notice_ids=notice_ids))

    async def request_permission(self, request: PermissionRequest) -> tuple[bool, str]:
        """Decide on a permission request, by the gate or by a person, however long that takes. Returns the decision and its reason."""
        cwd = self.turn.work.task.spec.cwd
        other_cwd = request.cwd and os.path.realpath(os.path.join(cwd, request.cwd)) != os.path.realpath(cwd)
        request = request._replace(
            description=visible(
                truncate(f"{request.description} in {request.cwd}" if other_cwd else request.description, _MAX_DESCRIPTION_CHARACTERS)
            )
        )
        decisions = dict(self.record.get("words") or {})
        if (earlier_decision := decisions.pop(_digest(request), None)) is not None:
            self.save_state(words=decisions)
            return earlier_decision, REFUSED
        decision, reason = await self.home.call(lambda app: check_permission(app, self.turn.work, request))
        if decision != Decision.ASK:
            allowed, run = decision == Decision.ALLOW, self.turn.work.run
            await self.home.call(lambda app: app.agent_runs.record_step(run, request.description, allowed=allowed, reason=reason))
            return allowed, reason
        pending = _PendingRequest(request, reason, asyncio.get_running_loop().create_future())
        self._pending_requests.append(pending)
        self._changed.set()
        try:
            allowed = await pending.decision
            why = None if allowed else await self.home.call(lambda app: app.agent_runs.rejection_reason(self.turn.work.run))
            return allowed, f"{REFUSED} Their reason: {why}" if why else REFUSED
        finally:
            self._pending_requests.remove(pending)
            if pending is self._suspended_on:  # the agent withdrew the request; a decision would have cleared this first
                self._resume_suspended()

    def _resume_suspended(self) -> None:
        """Resume the suspended run: its agent has withdrawn the request or has ended."""
        if self._suspended_on is None:
            return
        self._suspended_on = None
        task = asyncio.get_running_loop().create_task(self._resume_run())
        self._resume_tasks.add(task)
        task.add_done_callback(self._resume_tasks.discard)

    async def _resume_run(self) -> None:
        run_id = self.turn.work.run.run_id
        for _ in range(_SUSPEND_TIMEOUT_SECONDS * 10):  # the run may not be recorded as waiting yet
            if self.is_detaching or await self.home.call(lambda app: app.agent_runs.resume_suspended(run_id)):
                return
            await asyncio.sleep(0.1)

    def progress_changed(self) -> None:
        """Write the progress to the activity file soon, and check the budget."""
        if budgets.exceeded(self._limits, self.used):
            self._changed.set()
        # A new tool call is written immediately, so that it is on disk before the end of the run is known.
        if len(self.tools) != self._written_tools:
            self._write()
        elif self._write_timer is None:
            self._write_timer = asyncio.get_running_loop().call_later(_ACTIVITY_INTERVAL_SECONDS, self._write)

    @property
    def used(self) -> dict[str, float]:
        """The tokens, tool calls and cost of the run so far."""
        calls, tokens, cost = (float(self.earlier.get(name) or 0) for name in ("tool_calls", "tokens", "cost"))
        used = {"tokens": tokens + self.tokens, "tool_calls": calls + len(self.tools)}
        return {**used, **({"cost": cost + self.cost} if cost + self.cost else {})}

    def _write(self) -> None:
        if self._write_timer is not None:
            self._write_timer.cancel()
        self._write_timer, self._written_tools = None, len(self.tools)
        recent = [*(self.earlier.get("recent") or []), *self.tools][-5:]
        activity = {**self.used, "tools": int(self.used["tool_calls"]), "recent": recent, "at": int(time.time() * 1000)}
        with contextlib.suppress(OSError):
            write_atomically(os.path.join(self.turn.folder, ACTIVITY), json.dumps(activity))

    # Methods for ExternalAgent

    def start(self, driver: "Driver") -> None:
        """Start the turn. A person's decision is valid once, for the same request, in the same run."""
        run = self.turn.work.run
        if self.turn.is_new_message and self.record.get("words"):
            self.save_state(words={})
        elif not self.turn.is_new_message and run.wait_kind is WaitKind.TOOL and run.reply and (digest := self.record.get("digest")):
            self.save_state(words={**(self.record.get("words") or {}), digest: run.reply == "yes"})
        self._driver = asyncio.get_running_loop().create_task(self._drive(driver))

    async def _drive(self, driver: "Driver") -> Outcome:
        try:
            outcome = await driver.drive(self)
        except AgentFailed as error:
            outcome = Outcome(Result.EXIT, 1, str(error), problem=error.problem)
        except (OSError, BackburnerError) as error:
            outcome = Outcome(Result.EXIT, 1, f"{error}")
        except Exception as error:  # an unexpected protocol error fails the run with its message
            log.exception("%s failed", self.turn.work.run.run_id)
            outcome = Outcome(Result.EXIT, 1, shortened(clean(f"{type(error).__name__}: {error}"), longest=2000))
        if outcome.exit_code == 0 and self.turn.work.task.is_recurring:
            outcome = prompts.parse_result(self.turn.work.task, outcome)
        self._resume_suspended()
        return outcome._replace(usage=self.used)

    @property
    def waiting_since(self) -> float:
        """When it started to wait for a person's decision (monotonic seconds), or 0 if it does not wait."""
        return self._suspended_at if self._suspended_on else 0.0

    def resume(self, turn: AgentTurn) -> None:
        """Continue after the run was suspended: a person has decided, or the request was withdrawn."""
        turn.running_tools[:] = self.turn.running_tools
        self._started += time.monotonic() - self._suspended_at
        self.turn, pending, self._suspended_on = turn, self._suspended_on, None
        if pending is not None and turn.work.run.reply and not pending.decision.done():
            pending.decision.set_result(turn.work.run.reply == "yes")

    async def result(self) -> Outcome:
        """Wait for the end of the turn and return its outcome. Suspended if it needs a decision or a larger budget."""
        assert self._driver is not None
        while True:
            self._changed.clear()
            if self._driver.done():
                return self._driver.result()
            if reason := budgets.exceeded(self._limits, {**self.used, "seconds": time.monotonic() - self._started}):
                await self.stop()
                raise Suspended(reason, WaitKind.BUDGET)
            if (first := next((pending for pending in self._pending_requests if not pending.decision.done()), None)) is not None:
                self.save_state(asked=first.request.description, digest=_digest(first.request))
                self._suspended_on, self._suspended_at = first, time.monotonic()
                raise Suspended(f"it wants to {first.request.description} ({first.reason})", WaitKind.TOOL)
            seconds = self._limits["seconds"] - (time.monotonic() - self._started) if "seconds" in self._limits else None
            changed = asyncio.ensure_future(self._changed.wait())
            try:
                await asyncio.wait({self._driver, changed}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            finally:
                changed.cancel()

    def close(self) -> None:
        """Finish an ended turn. The usage is written once more a moment later; the ledger already has it."""
        if self._write_timer is not None:
            self._write_timer.cancel()
        self._write_timer = asyncio.get_running_loop().call_later(_FINAL_WRITE_DELAY_SECONDS, self._write)

    async def stop(self) -> None:
        """Stop the turn if it has not ended."""
        self._suspended_on = None
        if self._driver is not None and not self._driver.done():
            self._driver.cancel()
            await asyncio.wait({self._driver})
        self._write()


class Driver(Protocol):
    """The protocol with one kind of external agent."""

    async def drive(self, external_turn: ExternalTurn) -> Outcome:
        """Run one turn to its end. AgentFailed if there is no answer. If cancelled, it stops the turn, unless `is_detaching` is set."""
        ...

    async def check(self, settings: dict[str, str], environ: dict[str, str]) -> str | None: ...


class ExternalAgent:
    """An external agent, used through a driver. At most `max_waiting` turns are kept alive while their runs wait for a person."""

    def __init__(self, home: AsyncApp, driver: Driver, max_waiting: int | None = None) -> None:
        self._home, self._driver, self._max_waiting = home, driver, max_waiting
        self._turns: dict[str, ExternalTurn] = {}
        self._stopping: dict[str, asyncio.Task[None]] = {}

    @property
    def open_runs(self) -> set[str]:
        """The ids of the runs whose turns are open: running or waiting for a decision."""
        return set(self._turns)

    async def answer(self, turn: AgentTurn) -> Outcome:
        """Run a task once, or continue a run that was suspended."""
        run_id = turn.work.run.run_id
        if stopping := self._stopping.get(run_id):
            await asyncio.wait({stopping})
        if (external_turn := self._turns.get(run_id)) is not None:
            external_turn.resume(turn)
        else:
            limits = await self._home.call(lambda app: budgets.budget(app, turn.work))
            external_turn = self._turns[run_id] = ExternalTurn(self._home, turn, limits)
            external_turn.start(self._driver)
        try:
            outcome = await external_turn.result()
        except Suspended as suspended:
            if suspended.kind is not WaitKind.TOOL:
                del self._turns[run_id]
            self._limit_waiting_turns()
            raise
        except asyncio.CancelledError:
            await self._end(run_id)
            raise
        self._turns.pop(run_id, None)
        external_turn.close()
        return outcome

    async def check(self, settings: dict[str, str], environ: dict[str, str]) -> str | None:
        return await self._driver.check(settings, environ)

    def _limit_waiting_turns(self) -> None:
        """Stop the turn that has waited longest if too many wait for a person. It gets the decision in its session later."""
        waiting = [run_id for run_id, external_turn in self._turns.items() if external_turn.waiting_since]
        if self._max_waiting is None or len(waiting) <= self._max_waiting:
            return
        run_id = min(waiting, key=lambda waiting_id: self._turns[waiting_id].waiting_since)
        external_turn = self._turns.pop(run_id)
        external_turn.is_detaching = True
        self._stopping[run_id] = asyncio.get_running_loop().create_task(external_turn.stop())
        self._stopping[run_id].add_done_callback(lambda _: self._stopping.pop(run_id))

    async def _end(self, run_id: str) -> None:
        if external_turn := self._turns.pop(run_id, None):
            await external_turn.stop()

    async def release(self, run_ids: Iterable[str]) -> None:
        """Stop the agents of runs that have ended."""
        for run_id in run_ids:
            await self._end(run_id)

    async def close(self) -> None:
        """Stop all turns before the process exits. Agents in a server of their own continue."""
        for external_turn in self._turns.values():
            external_turn.is_detaching = True
        for run_id in list(self._turns):
            await self._end(run_id)
        if self._stopping:
            await asyncio.wait(self._stopping.values())


def _digest(request: PermissionRequest) -> str:
    return hashlib.sha256((request.details or request.description).encode("utf-8", "surrogateescape")).hexdigest()


def _read(path: str) -> dict[str, Any]:
    with contextlib.suppress(OSError, ValueError):
        if isinstance(found := json.loads(read_plain(path, _MAX_RECORD_BYTES)), dict):
            return found
    return {}
