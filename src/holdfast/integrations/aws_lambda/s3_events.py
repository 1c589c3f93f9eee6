"""The uploads that an event of S3 tells of: direct, from EventBridge, or wrapped by SQS or SNS."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, cast
from urllib.parse import unquote_plus

import msgspec

from holdfast.errors import InvalidRequest
from holdfast.integrations.aws_lambda.invocation import shape_of

__all__ = ["S3Message", "S3Object", "messages_of", "object_id", "s3_objects"]

# An envelope in an envelope in an envelope: S3 to SNS to SQS. More is no event of AWS.
_ENVELOPES_MAX = 3
_KEY_BYTES_MAX = 1_024


def object_id(bucket: str, key: str, version: str) -> str:
    """Return the id of the run of an object: a digest of its bucket, key and version.

    A key is no run id: it may have slashes and 1,024 bytes.
    """
    named = msgspec.json.encode((bucket, key, version))
    return hashlib.blake2b(named, digest_size=20).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class S3Object:
    """An object that was uploaded to a bucket."""

    bucket: str
    key: str
    """As the uploader wrote it, decoded."""
    version_id: str = ""
    """Empty in a bucket without versions."""
    sequencer: str = ""
    """Orders the events of one key; each upload has another one."""
    etag: str = ""
    size: int = 0
    """In bytes."""

    @property
    def version(self) -> str:
        """What tells this upload from others under the same key."""
        return self.version_id or self.sequencer or self.etag

    @property
    def id(self) -> str:
        """The id of its run: `object_id` of its bucket, key and version."""
        return object_id(self.bucket, self.key, self.version)

    @property
    def uri(self) -> str:
        """Its address: ``s3://bucket/key``."""
        return f"s3://{self.bucket}/{self.key}"


class S3Message(NamedTuple):
    """What one message of a queue, or an event without a queue, tells of."""

    id: str | None
    """The id of the message in its queue; None without a queue."""
    objects: tuple[S3Object, ...]
    errors: tuple[InvalidRequest, ...]
    """What cannot be understood."""


def s3_objects(event: Any) -> list[S3Object]:
    """Return the uploads that an event of S3 tells of, as `s3_trigger` finds them.

    The event comes from S3 itself, from EventBridge, or in messages of SQS or SNS. Deletions, the
    test event of S3 and the empty objects that stand for folders are left out.

    Raises:
        InvalidRequest: it is no event of S3, or a part of it is none.
    """
    messages = messages_of(event)
    if errors := [error for message in messages for error in message.errors]:
        raise errors[0]
    return [uploaded for message in messages for uploaded in message.objects]


def messages_of(event: Any) -> list[S3Message]:
    """Return the messages of an event: one for each message of a queue, otherwise one.

    Only uploads count. Deletions, other events of S3, its test event and the empty objects that
    stand for folders are left out.

    Raises:
        InvalidRequest: it is no event of S3, and none that wraps one.
    """
    records = _list_in(event, "Records")
    if records and all(_is_from(record, "aws:sqs") for record in records):
        return [_queued(record) for record in records]
    objects, errors = _sorted_out(_found(event, 0))
    if errors and records is None:
        raise errors[0]
    return [S3Message(None, objects, errors)]


def _queued(record: Any) -> S3Message:
    body = _parsed(record.get("body"), "the body of a message")
    found = [body] if isinstance(body, InvalidRequest) else _found(body, 1)
    return S3Message(str(record.get("messageId", "")), *_sorted_out(found))


def _sorted_out(
    found: Iterable[S3Object | InvalidRequest],
) -> tuple[tuple[S3Object, ...], tuple[InvalidRequest, ...]]:
    objects: list[S3Object] = []
    errors: list[InvalidRequest] = []
    for each in found:
        if isinstance(each, InvalidRequest):
            errors.append(each)
        elif each.size or not each.key.endswith("/"):
            objects.append(each)
    return tuple(objects), tuple(errors)


def _found(event: Any, depth: int) -> Iterator[S3Object | InvalidRequest]:
    """Yield the uploads of an event, and what in it cannot be understood."""
    match event:
        case {"Event": "s3:TestEvent"}:
            return
        case {"source": "aws.s3", "detail-type": kind}:
            if kind == "Object Created":
                yield _from_event_bridge(event.get("detail"))
        case {"Type": "Notification", "Message": message} if depth < _ENVELOPES_MAX:
            yield from _unwrapped(message, depth)
        case {"Records": list()}:
            for record in cast("list[Any]", event["Records"]):
                yield from _of_record(record, depth)
        case _:
            yield InvalidRequest(
                "event must be an event of S3, or a message of SQS or SNS with one, got "
                f"{shape_of(event)}",
                field="event",
            )


def _of_record(record: Any, depth: int) -> Iterator[S3Object | InvalidRequest]:
    match record:
        case {"eventSource": "aws:s3", "eventName": str(name)}:
            if name.removeprefix("s3:").startswith("ObjectCreated:"):
                yield _from_record(record.get("s3"))
        case {"EventSource": "aws:sns", "Sns": {"Message": message}} if depth < _ENVELOPES_MAX:
            yield from _unwrapped(message, depth)
        case _:
            yield InvalidRequest(
                f"a record must be an event of S3, got {shape_of(record)}", field="Records"
            )


def _unwrapped(message: Any, depth: int) -> Iterator[S3Object | InvalidRequest]:
    parsed = _parsed(message, "the message of a notification")
    if isinstance(parsed, InvalidRequest):
        yield parsed
    else:
        yield from _found(parsed, depth + 1)


def _from_record(told: Any) -> S3Object | InvalidRequest:
    match told:
        case {"bucket": {"name": str(bucket)}, "object": {"key": str(key), **rest}}:
            # S3 writes keys into these events as into the query of a URL.
            try:
                key = unquote_plus(key, errors="strict")
            except UnicodeDecodeError:
                return _misfit(told)
            return _object(bucket, key, rest, version="versionId", etag="eTag")
        case _:
            return _misfit(told)


def _from_event_bridge(told: Any) -> S3Object | InvalidRequest:
    match told:
        case {"bucket": {"name": str(bucket)}, "object": {"key": str(key), **rest}}:
            return _object(bucket, key, rest, version="version-id", etag="etag")
        case _:
            return _misfit(told)


def _object(
    bucket: str, key: str, rest: dict[Any, Any], *, version: str, etag: str
) -> S3Object | InvalidRequest:
    version_id = rest.get(version)
    size = rest.get("size")
    try:
        is_key = 0 < len(key.encode()) <= _KEY_BYTES_MAX
        bucket.encode()
    except UnicodeEncodeError:
        is_key = False
    if not is_key or not isinstance(version_id, str | None):
        return InvalidRequest(
            f"a record of S3 must have a key of 1 to {_KEY_BYTES_MAX:,} bytes of UTF-8 and a "
            f"version that is a text, if any; got a key of {len(key):,} characters and a version "
            f"of type {type(version_id).__name__}",
            field="s3",
        )
    return S3Object(
        bucket=bucket,
        key=key,
        # In a bucket whose versions are suspended, every upload has the version "null".
        version_id="" if version_id in (None, "null") else version_id,
        sequencer=str(rest.get("sequencer", "")),
        etag=str(rest.get(etag, "")),
        size=size if isinstance(size, int) else 0,
    )


def _misfit(told: Any) -> InvalidRequest:
    return InvalidRequest(
        f"a record of S3 must name a bucket and an object, got {shape_of(told)}", field="s3"
    )


def _parsed(text: Any, what: str) -> Any:
    """Return the value of a JSON text, or an error if there is none."""
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, TypeError, UnicodeError, RecursionError):
        return InvalidRequest(f"{what} must be JSON", field="event")


def _list_in(event: Any, name: str) -> list[Any] | None:
    found = cast("dict[str, Any]", event).get(name) if isinstance(event, dict) else None
    return cast("list[Any]", found) if isinstance(found, list) else None


def _is_from(record: Any, source: str) -> bool:
    return isinstance(record, dict) and cast("Any", record).get("eventSource") == source
