"""What reviewers are asked and shown about calls that need an approval."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, cast

import msgspec

from holdfast.engine.effects.call_host import CallRequest
from holdfast.engine.runs.review_arguments import validated_question
from holdfast.errors import ArgumentsTooLarge, InvalidRequest
from holdfast.graph.approval import ToolApproval
from holdfast.graph.mismatch import Mismatch, TooLarge
from holdfast.graph.tool_form import ARGUMENTS_BYTES_MAX, FilledForm
from holdfast.graph.values import durable
from holdfast.model.people import validated_quorum
from holdfast.records.review import ReviewContent, ToolArguments
from holdfast.redaction import REDACTED, is_secret_name, without_credentials

__all__ = ["approval_content", "approval_of", "filled_form"]

_SHOWN_BYTES_MAX = 64 * 1024
_CALL_CHARS_MAX = 300
_VALUE_CHARS_MAX = 60
_CALLS_NAMED_MAX = 5


def approval_of(request: CallRequest) -> ToolApproval:
    """Return the approval of a tool that has one."""
    assert request.tool.approval is not None
    return request.tool.approval


def filled_form(request: CallRequest) -> FilledForm:
    """Return the arguments of a call whose tool has an approval, as the node asks for it."""
    assert request.filled is not None
    return request.filled


def approval_content(calls: Mapping[str, CallRequest], *, note: str) -> ReviewContent:
    """Return what reviewers are asked and shown about one call, or about several by name.

    The only call of a review has an empty name. ``note`` says why it is asked again.

    Raises:
        ArgumentsTooLarge: the calls together have more bytes than a review may hold.
        InvalidRequest: a function of an approval raised, or returned something invalid.
    """
    tools = tuple(
        ToolArguments(
            tool=request.tool.name,
            schema=approval_of(request).form.digest,
            arguments=filled_form(request).stored,
            name=name,
        )
        for name, request in calls.items()
    )
    terms = approval_of(next(iter(calls.values()))).terms
    only = calls.get("")
    return ReviewContent(
        question=validated_question(_several_question(calls) if only is None else _question(only)),
        shown=_durable_shown(_several_shown(calls) if only is None else _shown(only)),
        form=_several_form(calls) if only is None else approval_of(only).form.schema,
        values=_several_values(calls) if only is None else filled_form(only).stored,
        tools=tools,
        assignees=terms.assignees,
        quorum=validated_quorum(terms.quorum, terms.assignees),
        note=note,
    )


def _question(request: CallRequest) -> str:
    return approval_of(request).question(request.kwargs) or f"Call {_call_text(request)}?"


def _several_question(calls: Mapping[str, CallRequest]) -> str:
    texts = [
        f"({number}) {_own_question(request) or _call_text(request)}"
        for number, request in enumerate(calls.values(), 1)
    ][:_CALLS_NAMED_MAX]
    more = f" and {len(calls) - len(texts)} more" if len(calls) > len(texts) else ""
    return f"Make these {len(calls)} calls? {' '.join(texts)}{more}"


def _own_question(request: CallRequest) -> str:
    """Return what the approval of a tool asks, in a line; empty if it asks nothing of its own."""
    text = approval_of(request).question(request.kwargs)
    return text if len(text) <= _CALL_CHARS_MAX else f"{text[: _CALL_CHARS_MAX - 1]}…"


def _call_text(request: CallRequest) -> str:
    """Return a call in a line. Lists, mails and logs show it: it hides secrets."""
    shown = ", ".join(
        f"{name}={REDACTED if is_secret_name(name) else _value_text(value)}"
        for name, value in filled_form(request).stored.items()
    )
    text = f"{request.tool.name}({shown})"
    return text if len(text) <= _CALL_CHARS_MAX else f"{text[: _CALL_CHARS_MAX - 2]}…)"


def _value_text(value: Any) -> str:
    text = without_credentials(msgspec.json.encode(value).decode())
    return text if len(text) <= _VALUE_CHARS_MAX else f"{text[: _VALUE_CHARS_MAX - 1]}…"


def _shown(request: CallRequest) -> dict[str, Any]:
    shown: dict[str, Any] = {"tool": request.tool.name}
    if request.tool.description:
        shown["description"] = request.tool.description
    if request.asked_by:
        shown["model"] = request.asked_by
    return {**shown, **approval_of(request).shown(request.kwargs)}


def _several_shown(calls: Mapping[str, CallRequest]) -> dict[str, Any]:
    shown: dict[str, Any] = {}
    for name, request in calls.items():
        question = approval_of(request).question(request.kwargs)
        shown[name] = {**({"question": question} if question else {}), **_shown(request)}
    return shown


def _several_values(calls: Mapping[str, CallRequest]) -> dict[str, Any]:
    values = {name: filled_form(request).stored for name, request in calls.items()}
    size = len(msgspec.msgpack.encode(values))
    if size > ARGUMENTS_BYTES_MAX:
        raise ArgumentsTooLarge(
            f"the arguments of {len(calls)} calls, which are approved together, have {size:,} "
            f"bytes; the limit is {ARGUMENTS_BYTES_MAX:,}: use approvals='each'",
            size=size,
            limit=ARGUMENTS_BYTES_MAX,
        )
    return values


def _several_form(calls: Mapping[str, CallRequest]) -> dict[str, Any]:
    """Return the schema of the arguments of several calls by name."""
    properties: dict[str, Any] = {}
    definitions: dict[str, Any] = {}
    for name, request in calls.items():
        # Two tools may have different types of one name.
        schema = _with_prefix(approval_of(request).form.schema, f"{name}.")
        for defined, each in schema.pop("$defs", {}).items():
            definitions[f"{name}.{defined}"] = each
        properties[name] = {"title": request.tool.name, **schema}
    form: dict[str, Any] = {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }
    return {**form, "$defs": definitions} if definitions else form


def _with_prefix(schema: dict[str, Any], prefix: str) -> dict[str, Any]:
    """Return a copy of a schema whose references have a prefix."""
    copied = msgspec.json.decode(msgspec.json.encode(schema))
    for part in _parts(copied):
        reference = part.get("$ref")
        if isinstance(reference, str):
            place, _, defined = reference.rpartition("/")
            part["$ref"] = f"{place}/{prefix}{defined}"
    return copied


def _parts(part: Any) -> Iterator[dict[str, Any]]:
    if isinstance(part, list):
        for each in cast(list[Any], part):
            yield from _parts(each)
    elif isinstance(part, dict):
        fields = cast(dict[str, Any], part)
        yield fields
        for each in fields.values():
            yield from _parts(each)


def _durable_shown(shown: dict[str, Any]) -> Any:
    try:
        return durable(shown, bytes_max=_SHOWN_BYTES_MAX)
    except TooLarge as error:
        raise InvalidRequest(
            f"show must return at most {_SHOWN_BYTES_MAX:,} bytes, got {error.size:,}: keep large "
            "documents in a bucket, and show their address",
            field="show",
        ) from None
    except Mismatch as error:
        raise InvalidRequest(f"show must return JSON values: {error}", field="show") from None
