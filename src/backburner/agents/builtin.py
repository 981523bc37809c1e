"""The built-in agent, on pydantic-ai: any model string, files and commands of the project, and our own background tools.

The conversation is on disk before any of its tools runs and after every step, so that a kill loses no word and no tool runs twice.
It stops at safe points only, between two requests to the model: there it is told what ended, and there it waits for a budget.
"""

import asyncio
import contextlib
import json
import logging
import os
import time
from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel
from pydantic_ai import Agent, DeferredToolRequests, DeferredToolResults, ToolDenied
from pydantic_ai.conversation import Conversation, ConversationTypeAdapter
from pydantic_ai.exceptions import AgentRunError, FallbackExceptionGroup, ModelHTTPError, UnexpectedModelBehavior, UserError
from pydantic_ai.messages import ModelMessage, ModelRequest, UserPromptPart, repair_messages
from pydantic_ai.models import Model
from pydantic_ai.usage import UsageLimits

from backburner.agent_tools.context import ToolContext
from backburner.agent_tools.results import describe_outcome as outcome_line
from backburner.agents import budgets as spending
from backburner.agents import prompts as briefing
from backburner.agents.builtin_tools import Deps, escalation, toolsets
from backburner.agents.live_stream import LiveStreamWriter
from backburner.agents.model_factory import describe_model, escalated, model_of
from backburner.core import recurring as standing
from backburner.core.claims import ClaimedRun
from backburner.core.errors import BackburnerError
from backburner.core.models import Task
from backburner.core.notice_text import fitting, notification
from backburner.core.ports import AgentTurn, Outcome, Suspended
from backburner.core.sessions import session_of
from backburner.core.states import Result, WaitKind
from backburner.core.terminal_text import clean, shortened
from backburner.services.async_app import AsyncApp
from backburner.system.home import read_plain, write_atomically
from backburner.system.run_files import ACTIVITY

log = logging.getLogger("backburner")
_LARGEST_CONVERSATION = 256 << 20
_ANSWERS = ".answers.json"
_INSTRUCTIONS = """\
You work in the background for somebody who asked for it and goes on with other things: nobody reads along. Work on your own until you \
can answer, then answer with all they need. Your tools work inside the project at {project}. What needs a person's approval makes you \
wait until it was given or refused; do not try the same in another way. Notices from Backburner are not written by a person."""


_IN_CHAT = """\
You talk with a person at a terminal, who reads along and goes on while things run. Answer in Markdown, as short as it may be. Your tools \
work inside the project at {project}. What takes longer than some seconds belongs into the background: say so, start it with \
start_background_task, tell its id and that /status ID shows how it goes, and end your turn; you are told when it has ended, so do not wait \
for it. The person is asked by the terminal itself where something needs their approval; do not try the same in another way. Notices from \
Backburner are not written by the person."""


class BuiltinAgent:
    """Answers with a model."""

    def __init__(self, home: AsyncApp) -> None:
        self._home = home

    async def answer(self, turn: AgentTurn) -> Outcome:
        """One run of a task, from the message to the answer."""
        work, settings = turn.work, turn.settings
        try:
            conversation = await asyncio.to_thread(_load, turn)
            if turn.is_new_message:  # before anything heavy: what it was asked is not lost
                await asyncio.to_thread(_store, turn.conversation, _with(conversation, turn.message))
            deps, patience = self._deps(work), await self._number("models.timeout_seconds")
            stream = await self._home.call(lambda app: app.config.flag("models.stream"))
            while True:
                agent = _agent(work.task, settings, model_of(settings, work.environment, patience))
                run = _Run(
                    self._home,
                    agent,
                    deps,
                    turn,
                    conversation,
                    await self._home.call(lambda app: spending.budget(app, work)),
                    patience if stream else None,
                )
                try:
                    return await run.go()
                except _Escalated:  # the other model goes on in the same conversation
                    settings, turn = escalated(settings), turn._replace(is_new_message=False)
                    conversation = await asyncio.to_thread(_load, turn)
        except TimeoutError:
            return Outcome(Result.EXIT, 1, "the model did not answer in time (models.timeout_seconds)", problem=standing.TIMEOUT)
        except (ModelHTTPError, UnexpectedModelBehavior, UserError, AgentRunError, FallbackExceptionGroup) as error:
            text = shortened(clean(describe_model(error, settings, work.environment)), longest=2000)
            last = error.exceptions[-1] if isinstance(error, FallbackExceptionGroup) else error
            return Outcome(Result.EXIT, 1, text, problem=_problem(last))
        except (OSError, BackburnerError) as error:
            return Outcome(Result.EXIT, 1, f"{error}")
        except Suspended:
            raise
        except Exception as error:  # whatever a library makes of what a model said: it ends, and says so
            log.exception("%s failed", work.run.run_id)
            return Outcome(Result.EXIT, 1, shortened(clean(f"{type(error).__name__}: {error}"), longest=2000))

    @staticmethod
    async def check(settings: dict[str, str], environ: dict[str, str]) -> str | None:
        """Why the model does not answer; None where it does."""
        try:
            model = model_of(settings, environ, 20.0)
            async with asyncio.timeout(20):
                await Agent(model).run("Say ok.", usage_limits=UsageLimits(request_limit=1))
        except TimeoutError:
            return "it did not answer within 20 s"
        except BackburnerError as error:
            return str(error)
        except Exception as error:
            return shortened(clean(describe_model(error, settings, environ)), longest=300)
        return None

    def _deps(self, work: ClaimedRun) -> Deps:
        session = session_of(work.task)
        context = ToolContext(self._home, session=session, cwd=work.task.spec.cwd, environ=work.environment, opened=work.task.opened)
        return Deps(context, work)

    async def _number(self, name: str) -> float:
        return await self._home.call(lambda app: app.config.number(name))


class _Run:
    """One way through the agent's graph."""

    def __init__(
        self,
        home: AsyncApp,
        agent: Agent[Deps, Any],
        deps: Deps,
        turn: AgentTurn,
        conversation: Conversation,
        budget: dict[str, float],
        patience: float | None,
    ) -> None:
        self._home, self._agent, self._deps, self._turn = home, agent, deps, turn
        self._conversation, self._budget, self._patience = conversation, budget, patience
        self._before = _baseline(turn, conversation)
        self._started = time.monotonic()
        self._called: list[str] = []
        self._tools = int(_activity(turn).get("tools") or 0)
        self._aloud = LiveStreamWriter(turn.folder if turn.work.task.in_chat else None)

    async def go(self) -> Outcome:
        conversation, deferred, asked = self._conversation, None, False
        prompt: str | None = self._turn.message if self._turn.is_new_message else None
        if prompt is not None:
            # What was cut off is answered for: nothing of it is done again.
            conversation.messages = repair_messages(conversation.messages)
            conversation.deferred_tool_requests = None
        elif conversation.deferred_tool_requests is not None:
            deferred = await self._replies(conversation.deferred_tool_requests)
        async with self._agent.iter(
            prompt,
            conversation=conversation,
            deferred_tool_results=deferred,
            deps=self._deps,
            usage_limits=UsageLimits(request_limit=None),
        ) as run:
            async for node in run:
                if Agent.is_model_request_node(node):
                    asked = True
                    told = await self._news(node.request)
                    pending: list[ModelMessage] = [*run.all_messages(), node.request]
                    await self._save(pending, run.usage)
                    if told:
                        await self._home.call(lambda app, told=told: app.inbox.acknowledge(notice_ids=told))
                    await self._within_budget(run.usage)
                    await self._give_way()
                    self._turn.running_tools.clear()
                    if self._patience is not None:
                        async with asyncio.timeout(self._patience), node.stream(run.ctx) as events:
                            async for event in events:
                                self._aloud.on_model_event(event)
                elif Agent.is_call_tools_node(node):
                    calls = [call.tool_name for call in node.model_response.tool_calls]
                    self._called += calls if asked else []
                    await self._save(run.all_messages(), run.usage)
                    if asked:  # else it was said before it waited
                        self._aloud.step(node.model_response)
                    await self._within_budget(run.usage, len(calls))
                    self._turn.running_tools[:] = calls
            result = run.result
        assert result is not None
        await asyncio.to_thread(_store, self._turn.conversation, result.conversation)
        await self._active(result.conversation.usage)
        if isinstance(result.output, DeferredToolRequests):
            raise _waiting(result.output)
        done = Outcome(Result.EXIT, 0, answer=str(result.output), usage=self._used(result.conversation.usage))
        return briefing.outcome(result.output, done) if isinstance(result.output, BaseModel) else done

    async def _give_way(self) -> None:
        """At a safe point: stand aside for a person who waits for the same model, or for the model that is to take over."""
        task = self._turn.work.task
        if self._deps.escalating:
            self._deps.escalating = False
            raise _Escalated
        if await self._home.call(lambda app: app.sessions.must_yield(task)):
            raise Suspended("a person's turn on the same model comes first", WaitKind.INTERACTIVE, task.lane)

    async def _news(self, request: Any) -> list[int]:
        """At a safe point: what ended since, marked as nobody's words. The notices that count as told once this is on disk."""
        session = self._deps.context.session
        assert session is not None
        known = {*self._deps.waited, self._turn.work.task.task_id}
        owed = [notice for notice in await self._home.call(lambda app: app.inbox.pending(session)) if notice.task_id not in known]
        if owed := await self._home.call(lambda app: app.inbox.lease(fitting(owed))) if owed else []:
            request.parts = [*request.parts, UserPromptPart(notification(owed))]
        return [notice.notice_id for notice in owed]

    async def _within_budget(self, usage: Any, calls: int = 0) -> None:
        """Go on, or wait for a person to say that it may use up as much again. `calls` are about to be made."""
        used = {**self._used(usage), "seconds": time.monotonic() - self._started}
        if reason := spending.exceeded(self._budget, used, calls):
            raise Suspended(reason, WaitKind.BUDGET)

    def _used(self, usage: Any) -> dict[str, float]:
        """What this run used, of all that the conversation did."""
        tokens, calls = self._before
        cost = getattr(usage, "cost", None)
        found = {"tokens": usage.total_tokens - tokens, "tool_calls": usage.tool_calls - calls, "requests": usage.requests}
        return {**found, **({"cost": float(cost)} if cost else {})}

    async def _replies(self, requests: DeferredToolRequests) -> DeferredToolResults:
        """What became of the calls that it waited for."""
        calls: dict[str, Any] = {}
        for call in requests.calls:
            task_id = requests.metadata.get(call.tool_call_id, {}).get("task_id", "")
            about = requests.metadata.get(call.tool_call_id, {})
            if "again" in about:  # it blocked on other agents
                result, running = await self._deps.blocked(about["again"])
                if running:
                    raise Suspended(f"it waits for {running[0]}", WaitKind.TASK, running[0])
                calls[call.tool_call_id] = result
                continue
            entry = await self._home.call(lambda app, task_id=task_id: app.queries.get_or_none(task_id))
            if entry is not None and not entry.has_ended and (entry.status == "proposed" or not self._turn.work.task.in_chat):
                raise Suspended(outcome_line(self._deps.context, entry), WaitKind.TASK, task_id)
            calls[call.tool_call_id] = await self._deps.approved(entry, about) if entry else "It has ended, and was cleared since."
        return requests.build_results(calls=calls, approvals=self._approvals(requests))

    def _approvals(self, requests: DeferredToolRequests) -> dict[str, Any]:
        """A person's answers: each was to one call, which was shown; the next open one is asked for."""
        path, place = os.path.join(self._turn.folder, _ANSWERS), len(self._conversation.messages)
        given: dict[str, str] = {}
        with contextlib.suppress(OSError, ValueError):
            given = json.loads(read_plain(path, 1 << 20))
        run = self._turn.work.run
        fresh = run.reply if run.wait_kind is WaitKind.TOOL else None
        for call in requests.approvals:
            name = f"{place}:{call.tool_call_id}"
            if name not in given and fresh:
                given[name], fresh = fresh, None
                write_atomically(path, json.dumps(given))
            if name not in given:
                raise Suspended(_reason(requests, call.tool_call_id), WaitKind.TOOL)
        answers = {call.tool_call_id: given[f"{place}:{call.tool_call_id}"] for call in requests.approvals}
        return {call: True if answer == "yes" else ToolDenied("A person said no.") for call, answer in answers.items()}

    async def _save(self, messages: Sequence[ModelMessage], usage: Any = None) -> None:
        conversation = Conversation(messages=list(messages), conversation_id=self._conversation.conversation_id)
        conversation.usage = usage or self._conversation.usage
        conversation.deferred_tool_requests = self._conversation.deferred_tool_requests if usage is None else None
        await asyncio.to_thread(_store, self._turn.conversation, conversation)
        await self._active(conversation.usage)

    async def _active(self, usage: Any) -> None:
        """For who asks how it goes."""
        about = {"tools": self._tools + len(self._called), "recent": self._called[-5:], "at": int(time.time() * 1000)}
        with contextlib.suppress(OSError):
            write_atomically(os.path.join(self._turn.folder, ACTIVITY), json.dumps({**self._used(usage), **about, "before": self._before}))


class _Escalated(Exception):
    """The agent asked for the stronger model."""


def _agent(task: Task, settings: dict[str, str], model: Model) -> "Agent[Deps, Any]":
    """The agent of a task: one that answers in words, or for a standing task in fields."""
    own = [briefing.instructions(task)] if task.is_recurring else []
    tools = toolsets(standing.tools_of(task, settings.get("tools", "")) or None)
    return Agent(
        model,
        deps_type=Deps,
        output_type=[briefing.result_type(task) if task.is_recurring else str, DeferredToolRequests],
        instructions=[*own, (_IN_CHAT if task.in_chat else _INSTRUCTIONS).format(project=task.project), settings.get("instructions", "")],
        toolsets=[*tools, *([escalation()] if task.is_recurring and settings.get("fallback") else [])],
        retries=3,
    )


def _problem(error: BaseException) -> str | None:
    """The kind of a failure, as far as it says so."""
    match getattr(error, "status_code", None):
        case 429:
            return standing.RATE_LIMIT
        case 401 | 403:
            return standing.AUTH
        case 408 | 504:
            return standing.TIMEOUT
        case _:
            return standing.TRANSIENT


def _activity(turn: AgentTurn) -> dict[str, Any]:
    """What this run had done when it had to wait."""
    with contextlib.suppress(OSError, ValueError):
        if not turn.is_new_message and isinstance(found := json.loads(read_plain(os.path.join(turn.folder, ACTIVITY), 1 << 20)), dict):
            return found
    return {}


def _baseline(turn: AgentTurn, conversation: Conversation) -> tuple[float, float]:
    """What the conversation had used up before this run, of tokens and of tool calls."""
    tokens, calls = _activity(turn).get("before") or (conversation.usage.total_tokens, conversation.usage.tool_calls)
    return tokens, calls


def _waiting(requests: DeferredToolRequests) -> Suspended:
    if requests.calls:
        about = requests.metadata.get(requests.calls[0].tool_call_id, {})
        return Suspended(str(about.get("reason", "")), WaitKind.TASK, str(about.get("task_id", "")))
    return Suspended(_reason(requests, requests.approvals[0].tool_call_id) if requests.approvals else "a tool asks", WaitKind.TOOL)


def _reason(requests: DeferredToolRequests, call_id: str) -> str:
    return str(requests.metadata.get(call_id, {}).get("reason", "a tool asks"))


def _with(conversation: Conversation, message: str) -> Conversation:
    """A conversation with one more message in it, and nothing in it unanswered."""
    messages = [*repair_messages(conversation.messages), ModelRequest(parts=[UserPromptPart(message)])]
    return Conversation(messages=messages, usage=conversation.usage, conversation_id=conversation.conversation_id)


def _load(turn: AgentTurn) -> Conversation:
    try:
        return ConversationTypeAdapter.validate_json(read_plain(turn.conversation, _LARGEST_CONVERSATION))
    except FileNotFoundError:
        return Conversation(conversation_id=turn.work.task.task_id)


def _store(path: str, conversation: Conversation) -> None:
    os.makedirs(os.path.dirname(path), 0o700, exist_ok=True)
    write_atomically(path, ConversationTypeAdapter.dump_json(conversation).decode())
