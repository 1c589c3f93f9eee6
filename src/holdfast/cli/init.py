"""``holdfast init``: writes one file that works, to begin with."""

from __future__ import annotations

from pathlib import Path

import click

from holdfast.cli.parameters import example, json_option, parse_path
from holdfast.cli.text import pretty, say

__all__ = ["init"]

_NAME = "app.py"
_START = '{"graph": "order", "id": "o-1", "input": {"item": "book"}}'
_APP = '''\
"""An order that survives crashes: it is priced, waits for an approval, and is shipped."""

import asyncio
from dataclasses import dataclass

from holdfast import Context, Holdfast, signal, workflow

APPROVED = signal("approved", bool)


@dataclass
class Order:
    item: str
    count: int = 1


async def look_up_price(item: str) -> int:  # stands for a service
    return 100 * len(item)


async def ship(item: str, count: int) -> str:  # stands for a service
    return f"{count} x {item}"


@workflow(signals=[APPROVED])
async def order(order: Order, ctx: Context) -> str:
    cents = order.count * await ctx.call(look_up_price, order.item)  # recorded: made once
    if not await ctx.wait(APPROVED, about={"cents": cents}):  # may take days
        return "rejected"
    return f"shipped {await ctx.call(ship, order.item, order.count)} for {cents} cents"


async def main() -> None:
    """Run one order in this process, without a server."""
    async with Holdfast("sqlite:///runs.db") as hf, hf.worker([order]):
        run = await hf.start(order, Order("book"))
        await run.until("waiting")
        await run.signal(APPROVED, True)
        print(await run.result())


if __name__ == "__main__":
    asyncio.run(main())
'''


@click.command(epilog=example("holdfast init", "holdfast init shop/flows.py"))
@click.argument("path", type=parse_path, default=_NAME, metavar="[DIR|FILE]")
@json_option
def init(path: Path, as_json: bool) -> None:
    """Write one file with a workflow that works: app.py, or the FILE. It overwrites nothing."""
    file = path if path.suffix == ".py" else path / _NAME
    try:
        if not file.parent.is_dir():
            file.parent.mkdir(parents=True)
        with file.open("x", encoding="utf-8") as made:
            made.write(_APP)
    except OSError as error:
        if isinstance(error, FileExistsError) and file.is_file():
            told = f"{file} exists, and init overwrites nothing; name another file"
        else:
            told = f"{file} cannot be written: {error.strerror}"
        raise click.ClickException(told) from None
    commands = [
        f"holdfast dev {file}",
        f"curl localhost:8400/v1/runs -H 'content-type: application/json' -d '{_START}'",
        "holdfast run signal o-1 approved true --url sqlite:///.holdfast/dev.db",
    ]
    if as_json:
        click.echo(pretty({"file": str(file), "commands": commands}))
        return
    say(f"wrote {file}; next:")
    for command in commands:
        say(f"  {command}")
