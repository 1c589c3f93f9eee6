"""The service behind Restate's ingress, as its documentation shows it: ten recorded steps, served
by hypercorn. ``bench/http.py`` runs Restate's own server in front of it."""

from __future__ import annotations

import asyncio
import sys

import hypercorn.asyncio
import hypercorn.config
from ten_steps import NAMES, text

import restate

service = restate.Service("ten_steps")


@service.handler("run")
async def run(ctx: restate.Context, number: int) -> dict[str, object]:
    state: dict[str, object] = {"number": number}
    for index, name in enumerate(NAMES):
        state[name] = await ctx.run_typed(name, text, number=number, step=index)
    return state


async def main() -> None:
    config = hypercorn.config.Config()
    config.bind = [f"127.0.0.1:{sys.argv[1]}"]
    config.loglevel = "WARNING"
    await hypercorn.asyncio.serve(restate.app([service]), config)


asyncio.run(main())
