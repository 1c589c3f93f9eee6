"""Bugs to plant in runs that begin in memory, and in quotas for processes that are slow."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from holdfast.engine.effects import quota_item, quotas
from holdfast.engine.runs import starting
from holdfast.model import quota_level
from tests.simulation.bugs.planting import bug


@bug("calling")
def keys_of_a_generation_where_there_is_no_room_in_memory(patch: pytest.MonkeyPatch) -> None:
    start = starting.start_run

    async def forgetful(
        kernel: Any, hands: Any, graph: Any, input: Any, asked: Any, **on: Any
    ) -> Any:
        asked = msgspec.structs.replace(asked, on_pause=False)
        return await start(kernel, hands, graph, input, asked, **on)

    patch.setattr(starting, "start_run", forgetful)


@bug("rates")
def a_quota_that_waits_for_nobody_who_is_late(patch: pytest.MonkeyPatch) -> None:
    """Processes that always miss their moments are never given more time."""
    patch.setattr(quota_item, "slack_needed_us", lambda quota, tardy_us: 0)


@bug("rates")
def slack_that_nobody_is_paced_for(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(quota_level, "_slack_us", lambda quota_level, slack_us: 0)


@bug("rates")
def a_call_that_begins_though_its_moment_is_over(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(quotas.Permit, "confirm", lambda self: True)
