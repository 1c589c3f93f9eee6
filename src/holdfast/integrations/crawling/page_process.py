"""The program that reads pages: one process with limits, that answers one task after another.

It reads frames from standard input and writes frames to standard output: a length of four bytes,
then as many bytes. A task is a frame with a `PageTask`, and a frame with the body. The answer is a
frame with `PageContents`, or with an error's text. It ends with its input.
"""

from __future__ import annotations

import os
import re
import sys
from typing import IO

import msgspec

from holdfast.integrations.crawling.page_reading import read_page
from holdfast.integrations.crawling.page_tasks import LENGTH, PageAnswer, PageTask
from holdfast.integrations.reading.confinement import confine, die_with_parent, limit_cpu

__all__ = ["main"]

_UNPRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff]")


def main(parent: int, memory_bytes: int, seconds: float) -> None:
    """Answer tasks until the input ends."""
    die_with_parent(parent, watches_input=False)
    source, sink = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)  # what a library prints is no answer
    os.dup2(nowhere, 2)
    confine(memory_bytes)
    while (head := _frame(source)) is not None:
        body = _frame(source)
        if body is None:
            return
        limit_cpu(seconds)
        answer = msgspec.json.encode(_answer(head, body))
        sink.write(LENGTH.pack(len(answer)) + answer)
        sink.flush()


def _answer(head: bytes, body: bytes) -> PageAnswer:
    try:
        return PageAnswer(contents=read_page(body, msgspec.json.decode(head, type=PageTask)))
    except MemoryError:
        return PageAnswer(error="it needs too much memory")
    except RecursionError:
        return PageAnswer(error="it is nested too deeply")
    except Exception as error:
        return PageAnswer(error=_UNPRINTABLE.sub("", f"{type(error).__name__}: {error}")[:300])


def _frame(source: IO[bytes]) -> bytes | None:
    prefix = source.read(LENGTH.size)
    if len(prefix) < LENGTH.size:
        return None
    (size,) = LENGTH.unpack(prefix)
    content = source.read(size)
    return content if len(content) == size else None


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]))
