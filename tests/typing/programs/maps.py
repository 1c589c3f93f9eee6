"""Maps: the item function, or the program, takes the values of the items."""

from dataclasses import dataclass

from holdfast import BlockingContext, Context, Graph, Mapped, workflow


@dataclass
class Scan:
    pages: int
    cursor: Mapped | None = None


graph = Graph("scan", Scan)


@graph.item
async def page(index: int, ctx: Context) -> str:
    return f"{ctx.given['uri']} {ctx.index + index}"


@graph.item(name="word")
def word(text: str) -> int:
    return len(text)


@workflow
async def doubled(n: int) -> int:
    return 2 * n


@graph.node
async def read(state: Scan, ctx: Context) -> Scan:
    cursor: Mapped = await ctx.map(page, state.pages, chunk=10, tolerate=0.5, given={"uri": "x"})
    await ctx.map(word, ["a", "b"])
    await ctx.map(doubled, [1, 2])
    await ctx.map(doubled, 3)
    await ctx.map(word, 3)  # wrong: the item takes text, not an index
    await ctx.map(page, ["a"])  # wrong: the item takes an index
    async for entry in ctx.mapped(cursor):
        print(entry.index, entry.result, entry.failure)
    total: int = await ctx.mapped(cursor).fold(lambda n, e: n + e.index, 0)
    return Scan(total, cursor)


@graph.node
def plain(state: Scan, ctx: BlockingContext) -> Scan:
    cursor = ctx.map(page, 3)
    for entry in ctx.mapped(cursor):
        print(entry.index)
    return state
