"""A model that is paid whenever it is asked, and the ledger counts how often that was."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from holdfast.model.invocation import Answer, Emit, Request, Usage


class PaidModel:
    """Is asked with the numbers of a run and a step, and answers with the receipt."""

    name = "paid"
    price = None
    max_tokens = 16

    def __init__(self, effect: Callable[[int, int, str | None], Awaitable[str]]) -> None:
        self._effect = effect

    def tokens_max(self, request: Request) -> tuple[int, int]:
        return 1_000, self.max_tokens

    async def answer(self, request: Request, emit: Emit | None) -> Answer:
        run, step = map(int, request.messages[-1]["content"].split())
        # Without a key: the services that there are take money for every question.
        receipt = await self._effect(run, step, None)
        return Answer(text=receipt, usage=Usage(2, 3), model=self.name)
