"""How much memory a process took at most."""

from __future__ import annotations

import resource
from pathlib import Path

__all__ = ["peak_mb"]

_STATUS = Path("/proc/self/status")


def peak_mb() -> float:
    """Return the most that this process had in memory so far.

    Linux counts into ``ru_maxrss`` what the process was before it became this program, a copy of
    its parent; so it is asked otherwise there.
    """
    if _STATUS.exists():
        (line,) = (line for line in _STATUS.read_text().splitlines() if line.startswith("VmHWM"))
        return int(line.split()[1]) / 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
