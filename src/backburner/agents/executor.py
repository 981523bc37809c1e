"""Runs agents as the Runner runs commands: `launch` begins an answer, and the answer becomes the output of the run."""

import asyncio
import contextlib
import logging
import os
from collections.abc import Callable

from backburner.agents import prompts
from backburner.core.claims import ClaimedRun
from backburner.core.errors import BackburnerError, WorktreeFailed
from backburner.core.formatting import iso
from backburner.core.known_agents import asks_before_acting
from backburner.core.models import DISCOVERY, Task
from backburner.core.ports import Agent, AgentTurn, CannotStart, Outcome, Suspended
from backburner.core.progress import summarize
from backburner.core.states import Result, WaitKind
from backburner.core.terminal_text import shortened, visible
from backburner.services.app import App
from backburner.system import run_files as folders
from backburner.system.git_worktree import Worktree
from backburner.system.log_file import NAME, header

log = logging.getLogger("backburner")
_LONGEST_ANSWER = 4 << 20
_STOP_SECONDS = 30.0


class AgentHandle:
    """A running agent."""

    process = None

    def __init__(self, asking: "asyncio.Task[Outcome]", turn: AgentTurn, stopped: Callable[[], None]) -> None:
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
        acting = list(self._turn.running_tools)
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
    """Runs the agent that a task names."""

    output_cap = 0

    def __init__(self, app: App, agent: Callable[[str], Agent]) -> None:
        self._app, self._agent = app, agent

    def launch(self, work: ClaimedRun) -> AgentHandle:
        task, run = work.task, work.run
        folder = self._app.home.folder(run.folder)
        conversation = self._app.conversations.path(task, run)
        try:
            standing, model = task.is_recurring or task.session == DISCOVERY, task.spec.options.model
            settings = self._app.agents.settings(task.spec.agent_name or "", standing=standing, model=model)
            if task.session == DISCOVERY:
                settings = {**settings, "fallback": ""}  # nobody asked for it: it never costs what a remote model does
        except BackburnerError as error:
            raise CannotStart(str(error)) from None
        fresh = run.wait_kind in (None, WaitKind.APPROVAL)
        if fresh and (task.is_recurring or run.cause.origin or task.session == DISCOVERY):
            if task.has_precheck:
                prompts.archive_precheck_output(folder)
            work = work._replace(run=run._replace(message=prompts.message(self._app, work)))
        with contextlib.suppress(OSError):
            folders.make(folder)
            folders.write_metadata(folder, task, run)
            if fresh:
                about = {
                    "Background task": task.task_id,
                    "Agent": task.spec.agent_name or "",
                    "Prompt": task.spec.prompt if task.is_recurring else run.message or "",
                    "Started": iso(run.started_at) or "",
                }
                with open(os.path.join(folder, NAME), "wb") as file:
                    file.write(header(about))
        place = self._app.conversations.worktree(task)
        project = self._app.gate.project(task.spec.cwd, task.opened, work.environment)
        work = work._replace(task=_task_in_worktree(task, place, project) if place else task._replace(opened=project))
        turn = AgentTurn(work, settings, folder, conversation, fresh, [], lambda leader: self._app.agent_runs.record_process(run, leader))
        asking = asyncio.get_running_loop().create_task(self._answer(turn, place))

        def stopped() -> None:
            self._app.agent_runs.cancel_commands_of(task)
            if place:
                with contextlib.suppress(WorktreeFailed):
                    place.finish(f"{task.task_id}, as far as it came", folder)

        return AgentHandle(asking, turn, stopped)

    async def _answer(self, turn: AgentTurn, place: Worktree | None) -> Outcome:
        """The agent's answer; from a checkout of its own comes with it what it changed there."""
        if why := _approval_needed_before_prompt(turn):
            raise Suspended(why, WaitKind.APPROVAL)
        agent = self._agent(turn.settings["type"])
        if place is None:
            return await agent.answer(turn)
        task = turn.work.task
        try:
            await asyncio.to_thread(place.make)
            outcome = await agent.answer(turn)
            said = await asyncio.to_thread(place.finish, f"{task.spec.description or task.task_id}\n\nBy {task.task_id}", turn.folder)
        except WorktreeFailed as error:
            return Outcome(Result.EXIT, 1, str(error))
        return outcome._replace(answer=f"{outcome.answer or ''}\n\n{said}".strip()) if outcome.exit_code == 0 else outcome

    def attach(self, work: ClaimedRun) -> None:
        return None


def _approval_needed_before_prompt(turn: AgentTurn) -> str | None:
    """Why a person has to approve before the agent gets this message: it does not ask before it acts, and they approved another one."""
    task, run = turn.work.task, turn.work.run
    if not turn.is_new_message or asks_before_acting(turn.settings) or run.reply == "yes":
        return None
    if task.decision.by == "user" and (task.is_recurring or run.cause.origin or run.message == task.spec.prompt):
        return None
    told = shortened(visible(run.message or ""), longest=4000)
    return f"{task.spec.agent_name} does not ask before it acts, and is to be told: {told}"


def _task_in_worktree(task: Task, place: Worktree, project: str | None) -> Task:
    """A task as its agent sees it: in the checkout of its own, which counts as its project where the repository does."""
    cwd = os.path.normpath(os.path.join(place.path, os.path.relpath(task.spec.cwd, task.project)))
    return task._replace(spec=task.spec._replace(cwd=cwd), project=place.path, opened=place.path if project else None)
