"""Checks of the arguments of `Documents`, before anything is read or written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypedDict, TypeVar, cast

import msgspec

from holdfast.errors import InvalidQuery, InvalidRequest
from holdfast.model.document import (
    PREPROCESS_STAGES,
    STEP_STATUSES,
    STEPS,
    WORKFLOW_STATUSES,
    DocumentPlace,
    StepName,
    StepStatus,
    WorkflowStatus,
)
from holdfast.records.blob_keys import document_blobs_of
from holdfast.records.document_keys import SEGMENT_INDEX_MAX
from holdfast.records.document_workflow import ChangeRequest

__all__ = [
    "ERROR_BYTES_MAX",
    "STEP_ERROR_BYTES_MAX",
    "URI_BYTES_MAX",
    "FileFields",
    "cut_text",
    "validated_analysis",
    "validated_attempt",
    "validated_change",
    "validated_count",
    "validated_execution_arn",
    "validated_file",
    "validated_index",
    "validated_place",
    "validated_preprocess",
    "validated_retention_days",
    "validated_segment_status",
    "validated_status_filter",
    "validated_step",
    "validated_steps",
    "validated_text",
    "validated_total",
    "validated_uri",
    "validated_workflow_status",
]

T = TypeVar("T", bound=str)

ERROR_BYTES_MAX = 1_024
STEP_ERROR_BYTES_MAX = 400
URI_BYTES_MAX = 2_048
_COUNT_MAX = 10**12
_RETENTION_DAYS_MAX = 36_500
_ARN_BYTES_MAX = 256
_FILE_NAME_BYTES_MAX = 512
_FILE_TYPE_BYTES_MAX = 128


class FileFields(TypedDict):
    """The fields of a document that describe its file."""

    file_uri: str
    file_name: str
    file_type: str
    file_bytes: int | None


def validated_text(text: object, field: str, *, bytes_max: int, empty: bool = False) -> str:
    """Return text that is not too long, and that UTF-8 can express.

    Raises:
        InvalidRequest: it is not.
    """
    if not isinstance(text, str):
        raise InvalidRequest(f"{field} must be text, got {type(text).__name__}", field=field)
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        raise InvalidRequest(
            f"{field} must not contain a lone surrogate, got {text!r:.80}", field=field
        ) from None
    if size > bytes_max:
        raise InvalidRequest(
            f"{field} must have at most {bytes_max:,} bytes, got {size:,}",
            field=field,
            size=size,
            limit=bytes_max,
        )
    if not text.strip() and not empty:
        raise InvalidRequest(f"{field} must not be empty, got {text!r:.80}", field=field)
    return str(text)


def cut_text(text: object, field: str, *, bytes_max: int) -> str | None:
    """Return a message of an error, cut to what an item keeps; None for none.

    Raises:
        InvalidRequest: it is not text.
    """
    if text is None or text == "":
        return None
    if not isinstance(text, str):
        raise InvalidRequest(f"{field} must be text, got {type(text).__name__}", field=field)
    # Errors of parsers may have bytes that UTF-8 cannot express.
    encoded = text[:bytes_max].encode("utf-8", "replace")
    return encoded[:bytes_max].decode("utf-8", "ignore") or None


def validated_workflow_status(status: object) -> WorkflowStatus:
    """Return a status of a workflow.

    Raises:
        InvalidRequest: there is no such status.
    """
    return _one_of(status, WORKFLOW_STATUSES, "status")


def validated_segment_status(status: object) -> StepStatus:
    """Return a status of a segment.

    Raises:
        InvalidRequest: there is no such status.
    """
    return _one_of(status, STEP_STATUSES, "status")


def validated_step(step: object) -> StepName:
    """Return the name of a step.

    Raises:
        InvalidRequest: there is no such step.
    """
    return _one_of(step, STEPS, "step")


def validated_steps(steps: object) -> tuple[StepName, ...]:
    """Return the names of steps; None means all.

    Raises:
        InvalidRequest: there is no such step, or it is not a list.
    """
    if steps is None:
        return STEPS
    if isinstance(steps, str) or not isinstance(steps, Sequence):
        raise InvalidRequest(f"steps must be a list of steps, got {steps!r:.80}", field="steps")
    names: list[StepName] = [_one_of(step, STEPS, "steps") for step in cast(Sequence[Any], steps)]
    return tuple(dict.fromkeys(names))


def validated_preprocess(preprocess: object) -> dict[str, StepStatus]:
    """Return the status of stages of the preprocessing.

    Raises:
        InvalidRequest: there is no such stage or status.
    """
    if preprocess is None:
        return {}
    if not isinstance(preprocess, Mapping):
        raise InvalidRequest(
            f"preprocess must be a dict of stages and statuses, got {preprocess!r:.80}",
            field="preprocess",
        )
    return {
        _one_of(stage, PREPROCESS_STAGES, "preprocess"): _one_of(
            status, STEP_STATUSES, "preprocess"
        )
        for stage, status in cast(Mapping[Any, Any], preprocess).items()
    }


def validated_index(index: object, field: str = "index", *, least: int = 1) -> int:
    """Return the index of a segment.

    Raises:
        InvalidRequest: not an integer from 1 to 9,999,999.
    """
    if type(index) is not int or not least <= index <= SEGMENT_INDEX_MAX:
        raise InvalidRequest(
            f"{field} must be an integer from {least} to {SEGMENT_INDEX_MAX:,}, got {index!r:.80}",
            field=field,
        )
    return index


def validated_total(total: object) -> int | None:
    """Return the number of segments; None if it is not given.

    Raises:
        InvalidRequest: not an integer from 0 to 9,999,999.
    """
    return None if total is None else validated_index(total, "total_segments", least=0)


def validated_count(count: object, field: str) -> int:
    """Return a number of parts or bytes.

    Raises:
        InvalidRequest: not an integer from 0 on.
    """
    if type(count) is not int or not 0 <= count <= _COUNT_MAX:
        raise InvalidRequest(
            f"{field} must be an integer from 0 to {_COUNT_MAX:,}, got {count!r:.80}", field=field
        )
    return count


def validated_attempt(attempt: object) -> int | None:
    """Return the attempt that a writer works for.

    Raises:
        InvalidRequest: not an integer from 1 on.
    """
    if attempt is not None and (type(attempt) is not int or attempt < 1):
        raise InvalidRequest(
            f"attempt must be an integer from 1 on, got {attempt!r:.80}", field="attempt"
        )
    return attempt


def validated_execution_arn(arn: object) -> str | None:
    """Return the id of a run, or the ARN of an execution; None if it is not given.

    Raises:
        InvalidRequest: it is empty or too long.
    """
    if arn is None:
        return None
    return validated_text(arn, "execution_arn", bytes_max=_ARN_BYTES_MAX)


def validated_retention_days(days: object) -> int | None:
    """Return how many days documents are kept; None keeps them.

    Raises:
        InvalidRequest: not an integer from 1 to 36,500.
    """
    if days is not None and (type(days) is not int or not 1 <= days <= _RETENTION_DAYS_MAX):
        raise InvalidRequest(
            f"retention_days must be an integer from 1 to {_RETENTION_DAYS_MAX:,} or None, got "
            f"{days!r:.80}",
            field="retention_days",
        )
    return days


def validated_place(place: object, tenant: str, *, id: object) -> DocumentPlace:
    """Return the place of a document to add.

    Raises:
        InvalidRequest: it is not one, or one of another tenant or id.
    """
    if not isinstance(place, DocumentPlace):
        raise InvalidRequest(
            f"place must be what place() returned, got {place!r:.80}", field="place"
        )
    if id not in (None, place.id):
        raise InvalidRequest(
            f"id must be that of the place, {place.id!r:.160}, or be left out, got {id!r:.80}",
            field="id",
        )
    blobs = document_blobs_of(f"{place.prefix}x")
    if blobs is None or blobs != (tenant, place.id, place.generation):
        raise InvalidRequest(
            f"place must be what place() returned for tenant {tenant!r}, got {place!r:.200}",
            field="place",
        )
    return place


def validated_analysis(analysis: object) -> list[Any]:
    """Return the results of an analysis as plain JSON values.

    Raises:
        InvalidRequest: not a list, or it has values that JSON does not have.
    """
    if isinstance(analysis, str | bytes) or not isinstance(analysis, Sequence):
        raise InvalidRequest(
            f"image_analysis must be a list, got {type(analysis).__name__}", field="image_analysis"
        )
    try:
        values: list[Any] = msgspec.json.decode(msgspec.json.encode(list(cast(Any, analysis))))
    except (TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError) as error:
        raise InvalidRequest(
            f"image_analysis must have values of JSON only: {error!s:.200}",
            field="image_analysis",
        ) from None
    return values


def validated_uri(uri: object, field: str) -> str | None:
    """Return the address of content; None if it is not given.

    Raises:
        InvalidRequest: it is empty or too long.
    """
    return None if uri is None else validated_text(uri, field, bytes_max=URI_BYTES_MAX)


def validated_file(*, uri: object, name: object, type: object, size: object) -> FileFields:
    """Return the fields of a document that describe its file.

    Raises:
        InvalidRequest: a value is wrong; ``field`` says which.
    """
    return FileFields(
        file_uri=validated_text(uri, "file_uri", bytes_max=URI_BYTES_MAX),
        file_name=validated_text(name, "file_name", bytes_max=_FILE_NAME_BYTES_MAX),
        file_type=validated_text(type, "file_type", bytes_max=_FILE_TYPE_BYTES_MAX),
        file_bytes=None if size is None else validated_count(size, "file_bytes"),
    )


def validated_change(
    status: WorkflowStatus | None,
    *,
    total_segments: object,
    execution_arn: object,
    preprocess: object,
    error: object = None,
    attempt: object,
) -> ChangeRequest:
    """Return a change of a workflow; with None as the status, it stays.

    Raises:
        InvalidRequest: a value is wrong; ``field`` says which.
    """
    return ChangeRequest(
        status=status,
        total_segments=validated_total(total_segments),
        execution_arn=validated_execution_arn(execution_arn),
        preprocess=validated_preprocess(preprocess),
        error=cut_text(error, "error", bytes_max=ERROR_BYTES_MAX),
        attempt=validated_attempt(attempt),
    )


def _one_of(value: object, known: Sequence[T], field: str) -> T:
    if not isinstance(value, str) or value not in known:
        raise InvalidRequest(
            f"{field} must be one of {', '.join(known)}, got {value!r:.80}", field=field
        )
    return cast(T, value)


def validated_status_filter(status: object) -> WorkflowStatus:
    """Return the status of the workflows that a list shows.

    Raises:
        InvalidQuery: there is no such status.
    """
    try:
        return validated_workflow_status(status)
    except InvalidRequest as error:
        raise InvalidQuery(str(error), field="status") from None
