"""The child process of a reader: what it gets, and what becomes of a crash, a hang or lies."""

from __future__ import annotations

import asyncio
import os
import select
import signal
import subprocess
import sys
from contextlib import aclosing
from pathlib import Path

import pytest

from holdfast.errors import FileRejected
from holdfast.integrations.reading import (
    FileReader,
    ReadLimits,
    ReadSegment,
    SegmentFailure,
)
from tests.integrations.reading.made_files import pdf, written

# A program in the place of the child. `send` writes a message, with any sizes.
STUB = """
import json, os, resource, signal, struct, sys
request = json.loads(sys.stdin.buffer.readline())
def send(frame, header_bytes=None, image=b""):
    header = json.dumps(frame).encode()
    sizes = struct.pack(">II", header_bytes or len(header), len(image))
    sys.stdout.buffer.write(sizes + header + image)
    sys.stdout.buffer.flush()
def segment(index, **fields):
    send({"type": "segment", "segment": {"index": index, **fields}})
def hang():
    os.read(0, 1)
    signal.pause()
"""
SECONDS = 60


def stub(code: str, **limits: float) -> FileReader:
    return FileReader(
        ReadLimits(**limits),  # pyright: ignore[reportArgumentType]
        program=(sys.executable, "-c", STUB + code),
    )


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return written(tmp_path, "a.pdf", pdf(["x"]))


async def results(reader: FileReader, path: Path, count: int) -> list[ReadSegment | SegmentFailure]:
    async with asyncio.timeout(SECONDS):
        return [each async for each in reader.read(path, "pdf", range(count))]


CRASH_AT_2 = """
for index in request["indices"]:
    if index == 2:
        os.kill(os.getpid(), signal.SIGSEGV)
    segment(index)
"""


async def test_a_crash_is_the_failure_of_one_segment(path: Path) -> None:
    found = await results(stub(CRASH_AT_2), path, 5)
    assert [each.index for each in found] == [0, 1, 2, 3, 4]
    assert [isinstance(each, SegmentFailure) for each in found] == [
        False,
        False,
        True,
        False,
        False,
    ]
    assert found[2] == SegmentFailure(2, "crash", "its parser crashed (SIGSEGV)")


async def test_a_crash_rejects_the_file_when_its_outline_was_asked_for(path: Path) -> None:
    with pytest.raises(FileRejected, match="SIGABRT") as rejected:
        await stub("os.abort()").outline(path, "pdf")
    assert rejected.value.reason == "crash"


async def test_after_several_crashes_the_rest_is_not_tried(path: Path) -> None:
    found = await results(stub("os.abort()", crashes_max=3), path, 1_000)
    assert [each.index for each in found] == list(range(1_000))
    assert {type(each) for each in found} == {SegmentFailure}
    assert "SIGABRT" in str(found[2])
    assert "not tried: 3 parsers ended early" in str(found[3])


async def test_a_parser_that_hangs_is_killed(path: Path) -> None:
    code = "if 0 in request['indices']: segment(0); hang()\nfor i in request['indices']: segment(i)"
    found = await results(stub(code, wall_seconds=0.5), path, 3)
    assert found[1] == SegmentFailure(1, "time", "it took longer than 0.5 s")
    assert isinstance(found[2], ReadSegment)


async def test_a_parser_that_uses_too_much_time_is_killed_by_the_system(path: Path) -> None:
    code = "resource.setrlimit(resource.RLIMIT_CPU, (1, 2))\nwhile True: pass"
    with pytest.raises(FileRejected, match="of a processor") as rejected:
        await stub(code).outline(path, "pdf")
    assert rejected.value.reason == "time"


async def test_a_parser_without_memory_ends_and_the_next_one_goes_on(path: Path) -> None:
    code = """
for index in request["indices"]:
    if index == 1:
        send({"type": "rejected", "reason": "memory", "detail": "too much", "index": 1})
        os._exit(1)
    segment(index)
"""
    found = await results(stub(code), path, 3)
    assert found[1] == SegmentFailure(1, "memory", "too much")
    assert isinstance(found[2], ReadSegment)


@pytest.mark.parametrize(
    "lie",
    [
        "segment(7)",
        "send({'type': 'outline', 'segments': 3})",
        "send({'type': 'segment', 'segment': {'index': 'x'}})",
        "send({'type': 'rejected', 'reason': 'anything', 'detail': 'x', 'index': 0})",
        "send({'type': 'pickle'})",
        "send({'type': 'segment', 'segment': {'index': 0}}, header_bytes=2**32 - 1)",
        "send({'type': 'segment', 'segment': {'index': 0, 'text': 'x' * 10**6}})",
        "sys.stdout.buffer.write(b'x' * 10**6); sys.stdout.buffer.flush()",
        "send({'type': 'segment', 'segment': {'index': 0}}, image=bytes(10**7))",
        "sys.exit(0)",
    ],
)
async def test_a_child_that_lies_costs_one_segment(lie: str, path: Path) -> None:
    reader = stub(lie, text_chars_max=1_000, image_pixels_max=1_000, crashes_max=1)
    (found,) = await results(reader, path, 1)
    assert isinstance(found, SegmentFailure)
    assert found.reason == "crash"


async def test_a_child_has_neither_the_environment_nor_other_files(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "a secret")
    code = """
files = [os.readlink(f"/proc/self/fd/{name}") for name in os.listdir("/proc/self/fd")
         if os.path.exists(f"/proc/self/fd/{name}")]
segment(0, text=json.dumps([sorted(os.environ), files, os.getcwd(), os.listdir()]))
"""
    secret = os.open(path.parent / "ordinary", os.O_CREAT | os.O_RDWR)
    try:
        os.set_inheritable(secret, False)
        (found,) = await results(stub(code), path, 1)
    finally:
        os.close(secret)
    assert isinstance(found, ReadSegment)
    assert "AWS" not in found.text
    assert "a.pdf" in found.text
    assert "ordinary" not in found.text
    assert "holdfast-reading-" in found.text


async def test_a_reader_that_stops_early_leaves_no_child(path: Path) -> None:
    code = "segment(0, text=str(os.getpid()))\nhang()"
    async with aclosing(stub(code).read(path, "pdf", [0, 1])) as segments:
        first = await anext(segments)
    assert isinstance(first, ReadSegment)
    assert_gone(int(first.text))


async def test_a_cancelled_reader_leaves_no_child(path: Path) -> None:
    first: asyncio.Future[ReadSegment] = asyncio.get_running_loop().create_future()

    async def read() -> None:
        reader = stub("segment(0, text=str(os.getpid()))\nhang()")
        async with aclosing(reader.read(path, "pdf", [0, 1])) as segments:
            async for segment in segments:
                assert isinstance(segment, ReadSegment)
                first.set_result(segment)

    task = asyncio.create_task(read())
    async with asyncio.timeout(SECONDS):
        child = int((await first).text)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert_gone(child)


def assert_gone(process: int) -> None:
    """A child that has been waited for has no entry in the table of processes."""
    with pytest.raises(ProcessLookupError):
        os.kill(process, 0)


async def test_a_caller_may_be_slower_than_its_child(path: Path) -> None:
    code = """
for index in request["indices"]:
    segment(index, text="x" * 100_000)
"""
    async with aclosing(stub(code).read(path, "pdf", range(50))) as segments:
        for expected in range(50):
            segment = await anext(segments)
            assert isinstance(segment, ReadSegment)
            assert (segment.index, len(segment.text)) == (expected, 100_000)


PARENT = """
import asyncio, sys
from holdfast.integrations.reading import FileReader
async def main():
    reader = FileReader(program=(sys.executable, "-c", sys.argv[2]))
    async for segment in reader.read(sys.argv[1], "pdf", [0, 1]):
        print(segment.text, flush=True)
asyncio.run(main())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="by prctl, which only Linux has")
def test_a_child_does_not_outlive_its_parent(path: Path) -> None:
    """The parent is killed; the child's output ends when the child does."""
    source = Path(__file__).parents[3] / "src"
    code = (
        f"import sys; sys.path.insert(0, {str(source)!r})\n{STUB}"
        "from holdfast.integrations.reading.confinement import die_with_parent\n"
        "die_with_parent(request['parent'])\n"
        "segment(0, text='started')\n"
        "import ctypes\n"
        "ctypes.PyDLL(None).pause()\n"  # holds the lock of Python: no thread of the child runs
    )
    with subprocess.Popen(
        [sys.executable, "-c", PARENT, str(path), code],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(source)},
    ) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == "started\n"
        children = Path(f"/proc/{parent.pid}/task/{parent.pid}/children").read_text().split()
        assert len(children) == 1
        watched = os.pidfd_open(int(children[0]))
        parent.send_signal(signal.SIGKILL)
        parent.wait(SECONDS)
    assert select.select([watched], [], [], SECONDS)[0], "the child still runs"
    os.close(watched)
