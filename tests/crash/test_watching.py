"""One process runs, others watch: killed and begun anew, together they have seen it all, once."""

from __future__ import annotations

import asyncio
import json
import signal
from asyncio.subprocess import PIPE, Process
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest

from holdfast import Holdfast
from holdfast.storage import open as open_store
from tests.crash import flows
from tests.crash.flows import GATED_TRAIL
from tests.crash.journals import journal_of
from tests.crash.processes import ended, line_of, running, working

DEADLINE_SECONDS = 60
RUN = "run-1"


def watching(url: str, *arguments: str) -> AbstractAsyncContextManager[Process]:
    command = ("-m", "holdfast", "run", "watch", RUN, "--json", "--url", url)
    return running(*command, *arguments, stderr=PIPE)


async def cursors(url: str) -> list[str]:
    """Return the cursors of everything that stands in the journal."""
    async with open_store(url) as store:
        async with Holdfast(url) as hf:
            generation = (await hf.run(RUN).get()).generation
        return [
            f"{generation}.{record.position}.{index}"
            for record in await journal_of(store, RUN)
            for index in range(len(record.events))
        ]


@pytest.mark.usefixtures("default_sigint")
@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGINT], ids=["kill -9", "Ctrl-C"])
async def test_a_watcher_that_was_ended_is_gone_on_from(
    tmp_path: Path, folder: Path, end: signal.Signals
) -> None:
    url = f"sqlite:///{tmp_path}/runs.db"
    async with asyncio.timeout(DEADLINE_SECONDS), Holdfast(url) as client:
        await client.start(flows.gated, {}, id=RUN)
        async with working(url, "gated", lease=600) as worker:
            async with watching(url) as first:
                seen = [json.loads(await line_of(first))]
                assert seen[0]["node"] == GATED_TRAIL[0]
                first.send_signal(end)
                code, more = await ended(first)
                assert more == []
                assert first.stderr is not None
                said = (await first.stderr.read()).decode()
            if end == signal.SIGINT:
                assert code == 1
                assert f"continue with: --after {seen[0]['cursor']}\n" in said
            # This process watches as well, and hears of nothing but by asking.
            here = asyncio.create_task(_all(client))
            async with watching(url, "--after", seen[-1]["cursor"]) as second:
                assert worker.stdin is not None
                worker.stdin.write(b"\n")
                code, lines = await ended(second)
                assert code == 0
            seen += [json.loads(line) for line in lines]
            assert [entry["node"] for entry in seen] == [*GATED_TRAIL, None]
            assert [entry["cursor"] for entry in seen] == await cursors(url) == await here


def listening(url: str, *arguments: str) -> AbstractAsyncContextManager[Process]:
    command = ("-m", "holdfast", "run", "tokens", RUN, "--json", "--url", url)
    return running(*command, *arguments, stderr=PIPE)


async def test_an_answer_is_heard_elsewhere_and_anew_after_its_speaker_was_killed(
    tmp_path: Path, folder: Path
) -> None:
    url = f"sqlite:///{tmp_path}/runs.db"
    options = {"lease": 1.0, "poll": 0.1}
    async with asyncio.timeout(DEADLINE_SECONDS), Holdfast(url) as client:
        await client.start(flows.speaking, {}, id=RUN)
        async with working(url, "speaking", **options) as victim, listening(url) as whole:
            first = json.loads(await line_of(whole))
            assert (first["text"], first["last"]) == (f"{victim.pid} says: ", False)
            victim.kill()
            async with working(url, "speaking", **options) as heir:
                assert heir.stdin is not None
                again = json.loads(await line_of(whole))
                assert (again["text"], again["restarted"]) == (f"{heir.pid} says: ", True)
                # Who goes on where another stopped is told so as well.
                async with listening(url, "--after", first["cursor"]) as later:
                    heir.stdin.write(b"\n")
                    told = [await ended(process) for process in (whole, later)]
    for (code, lines), before in zip(told, (again["text"], ""), strict=True):
        assert code == 0
        pieces = [json.loads(line) for line in lines]
        assert before + "".join(piece["text"] for piece in pieces) == f"{heir.pid} says: so be it"
        assert pieces[-1]["last"]


async def _all(hf: Holdfast) -> list[str]:
    return [entry.cursor async for entry in hf.run(RUN).events()]
