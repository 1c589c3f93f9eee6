"""`s3_trigger`: starts one run for each uploaded object, and runs what is due."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, TypeVar

from holdfast.app import Holdfast
from holdfast.display import get_logger
from holdfast.errors import AlreadyExists
from holdfast.integrations.aws_lambda.due_runs import LambdaOptions, run_due_beside
from holdfast.integrations.aws_lambda.invocation import (
    Event,
    Handler,
    LambdaContext,
    run_in_loop,
    seconds_left,
)
from holdfast.integrations.aws_lambda.s3_events import S3Message, S3Object, messages_of
from holdfast.model.program import Program
from holdfast.records.keys import RunKey

__all__ = ["ObjectStarts", "s3_trigger"]

_log = get_logger("holdfast.lambda")

T = TypeVar("T")

_STARTS_AT_ONCE_MAX = 16


def s3_trigger(
    hf: Holdfast,
    graph: Program[T, Any],
    *,
    input_of: Callable[[S3Object], T | Awaitable[T]],
    id_of: Callable[[S3Object], str] | None = None,
    tenant_of: Callable[[S3Object], str] | None = None,
    labels_of: Callable[[S3Object], Mapping[str, str]] | None = None,
    graphs: Iterable[Program] = (),
    options: LambdaOptions | None = None,
) -> Handler:
    """Return a handler that starts a run for each object of an event of S3, and runs what is due.

    The event comes from S3 itself, from EventBridge, or in messages of SQS or SNS. ``input_of``
    returns the input of the run; it should name the object, and a node should read it. ``id_of``
    returns the run's id, by default `S3Object.id`, so that an event that comes twice starts
    nothing twice. ``tenant_of`` and ``labels_of`` return the run's tenant and labels. ``graphs``
    are further graphs to run, such as those of children.

    The handler starts every object that it can. For messages of SQS it then reports the messages
    that failed: the mapping must have ``ReportBatchItemFailures``. Otherwise it raises what failed
    as an `ExceptionGroup`, and Lambda invokes it again.
    """
    served = (graph, *graphs)

    async def start(uploaded: S3Object) -> bool:
        """Start the run of an object; return whether it is a new one."""
        found = input_of(uploaded)
        input = await found if inspect.isawaitable(found) else found
        id = uploaded.id if id_of is None else id_of(uploaded)
        tenant = None if tenant_of is None else tenant_of(uploaded)
        labels = None if labels_of is None else labels_of(uploaded)
        try:
            run = await hf.start(graph, input, id=id, tenant=tenant, labels=labels)
            return not run.repeated
        except AlreadyExists:
            _log.warning(
                "%s exists with another input than %s has now; input_of must return the same for "
                "the same object",
                RunKey(tenant or hf.tenant, id).log_name,
                uploaded.uri,
            )
            return False

    def handle(event: Event, context: LambdaContext) -> dict[str, Any]:
        starts = ObjectStarts(messages_of(event), start)
        seconds = seconds_left(context)
        counts = run_in_loop(
            lambda: run_due_beside(starts.carry_out, hf, served, seconds=seconds, options=options)
        )
        return starts.answer(counts)

    return handle


class ObjectStarts:
    """The starts of one invocation, and what became of them."""

    def __init__(
        self, messages: list[S3Message], start: Callable[[S3Object], Awaitable[bool]]
    ) -> None:
        self._messages = messages
        self._start = start
        self._room = asyncio.Semaphore(_STARTS_AT_ONCE_MAX)
        # By the place of the message: whether a run is new, or what went wrong.
        self._outcomes: list[list[bool | Exception]] = [[*each.errors] for each in messages]

    async def carry_out(self) -> None:
        """Start the run of every object; an error of one does not keep the others."""
        await asyncio.gather(
            *(
                self._carry_out_one(outcomes, uploaded)
                for message, outcomes in zip(self._messages, self._outcomes, strict=True)
                for uploaded in message.objects
            )
        )

    async def _carry_out_one(self, outcomes: list[bool | Exception], uploaded: S3Object) -> None:
        try:
            async with self._room:
                outcomes.append(await self._start(uploaded))
        except Exception as error:
            _log.exception("the run of %s was not started", uploaded.uri)
            outcomes.append(error)

    def answer(self, counts: dict[str, int]) -> dict[str, Any]:
        """Return what the handler returns.

        Raises:
            ExceptionGroup: a run was not started, and no queue can be told.
        """
        if any(message.id is not None for message in self._messages):
            return {"batchItemFailures": [{"itemIdentifier": id} for id in self._failed_messages()]}
        ended = [each for outcomes in self._outcomes for each in outcomes]
        errors = [each for each in ended if isinstance(each, Exception)]
        asked = sum(map(_asked, self._messages))
        if len(ended) < asked:
            errors.append(TimeoutError(f"the time was up before {asked - len(ended)} starts"))
        if errors:
            raise ExceptionGroup(f"not all of {asked} runs were started", errors)
        return {"started": ended.count(True), "repeated": ended.count(False), "runs": counts}

    def _failed_messages(self) -> list[str | None]:
        return [
            message.id
            for message, outcomes in zip(self._messages, self._outcomes, strict=True)
            # What has no outcome was not started in time.
            if any(isinstance(each, Exception) for each in outcomes)
            or len(outcomes) < _asked(message)
        ]


def _asked(message: S3Message) -> int:
    return len(message.objects) + len(message.errors)
