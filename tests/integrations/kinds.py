"""The kinds of model that there are, each made to say what a test wants."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import boto3

from holdfast.errors import ModelRefused, ModelUnavailable
from holdfast.integrations.bedrock import Bedrock
from holdfast.integrations.converse import ANSWER_TOOL
from holdfast.integrations.offline import Offline
from holdfast.integrations.openai import OpenAI
from holdfast.model.invocation import Answer, Model, Request, ToolCall
from tests.integrations import dialects
from tests.servers import stub_http
from tests.servers.stub_http import Endpoint, Step

Fault = Literal["throttled", "refused", "unreachable", "cut"]


@dataclass(frozen=True)
class Plan:
    """What a model shall say."""

    pieces: Sequence[str] = ()
    calls: Sequence[ToolCall] = ()
    value: dict[str, Any] | None = None
    """An object, where one was asked for."""
    too_long: bool = False
    fault: Fault | None = None
    between: Callable[[int], Awaitable[object]] | None = None
    """Is awaited before each piece goes out."""


class Kind(Protocol):
    """Makes a model that says what is planned."""

    model: Model

    def plan(self, *plans: Plan, streamed: bool) -> None: ...

    async def quiet(self) -> None:
        """Return when nothing more can come of what was cancelled."""
        ...


class OfflineKind:
    def __init__(self) -> None:
        self._plans: list[Plan] = []
        self.model: Model = Offline(self._answer)

    def plan(self, *plans: Plan, streamed: bool) -> None:
        self._plans.extend(plans)

    async def quiet(self) -> None: ...

    async def _answer(self, request: Request) -> Any:
        plan = self._plans.pop(0)
        if plan.fault == "refused":
            return ModelRefused("told so")
        if plan.fault is not None:
            return ModelUnavailable("told so")
        if plan.between is not None:
            await plan.between(0)
        text = "".join(plan.pieces)
        if plan.value is not None:
            return plan.value
        return Answer.to(
            request,
            text=text,
            tool_calls=plan.calls,
            usage=dialects.MEASURED,
            stop_reason="length" if plan.too_long else "tool_calls" if plan.calls else "end",
        )


class OpenAIKind:
    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self.model: Model = OpenAI("m", base_url=f"{endpoint.url}/v1", api_key="k")

    def plan(self, *plans: Plan, streamed: bool) -> None:
        self.endpoint.plan(*(self._step(plan, streamed) for plan in plans))

    async def quiet(self) -> None:
        await self.endpoint.quiet()

    def _step(self, plan: Plan, streamed: bool) -> Step:
        if plan.fault in ("throttled", "refused"):
            return stub_http.say(
                {"error": {"message": "told so", "type": "t", "code": plan.fault}},
                status=429 if plan.fault == "throttled" else 400,
                headers={"Retry-After": "7"},
            )
        if plan.fault == "unreachable":
            return stub_http.drop
        pieces = [dialects.json.dumps(plan.value)] if plan.value is not None else plan.pieces
        finish = "length" if plan.too_long else "tool_calls" if plan.calls else "stop"
        if not streamed:
            return stub_http.say(
                dialects.completion("".join(pieces), calls=plan.calls, finish=finish)
            )
        cut = plan.fault == "cut"
        said = dialects.chunks(
            pieces, calls=plan.calls, finish=None if cut else finish, done=not cut
        )
        return stub_http.stream(
            said, content_type="text/event-stream", whole=not cut, between=plan.between
        )


class BedrockKind:
    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        client: Any = boto3.client(
            "bedrock-runtime",
            region_name="us-east-1",
            endpoint_url=endpoint.url,
            aws_access_key_id="id",
            aws_secret_access_key="secret",
            config=boto3.session.Config(retries={"total_max_attempts": 1}),
        )
        self.model: Model = Bedrock("anthropic.claude-haiku-4-5", client=client)
        self.client = client

    def plan(self, *plans: Plan, streamed: bool) -> None:
        self.endpoint.plan(*(self._step(plan, streamed) for plan in plans))

    async def quiet(self) -> None:
        await self.endpoint.quiet()

    def _step(self, plan: Plan, streamed: bool) -> Step:
        if plan.fault in ("throttled", "refused"):
            throttled = plan.fault == "throttled"
            kind = "ThrottlingException" if throttled else "ValidationException"
            return stub_http.say(
                {"message": "told so"},
                status=429 if throttled else 400,
                headers={"x-amzn-ErrorType": kind, "Retry-After": "7"},
            )
        if plan.fault == "unreachable":
            return stub_http.drop
        calls = plan.calls
        if plan.value is not None:
            calls = [ToolCall("t1", ANSWER_TOOL, plan.value)]
        stop = "max_tokens" if plan.too_long else "tool_use" if calls else "end_turn"
        if not streamed:
            return stub_http.say(dialects.converse("".join(plan.pieces), calls=calls, stop=stop))
        cut = plan.fault == "cut"
        said = dialects.frames(plan.pieces, calls=calls, stop=None if cut else stop)
        return stub_http.stream(
            said,
            content_type="application/vnd.amazon.eventstream",
            whole=not cut,
            between=plan.between,
        )


@asynccontextmanager
async def made(name: str) -> AsyncIterator[Kind]:
    """Make a model of that kind."""
    async with stub_http.serve() as endpoint:
        if name == "offline":
            yield OfflineKind()
        elif name == "openai":
            spoken = OpenAIKind(endpoint)
            try:
                yield spoken
            finally:
                await spoken.model.close()  # pyright: ignore[reportAttributeAccessIssue]
        else:
            bedrock = BedrockKind(endpoint)
            try:
                yield bedrock
            finally:
                await bedrock.model.close()  # pyright: ignore[reportAttributeAccessIssue]
                await asyncio.to_thread(bedrock.client.close)
