"""`FileReader`: reads files segment by segment, in child processes with limits."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Iterable, Sequence
from importlib.util import find_spec

from holdfast.errors import FileRejected, InvalidRequest, NotConfigured
from holdfast.integrations.reading.file_types import MIME_KINDS, FileType
from holdfast.integrations.reading.frames import (
    OutlineFrame,
    ReadRequest,
    RejectedFrame,
    ResultFrame,
    SegmentFrame,
)
from holdfast.integrations.reading.opened_file import OpenedFile
from holdfast.integrations.reading.read_limits import ReadLimits
from holdfast.integrations.reading.read_segments import FileOutline, ReadSegment, SegmentFailure
from holdfast.integrations.reading.reading_child import CHILD_PROGRAM, ReadingChild

__all__ = ["FileReader"]

_LIBRARIES = ("PIL", "docx", "openpyxl", "pptx", "pypdfium2", "trafilatura")
# A child that has parsed so many segments is replaced: parsers keep what they have allocated.
_SEGMENTS_OF_CHILD = 100
# After these, a child does not go on with the next segment.
_ENDS_CHILD = ("memory", "crash")


class FileReader:
    """Reads files that may be hostile.

    Each call parses the file in a child process, which has limits for its memory and time, no
    environment, and no more than the open file. A parser that crashes is the failure of one
    segment. A reader holds nothing, so there is nothing to close.
    """

    def __init__(
        self, limits: ReadLimits | None = None, *, program: Sequence[str] = CHILD_PROGRAM
    ) -> None:
        """Make a reader. ``program`` replaces the command of the child, for tests.

        Raises:
            NotConfigured: the extra ``documents`` is not installed.
        """
        _check_installed()
        self.limits = limits or ReadLimits()
        self._program = tuple(program)

    async def outline(self, path: str | os.PathLike[str], type: FileType | str) -> FileOutline:
        """Check a whole file, and return how many segments it has.

        Raises:
            FileRejected: the file is damaged, hostile, over a limit, or not of this type.
            InvalidRequest: no such type.
        """
        kind = _file_type(type)
        with OpenedFile(path, self.limits) as file:
            if kind.kind in ("audio", "video"):
                return FileOutline(0, kind.kind)
            child = self._child(file, kind)
            try:
                frame = await child.next_frame()
                if frame is None:
                    frame = child.failure()
            finally:
                await child.close()
            file.check_unchanged()
        if isinstance(frame, RejectedFrame):
            raise FileRejected(frame.detail, reason=frame.reason)
        if not isinstance(frame, OutlineFrame):
            raise FileRejected("its parser sent what was not asked for", reason="crash")
        return FileOutline(frame.segments, kind.kind, frame.title)

    async def read(
        self,
        path: str | os.PathLike[str],
        type: FileType | str,
        indices: Iterable[int],
        *,
        images: bool = True,
    ) -> AsyncGenerator[ReadSegment | SegmentFailure]:
        """Yield segments by index, from 0, each once and in ascending order.

        One that cannot be read is a `SegmentFailure`. ``images=False`` makes no images of pages.
        Use `contextlib.aclosing` if you may stop early: it ends the child at once.

        Raises:
            FileRejected: the file cannot be opened, or it was changed while it was read.
            InvalidRequest: no such type, or an index is not a number from 0.
        """
        kind = _file_type(type)
        if kind.kind in ("audio", "video"):
            raise InvalidRequest(f"{kind.mime} has no segments to read: transcribe it")
        asked = _checked_indices(indices)
        crashes = 0
        with OpenedFile(path, self.limits) as file:
            while asked and crashes < self.limits.crashes_max:
                batch = asked[:_SEGMENTS_OF_CHILD]
                child = self._child(file, kind, indices=batch, images=images)
                try:
                    for index in batch:
                        frame = await child.next_frame()
                        file.check_unchanged()
                        result = _result(frame or child.failure(index), index)
                        del asked[0]
                        yield result
                        if frame is None or (
                            isinstance(result, SegmentFailure) and (result.reason in _ENDS_CHILD)
                        ):
                            crashes += 1
                            break
                finally:
                    await child.close()
            for index in asked:
                yield SegmentFailure(
                    index, "crash", f"not tried: {crashes} parsers ended early before it"
                )

    def _child(
        self,
        file: OpenedFile,
        kind: FileType,
        *,
        indices: list[int] | None = None,
        images: bool = True,
    ) -> ReadingChild:
        request = ReadRequest(
            kind=kind.kind,
            mime=kind.mime,
            descriptor=file.descriptor,
            parent=os.getpid(),
            limits=self.limits,
            indices=indices,
            images=images,
        )
        return ReadingChild(request, program=self._program)


def _result(frame: ResultFrame, index: int) -> ReadSegment | SegmentFailure:
    if isinstance(frame, SegmentFrame) and frame.segment.index == index:
        return frame.segment
    if isinstance(frame, RejectedFrame):
        if frame.index is None:
            raise FileRejected(frame.detail, reason=frame.reason)
        if frame.index == index:
            return SegmentFailure(index, frame.reason, frame.detail)
    return SegmentFailure(index, "crash", "its parser sent what was not asked for")


def _file_type(type: FileType | str) -> FileType:
    if isinstance(type, FileType):
        return type
    if isinstance(type, str):
        if type in MIME_KINDS:
            return FileType(type, MIME_KINDS[type])
        for mime, kind in MIME_KINDS.items():
            if kind == type:
                return FileType(mime, kind)
    raise InvalidRequest(
        f"type must be a FileType, a kind such as 'pdf', or a type such as 'application/pdf', "
        f"got {type!r:.120}",
        field="type",
    )


def _checked_indices(indices: Iterable[int]) -> list[int]:
    asked = sorted(set(indices))
    for index in asked:
        if isinstance(index, bool) or not isinstance(index, int) or index < 0:
            raise InvalidRequest(
                f"indices must be whole numbers from 0, got {index!r:.80}", field="indices"
            )
    return asked


def _check_installed() -> None:
    missing = [name for name in _LIBRARIES if find_spec(name) is None]
    if missing:
        raise NotConfigured(
            f"reading files needs {', '.join(missing)}: pip install 'holdfast[documents]'",
            what="documents",
        )
