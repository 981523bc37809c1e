"""Executor for agents, used by the Runner as for commands: `launch` starts the agent, and its answer becomes the output of the run."""

import asyncio
import contextlib
import logging
import os
from collections.abc import Callable

from backburner.agents import prompts
from backburner.core.claims import ClaimedRun, LogEnd
from backburner.core.errors import BackburnerError, WorktreeFailed
from backburner.core.formatting import iso
from backburner.core.known_agents import asks_before_acting
from backburner.core.models import DISCOVERY, Task
from backburner.core.ports import Agent, AgentTurn, CannotStart, Outcome, Suspended
from backburner.core.progress import summarize
from backburner.core.states import Result, WaitKind
from backburner.core.terminal_text import shortened, visible
from backburner.services.app import App
from backburner.system import run_files
from backburner.system.git_worktree import Worktree
from backburner.system.log_file import NAME, header

log = logging.getLogger("backburner")
_MAX_ANSWER_CHARACTERS = 4 << 20
_STOP_TIMEOUT_SECONDS = 30.0


class AgentHandle:
    """A running agent."""

    process = None
    is_starting = False

    def __init__(self, answer_task: "asyncio.Task[Outcome]", turn: AgentTurn, on_stopped: Callable[[], None]) -> None:
        self._answer_task, self._turn, self._on_stopped = answer_task, turn, on_stopped
        self._log = os.path.join(turn.folder, NAME)
        self._answer: str | None = None

    async def ended(self) -> Outcome:
        outcome = await asyncio.shield(self._answer_task)
        self._answer = outcome.answer
        self._write(outcome)
        return outcome if outcome.usage else outcome._replace(usage=run_files.usage(self._turn.folder))

    async def ready(self, when: str) -> bool:
        return False

    async def stop(self, grace: float) -> Outcome | None:
        running_tools = list(self._turn.running_tools)
        self._answer_task.cancel()
        done, _ = await asyncio.wait({self._answer_task}, timeout=max(grace, _STOP_TIMEOUT_SECONDS))
        if done and not self._answer_task.cancelled() and self._answer_task.exception() is None:
            return None  # it had already answered
        self._on_stopped()
        # If no tool was running, nothing can be half done, and the run may be repeated like one that timed out.
        return Outcome(
            Result.SIGNAL, error="it was stopped", usage=run_files.usage(self._turn.folder), problem=None if running_tools else "timeout"
        )

    def close(self) -> LogEnd:
        lines = (self._answer or "").splitlines()
        return LogEnd(summarize(self._answer or ""), len(lines))

    def _write(self, outcome: Outcome) -> None:
        """Append the answer to the log of the run."""
        text = outcome.answer or ""
        if len(text) > _MAX_ANSWER_CHARACTERS:
            half, omitted = _MAX_ANSWER_CHARACTERS // 2, len(text) - _MAX_ANSWER_CHARACTERS
            text = f"{text[:half]}\n[backburner: {omitted:,} characters omitted]\n{text[-half:]}"
        try:
            with open(self._log, "a", encoding="utf-8", errors="replace") as file:
                file.write(text if text.endswith("\n") or not text else text + "\n")
        except OSError as error:
            log.warning("cannot write %s: %s; the answer is kept in the conversation", self._log, error.strerror)


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
            is_background, model = task.is_recurring or task.session == DISCOVERY, task.spec.options.model
            settings = self._app.agents.settings(task.spec.agent_name or "", recurring=is_background, model=model)
            if task.session == DISCOVERY:
                settings = {**settings, "fallback": ""}  # the user did not ask for discovery, so it must not use a paid model
        except BackburnerError as error:
            raise CannotStart(str(error)) from None
        is_new_message = run.wait_kind in (None, WaitKind.APPROVAL)
        if is_new_message and (task.is_recurring or run.cause.origin or task.session == DISCOVERY):
            if task.has_precheck:
                prompts.archive_precheck_output(folder)
            work = work._replace(run=run._replace(message=prompts.run_prompt(self._app, work)))
        with contextlib.suppress(OSError):
            run_files.make(folder)
            run_files.write_metadata(folder, task, run)
            if is_new_message:
                header_fields = {
                    "Background task": task.task_id,
                    "Agent": task.spec.agent_name or "",
                    "Prompt": task.spec.prompt if task.is_recurring else run.message or "",
                    "Started": iso(run.started_at) or "",
                }
                with open(os.path.join(folder, NAME), "wb") as file:
                    file.write(header(header_fields))
        worktree = self._app.conversations.worktree(task)
        project = self._app.gate.project(task.spec.cwd, task.opened, work.environment)
        work = work._replace(task=_task_in_worktree(task, worktree, project) if worktree else task._replace(opened=project))
        turn = AgentTurn(
            work, settings, folder, conversation, is_new_message, [], lambda leader: self._app.agent_runs.record_process(run, leader)
        )
        answer_task = asyncio.get_running_loop().create_task(self._answer(turn, worktree))

        def on_stopped() -> None:
            self._app.agent_runs.cancel_commands_of(task)
            if worktree:
                with contextlib.suppress(WorktreeFailed):
                    worktree.finish(f"{task.task_id} (stopped before it finished)", folder)

        return AgentHandle(answer_task, turn, on_stopped)

    async def _answer(self, turn: AgentTurn, worktree: Worktree | None) -> Outcome:
        """Return the agent's answer; for an agent in a worktree, add a summary of its changes."""
        if reason := _approval_needed_before_prompt(turn):
            raise Suspended(reason, WaitKind.APPROVAL)
        agent = self._agent(turn.settings["type"])
        if worktree is None:
            return await agent.answer(turn)
        task = turn.work.task
        try:
            await asyncio.to_thread(worktree.make)
            outcome = await agent.answer(turn)
            changes = await asyncio.to_thread(worktree.finish, f"{task.spec.description or task.task_id}\n\nBy {task.task_id}", turn.folder)
        except WorktreeFailed as error:
            return Outcome(Result.EXIT, 1, str(error))
        return outcome._replace(answer=f"{outcome.answer or ''}\n\n{changes}".strip()) if outcome.exit_code == 0 else outcome

    def attach(self, work: ClaimedRun) -> None:
        return None


def _approval_needed_before_prompt(turn: AgentTurn) -> str | None:
    """Why a person must approve this message: the agent acts without asking, and the person has approved a different message. Else None."""
    task, run = turn.work.task, turn.work.run
    if not turn.is_new_message or asks_before_acting(turn.settings) or run.reply == "yes":
        return None
    if task.decision.by == "user" and (task.is_recurring or run.cause.origin or run.message == task.spec.prompt):
        return None
    message = shortened(visible(run.message or ""), longest=4000)
    return f"{task.spec.agent_name} acts without asking for permission. Its message: {message}"


def _task_in_worktree(task: Task, worktree: Worktree, project: str | None) -> Task:
    """The task with the worktree as its directory. The worktree is its project if the repository was one."""
    cwd = os.path.normpath(os.path.join(worktree.path, os.path.relpath(task.spec.cwd, task.project)))
    return task._replace(spec=task.spec._replace(cwd=cwd), project=worktree.path, opened=worktree.path if project else None)
