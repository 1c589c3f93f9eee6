"""Validates the messages, tools and parameters of a request before it is sent."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn, cast

import msgspec

from holdfast.errors import InvalidPrompt

__all__ = [
    "check_tool",
    "is_tool_call_id",
    "is_tool_name",
    "validated_messages",
    "validated_output_schema",
    "validated_params",
]

_MESSAGES_MAX = 10_000
_TOOL_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_RESERVED_TOOL_NAMES = ("any", "auto", "none")
_ID_CHARS_MAX = 256
_STOPS_MAX = 16
_MEDIA_TYPE = re.compile(r"[a-z]+/[a-zA-Z0-9.+-]+")


def validated_messages(messages: Any) -> list[dict[str, Any]]:
    """Return the messages as they are sent and stored. A string is one message of the user.

    Raises:
        InvalidPrompt: a message is invalid. ``field`` says which part of which message.
    """
    if isinstance(messages, str):
        messages = [{"role": "user", "content": messages}]
    if not isinstance(messages, Sequence) or isinstance(messages, bytes | bytearray):
        _refuse("messages", f"messages must be a string or a list, got {type(messages).__name__}")
    given = cast(Sequence[Any], messages)
    if len(given) > _MESSAGES_MAX:
        raise InvalidPrompt(
            f"messages must have at most {_MESSAGES_MAX} elements, got {len(given)}",
            field="messages",
            size=len(given),
            limit=_MESSAGES_MAX,
        )
    admitted: list[dict[str, Any]] = []
    called: set[str] = set()
    for index, message in enumerate(given):
        field = f"messages[{index}]"
        kept = _message(field, message)
        if kept["role"] == "tool" and kept["tool_call_id"] not in called:
            _refuse(f"{field}.tool_call_id", "it must be the id of a call in an earlier message")
        called.update(call["id"] for call in kept.get("tool_calls", ()))
        admitted.append(kept)
    if all(message["role"] == "system" for message in admitted):
        _refuse("messages", "there must be a message other than those of the system")
    return admitted


def check_tool(name: Any, description: Any, parameters: Any) -> None:
    """Check the name, the description and the schema of a tool.

    Raises:
        InvalidPrompt: a service would refuse the tool.
    """
    if not is_tool_name(name):
        _refuse(
            "name", f"it must be 1 to 64 characters of a-z, A-Z, 0-9, _ and -, got {name!r:.80}"
        )
    if name in _RESERVED_TOOL_NAMES:
        _refuse("name", f"it must not be {name!r}, which is a value of tool_choice")
    if not isinstance(description, str):
        _refuse("description", f"it must be a string, got {type(description).__name__}")
    _object_schema("parameters", parameters)


def validated_output_schema(schema: Any) -> dict[str, Any]:
    """Return the schema of an answer.

    Raises:
        InvalidPrompt: the schema is not that of an object. Services accept no other.
    """
    return _object_schema("output", schema)


def validated_params(
    *,
    max_tokens: Any = None,
    temperature: Any = None,
    top_p: Any = None,
    stop: Any = None,
    seed: Any = None,
    extra: Any = None,
) -> dict[str, Any]:
    """Return the parameters that were given. ``extra`` has parameters of the service.

    Raises:
        InvalidPrompt: a parameter is invalid. ``field`` says which.
    """
    given: dict[str, Any] = {
        "max_tokens": _check_int("max_tokens", max_tokens, min_value=1),
        "temperature": _check_float("temperature", temperature, max_value=2),
        "top_p": _check_float("top_p", top_p, max_value=1),
        "stop": _check_stop("stop", stop),
        "seed": _check_int("seed", seed, min_value=-(2**63)),
    }
    kept = {field: value for field, value in given.items() if value is not None}
    if extra is not None and not isinstance(extra, Mapping):
        _refuse("extra", f"extra must be a dict, got {type(extra).__name__}")
    if extra:
        kept["extra"] = _json("extra", extra)
    return kept


def is_tool_name(name: object) -> bool:
    """Return whether a name is valid for a tool or a call of one."""
    return isinstance(name, str) and _TOOL_NAME.fullmatch(name) is not None


def is_tool_call_id(value: object) -> bool:
    """Return whether an id is valid for a call of a tool."""
    if not isinstance(value, str) or not 0 < len(value) <= _ID_CHARS_MAX:
        return False
    return value.isascii() or not any("\ud800" <= letter <= "\udfff" for letter in value)


def _message(field: str, message: Any) -> dict[str, Any]:
    if not isinstance(message, Mapping):
        _refuse(field, f"a message must be a dict, got {type(message).__name__}")
    given = dict(cast(Mapping[Any, Any], message))
    role = given.pop("role", None)
    content = given.pop("content", None)
    kept: dict[str, Any] = {"role": role}
    if role in ("system", "user"):
        kept["content"] = _content(f"{field}.content", content, allow_media=role == "user")
    elif role == "assistant":
        calls = given.pop("tool_calls", None) or ()
        if content is None and calls:
            content = ""
        kept["content"] = _content(f"{field}.content", content, allow_media=False)
        if calls:
            kept["tool_calls"] = _calls(f"{field}.tool_calls", calls)
    elif role == "tool":
        kept["tool_call_id"] = _id(f"{field}.tool_call_id", given.pop("tool_call_id", None))
        kept["content"] = _content(f"{field}.content", content, allow_media=True)
        error = given.pop("error", False)
        if not isinstance(error, bool):
            _refuse(f"{field}.error", f"error must be True or False, got {error!r:.80}")
        if error:
            kept["error"] = True
    else:
        _refuse(f"{field}.role", f"role must be system, user, assistant or tool, got {role!r:.80}")
    if given:
        _refuse(field, f"a message with the role {role} must not have {next(iter(given))!r:.80}")
    return kept


def _content(field: str, content: Any, *, allow_media: bool) -> str | list[dict[str, Any]]:
    if isinstance(content, str):
        return _text(field, content)
    if not isinstance(content, list | tuple):
        _refuse(field, f"content must be a string or a list of parts, got {type(content).__name__}")
    parts = cast(Sequence[Any], content)
    if not parts:
        _refuse(field, "content must have at least one part")
    return [_part(f"{field}[{index}]", part, allow_media) for index, part in enumerate(parts)]


def _part(field: str, part: Any, allow_media: bool) -> dict[str, Any]:
    if isinstance(part, str):
        return {"type": "text", "text": _text(field, part)}
    if not isinstance(part, Mapping):
        _refuse(field, f"a part must be a string or a dict, got {type(part).__name__}")
    given = dict(cast(Mapping[Any, Any], part))
    kind = given.pop("type", None)
    kept: dict[str, Any] = {"type": kind}
    if kind == "text":
        kept["text"] = _text(f"{field}.text", given.pop("text", None))
    elif kind in ("image", "document") and allow_media:
        kept["media_type"] = _media_type(f"{field}.media_type", given.pop("media_type", None), kind)
        kept["data"] = _data(f"{field}.data", given.pop("data", None))
        if kind == "document":
            kept["name"] = _text(f"{field}.name", given.pop("name", "document"))
    else:
        known = "text, image or document" if allow_media else "text"
        _refuse(f"{field}.type", f"the type of this part must be {known}, got {kind!r:.80}")
    if given:
        _refuse(field, f"a part of the type {kind} must not have {next(iter(given))!r:.80}")
    return kept


def _calls(field: str, calls: Any) -> list[dict[str, Any]]:
    if not isinstance(calls, list | tuple):
        _refuse(field, f"tool_calls must be a list, got {type(calls).__name__}")
    kept: list[dict[str, Any]] = []
    for index, call in enumerate(cast(Sequence[Any], calls)):
        here = f"{field}[{index}]"
        given = msgspec.to_builtins(call) if isinstance(call, msgspec.Struct) else call
        if not isinstance(given, Mapping):
            _refuse(here, f"a call must be a dict, got {type(call).__name__}")
        fields = cast(Mapping[str, Any], given)
        name = fields.get("name")
        if not is_tool_name(name):
            _refuse(
                f"{here}.name",
                f"it must be 1 to 64 characters of a-z, A-Z, 0-9, _ and -, got {name!r:.80}",
            )
        arguments = fields.get("arguments", {})
        if not isinstance(arguments, Mapping):
            _refuse(
                f"{here}.arguments", f"arguments must be a dict, got {type(arguments).__name__}"
            )
        kept.append(
            {
                "id": _id(f"{here}.id", fields.get("id")),
                "name": name,
                "arguments": _json(f"{here}.arguments", arguments),
            }
        )
    return kept


def _id(field: str, value: Any) -> str:
    if not isinstance(value, str) or not value:
        _refuse(field, f"an id must be a string that is not empty, got {value!r:.80}")
    if len(value) > _ID_CHARS_MAX:
        raise InvalidPrompt(
            f"{field} must have at most {_ID_CHARS_MAX} characters, got {len(value)}",
            field=field,
            size=len(value),
            limit=_ID_CHARS_MAX,
        )
    return _text(field, value)


def _media_type(field: str, value: Any, kind: str) -> str:
    fits = isinstance(value, str) and _MEDIA_TYPE.fullmatch(value)
    if not fits or (kind == "image") != cast(str, value).startswith("image/"):
        _refuse(field, f"it must be a media type for a part of the type {kind}, got {value!r:.80}")
    return cast(str, value)


def _data(field: str, value: Any) -> bytes:
    if isinstance(value, str):
        try:
            value = base64.b64decode(value, validate=True)
        except (binascii.Error, ValueError):
            _refuse(field, "a string must be valid base64")
    if not isinstance(value, bytes | bytearray) or not value:
        _refuse(field, "data must be bytes or a base64 string, and must not be empty")
    return bytes(value)


def _text(field: str, value: Any) -> str:
    if not isinstance(value, str):
        _refuse(field, f"it must be a string, got {type(value).__name__}")
    try:
        value.encode()
    except UnicodeEncodeError:
        _refuse(field, "a string with a lone surrogate cannot be sent")
    return value


def _object_schema(field: str, schema: Any) -> dict[str, Any]:
    if not isinstance(schema, Mapping):
        _refuse(field, f"a schema must be a dict, got {type(schema).__name__}")
    if cast(Mapping[str, Any], schema).get("type") != "object":
        _refuse(
            field, "the schema must be that of an object; wrap other types in a field of an object"
        )
    return _json(field, schema)


def _json(field: str, value: Any) -> Any:
    """Return a copy of a value, if both JSON and MessagePack can express it."""
    try:
        copied = msgspec.json.decode(msgspec.json.encode(value))
        msgspec.msgpack.encode(copied)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        _refuse(field, f"JSON cannot express it: {error}")
    return copied


def _refuse(field: str, reason: str) -> NoReturn:
    raise InvalidPrompt(f"{field}: {reason}", field=field)


def _check_int(field: str, value: Any, *, min_value: int) -> int | None:
    if value is not None and (type(value) is not int or not min_value <= value < 2**63):
        _refuse(field, f"{field} must be an integer from {min_value}, got {value!r:.80}")
    return value


def _check_float(field: str, value: Any, *, max_value: float) -> float | None:
    if value is None:
        return None
    if type(value) not in (int, float) or not 0 <= value <= max_value:
        _refuse(field, f"{field} must be a number from 0 to {max_value:g}, got {value!r:.80}")
    return float(value)


def _check_stop(field: str, value: Any) -> list[str] | None:
    if value is None:
        return None
    stops = [value] if isinstance(value, str) else value
    if not isinstance(stops, list | tuple) or not all(cast(Sequence[Any], stops)):
        _refuse(field, "stop must be a string or a list of strings, none of them empty")
    texts = cast(Sequence[Any], stops)
    if len(texts) > _STOPS_MAX:
        raise InvalidPrompt(
            f"stop must have at most {_STOPS_MAX} strings, got {len(texts)}",
            field=field,
            size=len(texts),
            limit=_STOPS_MAX,
        )
    return [_text(f"{field}[{index}]", text) for index, text in enumerate(texts)]
