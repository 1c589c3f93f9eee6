"""What is otherwise in a simulated fleet than at a user's, and why that is as good or better."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from holdfast.model import failure
from holdfast.records import settings

__all__ = ["setting"]


def _plain_trace(error: BaseException, *, engine_frames: bool) -> str:
    """Return an error without the files and lines that it came through.

    A trace names them, and a journal that is some bytes longer is written at other times: the seed
    would mean something else in another folder, or after a line was added somewhere.
    """
    return f"{type(error).__name__}: {error}\n"


@contextmanager
def setting(shards: int) -> Iterator[None]:
    """Cut the due index into few shards, and keep what is written down the same in every place.

    Workers look at every shard at every scan, mostly in vain. With few of them more workers meet at
    one, and it takes less time.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(settings, "SHARDS", shards)
        patch.setattr(failure, "formatted_trace", _plain_trace)
        yield
