"""What the server and the workers of ``bench/load.py`` run."""

from __future__ import annotations

from holdfast import Context, signal, workflow

GO = signal("go", int)


async def double(number: int) -> int:
    return 2 * number


@workflow
async def quick(number: int, ctx: Context) -> int:
    return await ctx.call(double, number) + await ctx.call(double, number + 1)


@workflow
async def patient(number: int, ctx: Context) -> int:
    return number + await ctx.wait(GO)
