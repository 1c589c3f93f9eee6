"""What notices cost: an idle loop, and one notice."""

from __future__ import annotations

from pathlib import Path

from holdfast import Holdfast, ReviewOptions
from holdfast.clock import ManualClock
from tests.review.notices import Pump, Recorder, ask


def units(hf: Holdfast) -> tuple[float, float]:
    """Return the read and write units so far."""
    report = hf.meter.report().by_purpose()
    return sum(each.reads for each in report.values()), sum(each.writes for each in report.values())


async def test_an_idle_loop_reads_little_and_a_notice_costs_a_few_units(tmp_path: Path) -> None:
    clock, mail = ManualClock(), Recorder()
    options = ReviewOptions(notifiers=[mail], send_in_workers=False)
    async with Holdfast(f"sqlite:///{tmp_path}/runs.db", clock=clock, reviews=options) as hf:
        pump = Pump(hf, clock)
        await pump.poll()
        before = units(hf)
        for _ in range(40):  # ten minutes without any review
            await pump.poll(after=15)
        reads, writes = units(hf)
        assert (reads - before[0], writes - before[1]) == (5.0, 0.0)
        await ask(hf, assignees="ana")
        before = units(hf)
        await pump.poll()
        reads, writes = units(hf)
        assert (reads - before[0], writes - before[1]) == (8.5, 8.0)
        before = units(hf)
        for _ in range(40):
            await pump.poll(after=15)
        reads, writes = units(hf)
        assert (reads - before[0], writes - before[1]) == (65.0, 0.0)
