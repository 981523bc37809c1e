"""The built-in agent, based on pydantic-ai: any model, files and commands of the project, and the background tools.

The conversation is saved before a tool runs and after every step, so that a killed process loses nothing and runs no tool twice.
It is interrupted only between two requests to the model: there it receives notices, and there it waits if its budget is used up.
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
from pydantic_ai.exceptions import AgentRunError, FallbackExceptionGroup
from pydantic_ai.messages import (
    ModelMessage,
    ModelRequest,
    ModelResponse,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    UserPromptPart,
    repair_messages,
)
from pydantic_ai.models import Model
from pydantic_ai.usage import UsageLimits

from backburner.agent_tools.context import ToolContext
from backburner.agent_tools.results import describe_outcome
from backburner.agents import budgets, prompts
from backburner.agents.builtin_tools import Deps, escalation, toolsets
from backburner.agents.live_stream import LiveStreamWriter
from backburner.agents.model_errors import AnswerCutOff, describe_model_error, is_cut_off
from backburner.agents.model_factory import ModelCache, create_model, fallback_settings
from backburner.core import recurring
from backburner.core.claims import ClaimedRun
from backburner.core.errors import BackburnerError
from backburner.core.models import DISCOVERY, Task
from backburner.core.notice_text import fitting, notification
from backburner.core.ports import AgentTurn, Outcome, Suspended
from backburner.core.sessions import session_of
from backburner.core.states import Result, WaitKind
from backburner.core.terminal_text import clean, shortened
from backburner.services.async_app import AsyncApp
from backburner.system.home import read_plain, write_atomically
from backburner.system.run_files import ACTIVITY

log = logging.getLogger("backburner")
_MAX_CONVERSATION_BYTES = 256 << 20
_APPROVALS_FILE = ".answers.json"
_HALF_CHARACTER = "\\ud"  # how the escape of one begins in JSON
_INCOMPLETE = "\n\n[The answer is incomplete: the model reached its limit of output tokens.]"
_INSTRUCTIONS = """\
You work in the background for a user who is doing other things and does not watch. Work independently until you can answer, then give a \
complete answer. Your tools work inside the project at {project}. If an action needs the user's approval, you wait until it is approved or \
rejected; if it is rejected, do not try the same thing in another way. Notices from Backburner are not written by a person."""


_CHAT_INSTRUCTIONS = """\
You talk with a user at a terminal, who reads your answers and can keep working while tasks run. Answer in Markdown and keep it short. Your \
tools work inside the project at {project}. Run anything that takes longer than a few seconds in the background: say so, start it with \
start_background_task, give its id, mention that /status ID shows its progress, and end your turn. You are notified when it ends, so do not \
wait for it. If an action needs approval, the terminal asks the user; if it is rejected, do not try the same thing in another way. Notices \
from Backburner are not written by the user."""


class BuiltinAgent:
    """Runs agent tasks with a model."""

    def __init__(self, home: AsyncApp) -> None:
        self._home, self._models = home, ModelCache()

    async def answer(self, turn: AgentTurn) -> Outcome:
        """Run a task once, from the message to the answer. Suspended if it must wait."""
        work, settings = turn.work, turn.settings
        try:
            conversation = await asyncio.to_thread(_load, turn)
            if turn.is_new_message:  # save the message first, so that it cannot be lost
                await asyncio.to_thread(_store, turn.conversation, _add_message(conversation, turn.message))
            deps, timeout = self._deps(work), await self._number("models.timeout_seconds")
            stream = await self._home.call(lambda app: app.config.flag("models.stream"))
            while True:
                agent = _create_agent(work.task, settings, self._models.get(settings, work.environment, timeout))
                run = _Run(
                    self._home,
                    agent,
                    deps,
                    turn,
                    conversation,
                    await self._home.call(lambda app: budgets.budget(app, work)),
                    timeout if stream else None,
                )
                try:
                    return await run.execute()
                except _Escalated:  # the fallback model continues the same conversation
                    settings, turn = fallback_settings(settings), turn._replace(is_new_message=False)
                    conversation = await asyncio.to_thread(_load, turn)
        except (TimeoutError, AnswerCutOff, AgentRunError, FallbackExceptionGroup) as error:
            text = shortened(clean(describe_model_error(error, settings, work.environment)), longest=2000)
            last = error.exceptions[-1] if isinstance(error, FallbackExceptionGroup) else error
            return Outcome(Result.EXIT, 1, text, problem=_problem_kind(last))
        except (OSError, BackburnerError) as error:
            return Outcome(Result.EXIT, 1, f"{error}")
        except _UsedUp:
            return Outcome(Result.EXIT, 0, answer="Stopped: all tool calls are used up.")
        except Suspended:
            raise
        except Exception as error:  # an unexpected error in a library fails the run with its message
            log.exception("%s failed", work.run.run_id)
            return Outcome(Result.EXIT, 1, shortened(clean(f"{type(error).__name__}: {error}"), longest=2000))

    @staticmethod
    async def check(settings: dict[str, str], environ: dict[str, str]) -> str | None:
        """Why the model does not answer, or None if it does."""
        try:
            model = create_model(settings, environ, 20.0)
            async with asyncio.timeout(20):
                await Agent(model).run("Say ok.", usage_limits=UsageLimits(request_limit=1))
        except TimeoutError:
            return "it did not answer within 20 s"
        except BackburnerError as error:
            return str(error)
        except Exception as error:
            return shortened(clean(describe_model_error(error, settings, environ)), longest=300)
        return None

    def _deps(self, work: ClaimedRun) -> Deps:
        session = session_of(work.task)
        context = ToolContext(self._home, session=session, cwd=work.task.spec.cwd, environ=work.environment, opened=work.task.opened)
        return Deps(context, work)

    async def _number(self, name: str) -> float:
        return await self._home.call(lambda app: app.config.number(name))


class _Run:
    """One pass through the agent's graph, until it ends or must wait."""

    def __init__(
        self,
        home: AsyncApp,
        agent: Agent[Deps, Any],
        deps: Deps,
        turn: AgentTurn,
        conversation: Conversation,
        budget: dict[str, float],
        stream_timeout: float | None,
    ) -> None:
        self._home, self._agent, self._deps, self._turn = home, agent, deps, turn
        self._conversation, self._budget, self._stream_timeout = conversation, budget, stream_timeout
        self._used_before = _baseline(turn, conversation)
        self._started = time.monotonic()
        self._called_tools: list[str] = []
        self._earlier_tools = int(_activity(turn).get("tools") or 0)
        self._live_stream = LiveStreamWriter(turn.folder if turn.work.task.in_chat else None)

    async def execute(self) -> Outcome:
        conversation, deferred, has_requested = self._conversation, None, False
        prompt: str | None = self._turn.message if self._turn.is_new_message else None
        if prompt is not None:
            # Add results for tool calls that were cut off, so that none of them runs again.
            conversation.messages = repair_messages(conversation.messages)
            conversation.deferred_tool_requests = None
        elif conversation.deferred_tool_requests is not None:
            deferred = await self._deferred_results(conversation.deferred_tool_requests)
        async with self._agent.iter(
            prompt,
            conversation=conversation,
            deferred_tool_results=deferred,
            deps=self._deps,
            usage_limits=UsageLimits(request_limit=None),
        ) as run:
            async for node in run:
                if Agent.is_model_request_node(node):
                    has_requested = True
                    notice_ids = await self._add_notices(node.request)
                    pending: list[ModelMessage] = [*run.all_messages(), node.request]
                    await self._save(pending, run.usage)
                    if notice_ids:
                        await self._home.call(lambda app, notice_ids=notice_ids: app.inbox.acknowledge(notice_ids=notice_ids))
                    await self._check_budget(run.usage)
                    await self._yield_if_needed()
                    self._turn.running_tools.clear()
                    if self._stream_timeout is not None:
                        async with asyncio.timeout(self._stream_timeout), node.stream(run.ctx) as events:
                            async for event in events:
                                self._live_stream.on_model_event(event)
                elif Agent.is_call_tools_node(node):
                    if self._stream_timeout is not None and has_requested and is_cut_off(node.model_response):
                        raise AnswerCutOff
                    _replace_half_characters(node.model_response)
                    calls = [call.tool_name for call in node.model_response.tool_calls]
                    self._called_tools += calls if has_requested else []
                    await self._save(run.all_messages(), run.usage)
                    if has_requested:  # otherwise it was streamed before the run was suspended
                        self._live_stream.on_response(node.model_response)
                    await self._check_budget(run.usage, len(calls))
                    self._turn.running_tools[:] = calls
            result = run.result
        assert result is not None
        await asyncio.to_thread(_store, self._turn.conversation, result.conversation)
        await self._write_activity(result.conversation.usage)
        if isinstance(result.output, DeferredToolRequests):
            raise _suspension(result.output)
        answer = f"{result.output}{_INCOMPLETE if result.response.finish_reason == 'length' else ''}"
        done = Outcome(Result.EXIT, 0, answer=answer, usage=self._used(result.conversation.usage))
        return prompts.outcome_of_result(result.output, done) if isinstance(result.output, BaseModel) else done

    async def _yield_if_needed(self) -> None:
        """Between two model requests: suspend for interactive priority, or switch to the fallback model."""
        task = self._turn.work.task
        if self._deps.escalating:
            self._deps.escalating = False
            raise _Escalated
        if await self._home.call(lambda app: app.sessions.must_yield(task)):
            raise Suspended("the user is using the same model and has priority", WaitKind.INTERACTIVE, task.lane)

    async def _add_notices(self, request: Any) -> list[int]:
        """Add pending notices to a model request. Returns their ids, to be acknowledged after the conversation is saved."""
        session = self._deps.context.session
        assert session is not None
        reported = {*self._deps.reported_tasks, self._turn.work.task.task_id}
        pending = [notice for notice in await self._home.call(lambda app: app.inbox.pending(session)) if notice.task_id not in reported]
        leased = await self._home.call(lambda app: app.inbox.lease(fitting(pending))) if pending else []
        if leased:
            request.parts = [*request.parts, UserPromptPart(notification(leased))]
        return [notice.notice_id for notice in leased]

    async def _check_budget(self, usage: Any, calls: int = 0) -> None:
        """Suspend the run if its budget is used up. `calls` is the number of tool calls about to be made."""
        used = {**self._used(usage), "seconds": time.monotonic() - self._started}
        if reason := budgets.exceeded(self._budget, used, calls):
            if self._turn.work.task.session == DISCOVERY:  # nobody asked for it, so nobody is asked to extend it
                raise _UsedUp
            raise Suspended(reason, WaitKind.BUDGET)

    def _used(self, usage: Any) -> dict[str, float]:
        """What this run used, without what the conversation used before it."""
        tokens, calls = self._used_before
        cost = getattr(usage, "cost", None)
        used = {"tokens": usage.total_tokens - tokens, "tool_calls": usage.tool_calls - calls, "requests": usage.requests}
        return {**used, **({"cost": float(cost)} if cost else {})}

    async def _deferred_results(self, requests: DeferredToolRequests) -> DeferredToolResults:
        """The results of the tool calls that the run waited for. Suspends again if one is not finished."""
        calls: dict[str, Any] = {}
        for call in requests.calls:
            metadata = requests.metadata.get(call.tool_call_id, {})
            task_id = metadata.get("task_id", "")
            if "again" in metadata:  # background_block: it waits for other agents
                result, running = await self._deps.check_blocking_tasks(metadata["again"])
                if running:
                    raise Suspended(f"waiting for {running[0]}", WaitKind.TASK, running[0])
                calls[call.tool_call_id] = result
                continue
            entry = await self._home.call(lambda app, task_id=task_id: app.queries.get_or_none(task_id))
            if entry is not None and not entry.has_ended and (entry.status == "proposed" or not self._turn.work.task.in_chat):
                raise Suspended(describe_outcome(self._deps.context, entry), WaitKind.TASK, task_id)
            calls[call.tool_call_id] = await self._deps.approved_result(entry, metadata) if entry else "The task has ended and was deleted."
        reason = await self._home.call(lambda app: app.agent_runs.rejection_reason(self._turn.work.run)) if requests.approvals else None
        return requests.build_results(calls=calls, approvals=self._tool_approvals(requests, reason))

    def _tool_approvals(self, requests: DeferredToolRequests, reason: str | None) -> dict[str, Any]:
        """The person's decisions on tool calls. Each decision is for one call; suspends at the first call without one."""
        path, position = os.path.join(self._turn.folder, _APPROVALS_FILE), len(self._conversation.messages)
        decisions: dict[str, str] = {}
        with contextlib.suppress(OSError, ValueError):
            decisions = json.loads(read_plain(path, 1 << 20))
        run = self._turn.work.run
        new_reply = run.reply if run.wait_kind is WaitKind.TOOL else None
        for call in requests.approvals:
            name = f"{position}:{call.tool_call_id}"
            if name not in decisions and new_reply:
                decisions[name], new_reply = new_reply, None
                if reason:
                    decisions[f"{name}:reason"] = reason
                write_atomically(path, json.dumps(decisions))
            if name not in decisions:
                raise Suspended(_reason(requests, call.tool_call_id), WaitKind.TOOL)
        answers: dict[str, Any] = {}
        for call in requests.approvals:
            name = f"{position}:{call.tool_call_id}"
            why = f" Their reason: {decisions[f'{name}:reason']}" if f"{name}:reason" in decisions else ""
            answers[call.tool_call_id] = True if decisions[name] == "yes" else ToolDenied(f"The user rejected this.{why}")
        return answers

    async def _save(self, messages: Sequence[ModelMessage], usage: Any = None) -> None:
        conversation = Conversation(messages=list(messages), conversation_id=self._conversation.conversation_id)
        conversation.usage = usage or self._conversation.usage
        conversation.deferred_tool_requests = self._conversation.deferred_tool_requests if usage is None else None
        await asyncio.to_thread(_store, self._turn.conversation, conversation)
        await self._write_activity(conversation.usage)

    async def _write_activity(self, usage: Any) -> None:
        """Write the progress of the run to its activity file."""
        progress = {
            "tools": self._earlier_tools + len(self._called_tools),
            "recent": self._called_tools[-5:],
            "at": int(time.time() * 1000),
        }
        with contextlib.suppress(OSError):
            write_atomically(
                os.path.join(self._turn.folder, ACTIVITY), json.dumps({**self._used(usage), **progress, "before": self._used_before})
            )


class _UsedUp(Exception):
    """A run that nobody asked for has used up its budget."""


class _Escalated(Exception):
    """The agent asked to continue with the stronger model."""


def _create_agent(task: Task, settings: dict[str, str], model: Model) -> "Agent[Deps, Any]":
    """Create the agent of a task. It answers with text, or for a recurring task with fields."""
    recurring_instructions = [prompts.instructions(task)] if task.is_recurring else []
    tools = toolsets(recurring.tools_of(task, settings.get("tools", "")) or None)
    return Agent(
        model,
        deps_type=Deps,
        output_type=[prompts.result_type(task) if task.is_recurring else str, DeferredToolRequests],
        instructions=[
            *recurring_instructions,
            (_CHAT_INSTRUCTIONS if task.in_chat else _INSTRUCTIONS).format(project=task.project),
            settings.get("instructions", ""),
        ],
        toolsets=[*tools, *([escalation()] if task.is_recurring and settings.get("fallback") else [])],
        retries=3,
    )


def _problem_kind(error: BaseException) -> str | None:
    """The kind of a failure: that it took too long, or from its HTTP status."""
    if isinstance(error, TimeoutError):
        return recurring.TIMEOUT
    match getattr(error, "status_code", None):
        case 429:
            return recurring.RATE_LIMIT
        case 401 | 403:
            return recurring.AUTH
        case 408 | 504:
            return recurring.TIMEOUT
        case _:
            return recurring.TRANSIENT


def _replace_half_characters(response: ModelResponse) -> None:
    """Replace halves of surrogate pairs, which JSON can hold, but no file and no request to a model."""
    for part in response.parts:
        if isinstance(part, TextPart | ThinkingPart):
            part.content = _with_whole_characters(part.content)
        elif isinstance(part, ToolCallPart) and part.args and _HALF_CHARACTER in json.dumps(part.args).lower():
            with contextlib.suppress(ValueError):  # the model is told what is wrong with arguments that are not JSON
                part.args = _with_whole_characters(json.loads(part.args) if isinstance(part.args, str) else part.args)


def _with_whole_characters(value: Any) -> Any:
    match value:
        case str():
            return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        case dict():
            return {_with_whole_characters(name): _with_whole_characters(field) for name, field in value.items()}
        case list():
            return [_with_whole_characters(item) for item in value]
        case _:
            return value


def _activity(turn: AgentTurn) -> dict[str, Any]:
    """The saved activity of this run from before it was suspended."""
    with contextlib.suppress(OSError, ValueError):
        if not turn.is_new_message and isinstance(found := json.loads(read_plain(os.path.join(turn.folder, ACTIVITY), 1 << 20)), dict):
            return found
    return {}


def _baseline(turn: AgentTurn, conversation: Conversation) -> tuple[float, float]:
    """The tokens and tool calls that the conversation had used before this run."""
    tokens, calls = _activity(turn).get("before") or (conversation.usage.total_tokens, conversation.usage.tool_calls)
    return tokens, calls


def _suspension(requests: DeferredToolRequests) -> Suspended:
    if requests.calls:
        metadata = requests.metadata.get(requests.calls[0].tool_call_id, {})
        return Suspended(str(metadata.get("reason", "")), WaitKind.TASK, str(metadata.get("task_id", "")))
    return Suspended(
        _reason(requests, requests.approvals[0].tool_call_id) if requests.approvals else "a tool needs approval", WaitKind.TOOL
    )


def _reason(requests: DeferredToolRequests, call_id: str) -> str:
    return str(requests.metadata.get(call_id, {}).get("reason", "a tool needs approval"))


def _add_message(conversation: Conversation, message: str) -> Conversation:
    """The conversation with one more message; unanswered tool calls are closed."""
    messages = [*repair_messages(conversation.messages), ModelRequest(parts=[UserPromptPart(message)])]
    return Conversation(messages=messages, usage=conversation.usage, conversation_id=conversation.conversation_id)


def _load(turn: AgentTurn) -> Conversation:
    try:
        return ConversationTypeAdapter.validate_json(read_plain(turn.conversation, _MAX_CONVERSATION_BYTES))
    except FileNotFoundError:
        return Conversation(conversation_id=turn.work.task.task_id)


def _store(path: str, conversation: Conversation) -> None:
    os.makedirs(os.path.dirname(path), 0o700, exist_ok=True)
    write_atomically(path, ConversationTypeAdapter.dump_json(conversation).decode())
