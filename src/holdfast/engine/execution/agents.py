"""Agents: a model that calls tools until it has an answer.

An agent runs inside a node. Each answer of the model and each call of a tool is recorded in the
journal. If the node runs again, it gets the recorded ones, and the conversation continues there.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Sequence
from typing import (
    Any,
    Generic,
    Literal,
    TypeAlias,
    TypeVar,
    Unpack,
    cast,
    get_args,
    overload,
)

import msgspec

from holdfast.engine.effects.call_host import ReviewedCall
from holdfast.engine.effects.call_options import CallOptions
from holdfast.engine.effects.invocations import admitted_fallback
from holdfast.engine.effects.model_signatures import SharedOptions
from holdfast.engine.execution.agent_approvals import call_together
from holdfast.engine.execution.context import Context, caller_with
from holdfast.engine.execution.run_spans import agent_span
from holdfast.errors import CallFailed, CallRejected, InvalidArguments, InvalidRequest, TurnsSpent
from holdfast.graph import Graph
from holdfast.graph.schemas import ConvertArguments, tool_of
from holdfast.graph.tool import Tool, untyped
from holdfast.graph.tool import contract_of as contract_of
from holdfast.graph.values import durable
from holdfast.model.invocation import Answer, ToolCall, ToolSpec, Usage
from holdfast.model.prompt import validated_messages
from holdfast.model.type_parameters import ValueT

__all__ = ["Agent", "ApprovalGrouping", "Conversation", "agent"]

T = TypeVar("T")

ApprovalGrouping: TypeAlias = Literal["each", "together"]
"""How people approve several tool calls of one answer: each in a review of its own, or together."""

_INVALID_NAME_CHARS = re.compile(r"[^a-zA-Z0-9_-]")
_RESULT_CHARS_MAX = 100_000


class Conversation(msgspec.Struct, Generic[ValueT], frozen=True, kw_only=True):
    """The result of a conversation with an agent. Its ``value`` is a ``ValueT``."""

    text: str
    """The last answer of the model."""
    value: ValueT = cast(ValueT, None)
    """The last answer as a value of the ``output`` type."""
    messages: list[dict[str, Any]]
    """All messages; pass them to the agent again to continue the conversation."""
    turns: int
    """How often the model was asked."""
    usage: Usage = Usage()


class QuestionOptions(SharedOptions, total=False):
    """How an agent asks each of its questions: see `Context.model`."""

    check: Callable[[Answer[Any]], bool] | None


class _AgentTool(msgspec.Struct, frozen=True):
    """A tool that the model may call."""

    tool: Tool[..., Any]
    spec: ToolSpec
    convert: ConvertArguments


class Agent(Generic[ValueT]):
    """A model with tools: ``await support(ctx, "Where is my order?")`` inside a node.

    An ``Agent[Order]`` answers with a value of the type ``Order``.
    """

    def __init__(
        self,
        model: str,
        tools: Sequence[Callable[..., Any]] = (),
        *,
        system: str | None = None,
        output: Any = None,
        fallback: str | Sequence[str] = (),
        turns_max: int = 20,
        approvals: ApprovalGrouping = "each",
        options: QuestionOptions | None = None,
    ) -> None:
        if type(turns_max) is not int or turns_max < 1:
            raise InvalidRequest(
                f"turns_max must be an integer from 1 on, got {turns_max!r:.80}", field="turns_max"
            )
        if not isinstance(tools, Sequence):
            raise InvalidRequest(
                f"tools must be a list of functions, got {tools!r:.80}", field="tools"
            )
        for name in options or ():
            if name not in QuestionOptions.__annotations__:
                known = ", ".join(QuestionOptions.__annotations__)
                raise InvalidRequest(
                    f"an agent has no option {name!r:.80}; it has: {known}. Pass parameters that "
                    "only the service knows as extra={…}",
                    field=name,
                )
        self.model = model
        self.system = system
        self.output = output
        self.fallback = admitted_fallback(fallback)
        self.turns_max = turns_max
        if approvals not in get_args(ApprovalGrouping):
            raise InvalidRequest(
                f"approvals must be 'each' or 'together', got {approvals!r:.80}", field="approvals"
            )
        self.approvals: ApprovalGrouping = approvals
        self.options: QuestionOptions = {**options} if options else {}
        self._tools: dict[str, _AgentTool] = {}
        for function in tools:
            known = _agent_tool(function)
            if self._tools.setdefault(known.spec.name, known) is not known:
                raise InvalidRequest(
                    f"tools must have different names, got two {known.spec.name!r}", field="tools"
                )

    async def __call__(self, ctx: Context, messages: Any) -> Conversation[ValueT]:
        """Let the model answer; make the tool calls that it asks for.

        Raises:
            TurnsSpent: the model still called tools after ``turns_max`` answers.
            CallFailed, InvalidAnswer: as `Context.model` does.
        """
        history = validated_messages(messages)
        if self.system is not None and history[0]["role"] != "system":
            history = [{"role": "system", "content": self.system}, *history]
        with agent_span(self.model):
            return await self._converse(ctx, history)

    async def _converse(self, ctx: Context, history: list[dict[str, Any]]) -> Conversation[ValueT]:
        usage = Usage()
        for turn in range(1, self.turns_max + 1):
            asked = ctx.model(
                self.model,
                history,
                tools=[known.spec for known in self._tools.values()],
                output=self.output,
                fallback=self.fallback,
                **self.options,
            )
            answer = cast(Answer[ValueT], await asked)
            history = [*history, answer.message()]
            usage += answer.usage
            if not answer.tool_calls:
                return Conversation(
                    text=answer.text, value=answer.value, messages=history, turns=turn, usage=usage
                )
            history += await self._call_tools(ctx, answer)
        raise TurnsSpent(f"the agent had no answer after turns_max={self.turns_max} turns")

    async def _call_tools(self, ctx: Context, answer: Answer[Any]) -> list[dict[str, Any]]:
        """Make the calls of an answer; return the messages with their results for the model."""
        calls, model = answer.tool_calls, answer.model or self.model

        async def make(number: int, reviewed: ReviewedCall | None = None) -> dict[str, Any]:
            options = CallOptions(asked_by=model, reviewed=reviewed)
            return await self._call_tool(ctx, calls[number], options)

        if self.approvals == "together":
            planned = [self._planned(call) for call in calls]
            return await call_together(ctx, planned, make, model=model)
        return await asyncio.gather(*map(make, range(len(calls))))

    def _planned(self, call: ToolCall) -> tuple[Tool[..., Any], dict[str, Any]] | None:
        """Return a tool that may need an approval, with its arguments; None for other calls."""
        known = self._tools.get(call.name)
        if known is None or known.tool.approval is None or call.malformed:
            return None
        try:
            return known.tool, known.convert(call.arguments)
        except InvalidArguments:  # the model is told when the call is made
            return None

    async def _call_tool(
        self, ctx: Context, call: ToolCall, options: CallOptions
    ) -> dict[str, Any]:
        """Make a call; return the message with its result or error for the model."""
        known = self._tools.get(call.name)
        edits: list[str] = []
        options = msgspec.structs.replace(options, tell_edit=edits.append)
        try:
            if known is None:
                names = ", ".join(self._tools) or "none"
                raise InvalidArguments(f"there is no tool {call.name!r:.80}; there are: {names}")
            if call.malformed:
                raise InvalidArguments(f"this is not a JSON object: {call.malformed:.200}")
            arguments = known.convert(call.arguments)
            caller = ctx if known.tool.approval is None else caller_with(ctx, options)
            result = await caller.call(untyped(known.tool), **arguments)
        except CallRejected as error:
            return _tool_message(call, error.reason or str(error), error=True)
        except (InvalidArguments, CallFailed) as error:
            # The model may correct the call, or try another way.
            return _tool_message(call, "\n".join([*edits, str(error)]), error=True)
        text = result if isinstance(result, str) else _json_text(result)
        return _tool_message(call, "\n".join([*edits, text]))

    def graph(self, name: str, *, version: int = 1, **options: Any) -> Graph[dict[str, Any]]:
        """Return a graph with one node, which answers the ``messages`` in its state.

        The node writes ``messages``, ``text`` and ``value`` to the state. The options are those of
        a node.
        """
        graph = Graph(name, dict, version=version)

        @graph.node(name="answer", **options)
        async def answer(state: dict[str, Any], ctx: Context) -> dict[str, Any]:
            conversation = await self(ctx, state["messages"])
            return {
                "messages": conversation.messages,
                "text": conversation.text,
                "value": durable(conversation.value),
            }

        return graph


@overload
def agent(
    model: str,
    tools: Sequence[Callable[..., Any]] = (),
    *,
    system: str | None = None,
    output: None = None,
    fallback: str | Sequence[str] = (),
    turns_max: int = 20,
    approvals: ApprovalGrouping = "each",
    **options: Unpack[QuestionOptions],
) -> Agent[None]: ...


@overload
def agent(
    model: str,
    tools: Sequence[Callable[..., Any]] = (),
    *,
    system: str | None = None,
    output: type[T],
    fallback: str | Sequence[str] = (),
    turns_max: int = 20,
    approvals: ApprovalGrouping = "each",
    **options: Unpack[QuestionOptions],
) -> Agent[T]: ...


@overload
def agent(
    model: str,
    tools: Sequence[Callable[..., Any]] = (),
    *,
    system: str | None = None,
    output: Any,
    fallback: str | Sequence[str] = (),
    turns_max: int = 20,
    approvals: ApprovalGrouping = "each",
    **options: Unpack[QuestionOptions],
) -> Agent[Any]: ...


def agent(
    model: str,
    tools: Sequence[Callable[..., Any]] = (),
    *,
    system: str | None = None,
    output: Any = None,
    fallback: str | Sequence[str] = (),
    turns_max: int = 20,
    approvals: ApprovalGrouping = "each",
    **options: Unpack[QuestionOptions],
) -> Agent[Any]:
    """Return a model with tools, to be called inside a node.

    ``tools`` are functions, or tools of `holdfast.tool`. Their names, docstrings and annotations
    tell the model how to call them. ``system`` becomes the first message, unless the messages begin
    with a system message. ``output``, ``fallback`` and the options are those of `Context.model`.
    There is no ``key``, because an agent asks more than once. If several calls of one answer need
    an approval, each has a review of its own. With ``approvals="together"`` one review lists all of
    them, and its decision applies to all.

    Raises:
        InvalidRequest: two tools have the same name, or a parameter of one has no JSON schema.
    """
    return Agent(
        model,
        tools,
        system=system,
        output=output,
        fallback=fallback,
        turns_max=turns_max,
        approvals=approvals,
        options=options,
    )


def _agent_tool(function: Callable[..., Any]) -> _AgentTool:
    tool = contract_of(function)
    name = _INVALID_NAME_CHARS.sub("_", tool.name.rpartition(".")[2])
    description = tool.description.split("\n\n")[0]
    spec, convert = tool_of(tool.function, name=name, description=" ".join(description.split()))
    return _AgentTool(tool, spec, convert)


def _tool_message(call: ToolCall, content: str, *, error: bool = False) -> dict[str, Any]:
    message: dict[str, Any] = {
        "role": "tool",
        "tool_call_id": call.id,
        "content": content[:_RESULT_CHARS_MAX],
    }
    return {**message, "error": True} if error else message


def _json_text(result: Any) -> str:
    return msgspec.json.encode(durable(result)).decode()
