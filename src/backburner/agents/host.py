"""The agent host: the one process of a home that asks agents. Started by the engine when one is due; leaves when none is for a while.

The heavy libraries live here. It is a Runner like the engine's, with an executor that asks instead of starting processes; killed at
any moment it leaves conversations that can be resumed.
"""

import asyncio
import contextlib
import logging
import os
import signal
from collections.abc import Callable, Coroutine
from importlib import import_module
from typing import TYPE_CHECKING, Any

from backburner.agents import prompts as briefing
from backburner.agents.external.turn import OutsideAgent
from backburner.coordination.config_file import load_config
from backburner.coordination.daemon_process import be_host
from backburner.core.errors import BackburnerError, WorktreeFailed
from backburner.core.formatting import iso
from backburner.core.known_agents import ACP, OPENCODE, asks
from backburner.core.models import AGENTS, CHAT, DISCOVERY, LOCAL, Task, Work
from backburner.core.optional_dependencies import need
from backburner.core.ports import Agent, CannotStart, Outcome, Parked, Turn
from backburner.core.progress import summarize
from backburner.core.settings import Config
from backburner.core.states import Result
from backburner.core.terminal_text import shortened, visible
from backburner.execution.runner import Runner
from backburner.services.async_runtime import Awaited
from backburner.services.runtime import Runtime, open_runtime
from backburner.system import processes as process
from backburner.system import run_files as folders
from backburner.system import wakeups as wake
from backburner.system.git_worktree import Worktree
from backburner.system.home import Home, servers_left, stamp
from backburner.system.log_file import NAME, header
from backburner.system.processes import is_alive

if TYPE_CHECKING:
    from backburner.agents.external.opencode import OpenCode
    from backburner.agents.external.opencode_notices import Parents

log = logging.getLogger("backburner")
_GRACE_SECONDS = 5.0
_SEATS = {AGENTS: "models.seats", LOCAL: "tasks.max_concurrent"}
_LONGEST_ANSWER = 4 << 20
_STOP_SECONDS = 30.0
_AGAIN_SECONDS = 10.0
_MOST_HELD = 8
_HOLD_SECONDS = 1800.0  # how long an agent from outside is kept there for a person's word


class AgentHandle:
    """An agent at work."""

    process = None

    def __init__(self, asking: "asyncio.Task[Outcome]", turn: Turn, stopped: Callable[[], None]) -> None:
        self._asking, self._turn, self._stopped = asking, turn, stopped
        self._log = os.path.join(turn.folder, NAME)
        self._answer: str | None = None

    async def ended(self) -> Outcome:
        outcome = await asyncio.shield(self._asking)
        self._answer = outcome.answer
        self._write(outcome)
        return outcome if outcome.usage else outcome._replace(usage=folders.usage(self._turn.folder))

    async def ready(self, when: str) -> bool:
        return False

    async def stop(self, grace: float) -> Outcome | None:
        acting = list(self._turn.acting)
        self._asking.cancel()
        done, _ = await asyncio.wait({self._asking}, timeout=max(grace, _STOP_SECONDS))  # until nothing of it is left
        if done and not self._asking.cancelled() and self._asking.exception() is None:
            return None  # it had answered before
        self._stopped()
        # Between its tools nothing of its own is under way whose effect could be in doubt.
        return Outcome(Result.SIGNAL, error="it was stopped", usage=folders.usage(self._turn.folder), problem=None if acting else "timeout")

    def close(self) -> tuple[str | None, int | None]:
        lines = (self._answer or "").splitlines()
        return summarize(self._answer or ""), len(lines)

    def _write(self, outcome: Outcome) -> None:
        """The answer is the output of the run."""
        text = outcome.answer or ""
        if len(text) > _LONGEST_ANSWER:
            text = text[:_LONGEST_ANSWER] + f"\n[backburner: {len(text) - _LONGEST_ANSWER:,} characters left out here]"
        try:
            with open(self._log, "a", encoding="utf-8", errors="replace") as file:
                file.write(text if text.endswith("\n") or not text else text + "\n")
        except OSError as error:
            log.warning("%s: %s; the answer is in the conversation", self._log, error.strerror)


class AgentExecutor:
    """Asks the agent that a task names."""

    output_cap = 0

    def __init__(self, runtime: Runtime, agent: Callable[[str], Agent]) -> None:
        self._runtime, self._agent = runtime, agent

    def launch(self, work: Work) -> AgentHandle:
        task, run = work.task, work.run
        folder = self._runtime.home.folder(run.folder)
        conversation = self._runtime.conversation(task, run)
        try:
            standing, model = task.standing or task.session == DISCOVERY, str(task.terms.get("model") or "")
            settings = self._runtime.agent(task.agent or "", standing=standing, model=model)
            if task.session == DISCOVERY:
                settings = {**settings, "fallback": ""}  # nobody asked for it: it never costs what a remote model does
        except BackburnerError as error:
            raise CannotStart(str(error)) from None
        fresh = run.waits_on is None
        if fresh and (task.standing or run.origin or task.session == DISCOVERY):
            if task.gated:
                briefing.move_gate(folder)
            work = work._replace(run=run._replace(message=briefing.message(self._runtime, work)))
        with contextlib.suppress(OSError):
            folders.make(folder)
            folders.write_metadata(folder, task, run)
            if fresh:
                about = {
                    "Background task": task.task_id,
                    "Agent": task.agent or "",
                    "Prompt": task.prompt if task.standing else run.message or "",
                    "Started": iso(run.started_at) or "",
                }
                with open(os.path.join(folder, NAME), "wb") as file:
                    file.write(header(about))
        place = self._runtime.worktree(task)
        project = self._runtime.gate.project(task.cwd, task.opened, work.environment)
        work = work._replace(task=_moved(task, place, project) if place else task._replace(opened=project))
        turn = Turn(work, settings, folder, conversation, fresh, [], lambda leader: self._runtime.began(run, leader))
        asking = asyncio.get_running_loop().create_task(self._answer(turn, place))

        def stopped() -> None:
            self._runtime.stop_asked(task)
            if place:
                with contextlib.suppress(WorktreeFailed):
                    place.finish(f"{task.task_id}, as far as it came", folder)

        return AgentHandle(asking, turn, stopped)

    async def _answer(self, turn: Turn, place: Worktree | None) -> Outcome:
        """The agent's answer; from a checkout of its own comes with it what it changed there."""
        if why := _first_a_yes(turn):
            raise Parked(why, None)
        agent = self._agent(turn.settings["type"])
        if place is None:
            return await agent.answer(turn)
        task = turn.work.task
        try:
            await asyncio.to_thread(place.make)
            outcome = await agent.answer(turn)
            said = await asyncio.to_thread(place.finish, f"{task.description or task.task_id}\n\nBy {task.task_id}", turn.folder)
        except WorktreeFailed as error:
            return Outcome(Result.EXIT, 1, str(error))
        return outcome._replace(answer=f"{outcome.answer or ''}\n\n{said}".strip()) if outcome.exit_code == 0 else outcome

    def attach(self, work: Work) -> None:
        return None


def _first_a_yes(turn: Turn) -> str | None:
    """Why a person has to say yes before the agent hears this: it does not ask before it acts, and other words were said yes to."""
    task, run = turn.work.task, turn.work.run
    if not turn.fresh or asks(turn.settings) or run.reply == "yes":
        return None
    if task.approved_by == "user" and (task.standing or run.origin or run.message == task.prompt):
        return None
    told = shortened(visible(run.message or ""), longest=4000)
    return f"{task.agent} does not ask before it acts, and is to be told: {told}"


def _moved(task: Task, place: Worktree, project: str | None) -> Task:
    """A task as its agent sees it: in the checkout of its own, which counts as its project where the repository does."""
    cwd = os.path.normpath(os.path.join(place.path, os.path.relpath(task.cwd, task.project)))
    return task._replace(cwd=cwd, project=place.path, opened=place.path if project else None)


class _Staff:
    """The agents of a home by their types, each brought in when it is first asked."""

    def __init__(self, home: Home, awaited: Awaited) -> None:
        self._home, self._awaited = home, awaited
        self._agents: dict[str, Agent] = {}
        self.outside: list[OutsideAgent] = []
        self._opencode: OpenCode | None = None
        self._parents: Parents | None = None

    def of(self, kind: str) -> Agent:
        if kind not in self._agents:
            self._agents[kind] = self._made(kind)
        return self._agents[kind]

    def _made(self, kind: str) -> Agent:
        if not kind:
            from backburner.agents.builtin import BuiltinAgent

            return BuiltinAgent(self._awaited)
        if kind == ACP:
            from backburner.agents.external.acp import AcpAgent

            agent = OutsideAgent(self._awaited, AcpAgent(self._home), _MOST_HELD)
        else:
            from backburner.agents.external.opencode import OpenCode

            self._opencode = OpenCode(self._home)
            agent = OutsideAgent(self._awaited, self._opencode)
        self.outside.append(agent)
        return agent

    @property
    def held(self) -> bool:
        """Whether an agent from outside is at work, or waits for a word."""
        return any(agent.held for agent in self.outside)

    async def tell_parents(self) -> None:
        """Sessions that asked are told what became of it."""
        self.of(OPENCODE)
        if self._parents is None and self._opencode is not None:
            from backburner.agents.external.opencode_notices import Parents

            self._parents = Parents(self._awaited, self._opencode.servers)
        if self._parents is not None:
            await self._parents.tell()

    async def close(self, *, leave: bool) -> None:
        """We leave; `leave` what goes on without us."""
        for agent in self.outside:
            await agent.close()
        if self._opencode is None and servers_left(self._home):
            self.of(OPENCODE)  # of a host before us
        if self._opencode is not None:
            await self._opencode.servers.close(leave=leave)


async def _host(home: Home, runtime: Runtime) -> None:
    need("agent", "Agents need")
    loop, done, ear = asyncio.get_running_loop(), asyncio.Event(), wake.Ear(home.make_bells())
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, done.set)
    async with Awaited(lambda: open_runtime(home, runtime.environ)) as awaited:
        staff = _Staff(home, awaited)
        if runtime.has_models():
            staff.of("")  # before anybody waits for it
        executor = AgentExecutor(runtime, staff.of)
        # Each lane has seats of its own: a model on this machine serves few at a time.
        runners = {
            lane: Runner(
                runtime.store,
                executor,  # type: ignore[arg-type]
                home,
                runtime.clock,
                runner=lane,
                owner=process.myself(),
                cap=runtime.config.whole(seats),
                grace=_GRACE_SECONDS,
                changed=lambda: told(),
            )
            for lane, seats in _SEATS.items()
        }
        leaving: asyncio.TimerHandle | None = None
        telling: asyncio.TimerHandle | None = None
        held_since = loop.time()
        seen = stamp(home.config)

        def reload() -> None:
            """Take a changed config.toml over; a wrong one is said and changes nothing."""
            nonlocal seen
            if (now := stamp(home.config)) == seen:
                return
            seen = now
            try:
                runtime.config = config = load_config(home, runtime.environ)
            except BackburnerError as error:
                log.warning("%s; the settings of before stay", error)
                return
            for lane, runner in runners.items():
                runner.cap = config.whole(_SEATS[lane])
            going(awaited.do(lambda other: setattr(other, "config", config)))

        def going(work: Coroutine[Any, Any, None]) -> None:
            task = asyncio.ensure_future(work)
            under_way.add(task)
            task.add_done_callback(under_way.discard)

        under_way: set[asyncio.Future[None]] = set()

        def told() -> None:
            wake.ring_all(home.bells, besides=ear.path)
            loop.call_soon(rung)

        def rung() -> None:
            nonlocal leaving, held_since
            ear.drain()
            reload()
            for runner in runners.values():
                runner.tick()
            if leaving:
                leaving.cancel()
            tell_parents()
            if staff.held:
                live = {run.run_id for run in runtime.store.live_runs()}
                for agent in staff.outside:  # who begins meanwhile is not meant
                    going(agent.let_go(agent.held - live))
            if busy := any(runner.busy for runner in runners.values()):
                held_since = loop.time()
            leaving = None if busy else loop.call_later(runtime.config.number("agents.idle_exit_seconds"), leave)

        def tell_parents() -> None:
            """And again after a while: a server may be away, and one who died may have been about to tell."""
            nonlocal telling
            if telling:
                telling.cancel()
            telling = None
            if runtime.untold_parents():
                going(staff.tell_parents())
                telling = loop.call_later(_AGAIN_SECONDS, tell_parents)

        def leave() -> None:
            """Not while somebody sits at a chat: the next word is to be answered at once. Nor while an agent waits for one, for a time."""
            nonlocal leaving
            held = staff.held and loop.time() - held_since < _HOLD_SECONDS
            if held or any(is_alive(session.process) for session in runtime.sessions(CHAT.rstrip(":"))):
                leaving = loop.call_later(runtime.config.number("agents.idle_exit_seconds"), leave)
            else:
                done.set()

        loop.add_reader(ear.fileno(), rung)
        rung()
        warming = asyncio.ensure_future(asyncio.to_thread(_warm, runtime.config))
        try:
            await done.wait()
        finally:
            loop.remove_reader(ear.fileno())
            ear.close()
            busy = any(runner.busy for runner in runners.values())
            for runner in runners.values():
                await runner.stop()
            await staff.close(leave=busy)
            await warming


def _warm(config: Config) -> None:
    """Load what the usual model needs before anybody asks it."""
    if not (model := config.text("models.default")):
        return
    kind = model.partition(":")[0]
    with contextlib.suppress(ImportError):  # whoever asks is told what is wrong
        import_module(f"pydantic_ai.models.{'anthropic' if kind == 'anthropic' else 'openai'}")


def main(arguments: list[str]) -> int:
    """`host HOME`: be the agent host until there is nothing to do."""

    async def serve(home: Home) -> None:
        with open_runtime(home) as runtime:
            await _host(home, runtime)

    return be_host(Home(arguments[0]), "agents", serve)
