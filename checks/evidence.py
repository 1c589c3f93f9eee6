"""Records what the simulator ran, and keeps docs/reliability.md true to it.

``python -m checks.evidence --run`` runs 1,000 seeds and every planted bug on all cores, writes
docs/evidence.json, and writes its figures into the page. It takes about ten minutes.

``python -m checks.evidence`` runs nothing. It fails if the page differs from the recorded figures,
or if a planted bug was added or removed since. ``make check`` does this.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import re
import subprocess
import sys
from collections import Counter
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

from holdfast.clock import SystemClock
from tests.simulation.bugs import BUGS, planted
from tests.simulation.seeds import pool, told_of

__all__ = ["filled", "problems"]

ROOT = Path(__file__).resolve().parent.parent
RECORD = ROOT / "docs" / "evidence.json"
PAGE = ROOT / "docs" / "reliability.md"
SEEDS = 1_000
SEEDS_A_BUG = 150
_BEGIN, _END = "<!-- recorded: {} -->", "<!-- end -->"
_PROMISE = re.compile(r"P\d+(?=: )")
# What a bug breaks that is no numbered promise, by the file in tests/simulation/bugs.
_SUBJECTS = {
    "budgets": "budgets",
    "choices": "signals",
    "effects": "budgets, quotas",
    "inboxes": "inboxes",
    "kernel": "children, sessions",
    "maps": "maps",
    "memory": "quotas",
    "reviews": "reviews",
    "signals": "signals",
    "stores": "outages",
    "strangers": "usage",
    "telling": "shared answers, text",
    "workers": "quarantine",
}


def problems() -> list[str]:
    """Return why the page cannot be believed, one line for each reason."""
    record = json.loads(RECORD.read_text())
    found: list[str] = []
    if filled(PAGE.read_text(), record) != PAGE.read_text():
        found.append("docs/reliability.md differs from docs/evidence.json")
    recorded, present = set(record["bugs"]), set(BUGS)
    found += [f"the planted bug {name} was never run" for name in sorted(present - recorded)]
    found += [f"the planted bug {name} is gone" for name in sorted(recorded - present)]
    return found


def filled(page: str, record: dict[str, Any]) -> str:
    """Return the page with the recorded figures between its markers."""
    for name, lines in _sections(record).items():
        begin = _BEGIN.format(name)
        before, found, rest = page.partition(begin)
        if not found:
            raise ValueError(f"the page has no marker {begin}")
        _, _, after = rest.partition(_END)
        page = "\n".join([f"{before}{begin}", *lines, f"{_END}{after}"])
    return page


def _sections(record: dict[str, Any]) -> dict[str, list[str]]:
    first, last = record["seeds"]
    seeds = last - first + 1
    return {
        "seeds": [
            f"On {record['date']}, at commit `{record['commit']}`: seeds {first} to {last}, "
            f"{record['broken']} broken, {record['milliseconds_per_seed']} ms for each seed.",
        ],
        "faults": [
            "| fault | times | | fault | times |",
            "|---|---|---|---|---|",
            *_pairs(record["faults"]),
        ],
        "situations": [
            f"{len(record['situations'])} kinds of situations came about in these {seeds:,} seeds. "
            "The rarest twelve:",
            "",
            "| situation | times |",
            "|---|---|",
            *(
                f"| {name} | {count:,} |"
                for name, count in sorted(record["situations"].items(), key=_by_count)[:12]
            ),
        ],
        "bugs": [
            f"All {len(record['bugs'])} were found, the median one by seed "
            f"{sorted(bug['seed'] for bug in record['bugs'].values())[len(record['bugs']) // 2]}.",
            "",
            "| planted bug | the promise that it breaks | found by seed |",
            "|---|---|---|",
            *(
                f"| {name.replace('_', ' ')} | {bug['promise']} | {bug['seed']} |"
                for name, bug in sorted(record["bugs"].items(), key=_by_promise)
            ),
        ],
    }


def _pairs(counts: dict[str, int]) -> list[str]:
    rows = [f"| {name} | {count:,} |" for name, count in sorted(counts.items())]
    half = -(-len(rows) // 2)
    right = [*rows[half:], "| | |"][:half]
    return [f"{left} {other}" for left, other in zip(rows[:half], right, strict=True)]


def _by_count(entry: tuple[str, int]) -> tuple[int, str]:
    return entry[1], entry[0]


def _by_promise(entry: tuple[str, dict[str, Any]]) -> tuple[str, str]:
    return entry[1]["promise"], entry[0]


# --- running --------------------------------------------------------------------------------------


def _run() -> dict[str, Any]:
    """Run the seeds and the planted bugs; return what came of them."""
    logging.disable()
    jobs = os.cpu_count() or 1
    faults: Counter[str] = Counter()
    situations: Counter[str] = Counter()
    broken, began = list[str](), perf_counter()
    with told_of(range(SEEDS), None, jobs) as every:
        for told in every:
            faults += told.faults
            situations += told.seen
            if told.broken is not None:
                broken.append(f"seed {told.seed}: {told.broken}")
    seconds = perf_counter() - began
    for line in broken:
        print(line, file=sys.stderr)
    bugs = _run_bugs(jobs)
    git = partial(subprocess.run, cwd=ROOT, capture_output=True, text=True, check=True)
    now = datetime.fromtimestamp(SystemClock().now_ms() / 1000, UTC)
    return {
        "date": now.date().isoformat(),
        "commit": git(["git", "rev-parse", "--short=12", "HEAD"]).stdout.strip(),
        "seeds": [0, SEEDS - 1],
        "broken": len(broken),
        "milliseconds_per_seed": round(seconds * 1000 / SEEDS),
        "faults": dict(sorted(faults.items())),
        "situations": dict(sorted(situations.items())),
        "bugs": bugs,
    }


def _run_bugs(jobs: int) -> dict[str, dict[str, Any]]:
    processes = pool(jobs)
    try:
        return dict(zip(BUGS, processes.map(_find_bug, BUGS), strict=True))
    finally:
        processes.shutdown(cancel_futures=True)


def _find_bug(name: str) -> dict[str, Any]:
    """Plant a bug; return the first seed that finds it, and the promise that it breaks there."""
    with planted(name) as bug:
        for seed in range(SEEDS_A_BUG):
            broken = bug.breaks(seed)
            if broken is not None:
                promise = _PROMISE.match(str(broken))
                subject = _SUBJECTS[bug.plant.__module__.rpartition(".")[2]]
                return {"seed": seed, "promise": promise.group() if promise else subject}
    raise RuntimeError(f"{name} was not found in {SEEDS_A_BUG} seeds")


def main() -> None:
    """Check the page, or run everything and write it anew."""
    parser = argparse.ArgumentParser(prog="python -m checks.evidence", description=__doc__)
    parser.add_argument("--run", action="store_true", help="run the simulator, and write the page")
    parser.add_argument("--render", action="store_true", help="write the page from the record")
    asked = parser.parse_args()
    if asked.run:
        RECORD.write_text(json.dumps(_run(), indent=1) + "\n")
    if asked.run or asked.render:
        PAGE.write_text(filled(PAGE.read_text(), json.loads(RECORD.read_text())))
    found = problems()
    for problem in found:
        print(f"{problem}: run `make evidence`")
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
