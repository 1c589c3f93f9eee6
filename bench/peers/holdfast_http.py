"""The ten steps as a workflow, for ``holdfast serve bench/peers/holdfast_http.py``."""

from __future__ import annotations

import sys
from pathlib import Path

from holdfast import Context, workflow

sys.path.insert(0, str(Path(__file__).parent))
from ten_steps import NAMES, text


@workflow
async def ten_steps(number: int, ctx: Context) -> dict[str, object]:
    state: dict[str, object] = {"number": number}
    for index, name in enumerate(NAMES):
        state[name] = await ctx.call(text, number, index)
    return state
