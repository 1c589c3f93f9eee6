"""What a model may be asked: messages, tools and parameters are checked before anything is sent."""

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
    """Return the messages as they are sent and kept; a text is one message of the user.

    Raises:
        InvalidPrompt: ``field`` says which message, and what of it, is wrong.
    """
    if isinstance(messages, str):
        messages = [{"role": "user", "content": messages}]
    if not isinstance(messages, Sequence) or isinstance(messages, bytes | bytearray):
        _refuse("messages", f"messages are a text or a list, not {type(messages).__name__}")
    given = cast(Sequence[Any], messages)
    if len(given) > _MESSAGES_MAX:
        raise InvalidPrompt(
            f"{len(given)} messages are more than {_MESSAGES_MAX}",
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
            _refuse(f"{field}.tool_call_id", "no message before it has a call of this id")
        called.update(call["id"] for call in kept.get("tool_calls", ()))
        admitted.append(kept)
    if all(message["role"] == "system" for message in admitted):
        _refuse("messages", "there is no message but the system's")
    return admitted


def check_tool(name: Any, description: Any, parameters: Any) -> None:
    """Check what a tool is called, and what is said of it.

    Raises:
        InvalidPrompt: a service would refuse it.
    """
    if not is_tool_name(name):
        _refuse("name", f"a tool's name is 1 to 64 of a-z, A-Z, 0-9, _ and -, not {name!r:.80}")
    if name in _RESERVED_TOOL_NAMES:
        _refuse("name", f"no tool can be called {name}, which says how one is chosen")
    if not isinstance(description, str):
        _refuse("description", f"a description is text, not {type(description).__name__}")
    _object_schema("parameters", parameters)


def validated_output_schema(schema: Any) -> dict[str, Any]:
    """Return the schema of an answer.

    Raises:
        InvalidPrompt: it is not that of an object, and services know no other.
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
    """Return the parameters that were given, with those that only the service knows in ``extra``.

    Raises:
        InvalidPrompt: ``field`` says which of them makes no sense.
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
    """Return whether a tool, or a call of one, can have this name."""
    return isinstance(name, str) and _TOOL_NAME.fullmatch(name) is not None


def is_tool_call_id(value: object) -> bool:
    """Return whether a call of a tool can have this id."""
    if not isinstance(value, str) or not 0 < len(value) <= _ID_CHARS_MAX:
        return False
    return value.isascii() or not any("\ud800" <= letter <= "\udfff" for letter in value)


def _message(field: str, message: Any) -> dict[str, Any]:
    if not isinstance(message, Mapping):
        _refuse(field, f"a message is a dict, not {type(message).__name__}")
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
            _refuse(f"{field}.error", f"error is True or False, not {error!r:.80}")
        if error:
            kept["error"] = True
    else:
        _refuse(f"{field}.role", f"a role is system, user, assistant or tool, not {role!r:.80}")
    if given:
        _refuse(field, f"a message of the role {role} has no {next(iter(given))!r:.80}")
    return kept


def _content(field: str, content: Any, *, allow_media: bool) -> str | list[dict[str, Any]]:
    if isinstance(content, str):
        return _text(field, content)
    if not isinstance(content, list | tuple):
        _refuse(field, f"content is a text or a list of parts, not {type(content).__name__}")
    parts = cast(Sequence[Any], content)
    if not parts:
        _refuse(field, "there is no part in it")
    return [_part(f"{field}[{index}]", part, allow_media) for index, part in enumerate(parts)]


def _part(field: str, part: Any, allow_media: bool) -> dict[str, Any]:
    if isinstance(part, str):
        return {"type": "text", "text": _text(field, part)}
    if not isinstance(part, Mapping):
        _refuse(field, f"a part is a text or a dict, not {type(part).__name__}")
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
        _refuse(f"{field}.type", f"a part here is {known}, not {kind!r:.80}")
    if given:
        _refuse(field, f"a part of the type {kind} has no {next(iter(given))!r:.80}")
    return kept


def _calls(field: str, calls: Any) -> list[dict[str, Any]]:
    if not isinstance(calls, list | tuple):
        _refuse(field, f"tool_calls are a list, not {type(calls).__name__}")
    kept: list[dict[str, Any]] = []
    for index, call in enumerate(cast(Sequence[Any], calls)):
        here = f"{field}[{index}]"
        given = msgspec.to_builtins(call) if isinstance(call, msgspec.Struct) else call
        if not isinstance(given, Mapping):
            _refuse(here, f"a call is a dict, not {type(call).__name__}")
        fields = cast(Mapping[str, Any], given)
        name = fields.get("name")
        if not is_tool_name(name):
            _refuse(f"{here}.name", f"no tool can be called {name!r:.80}")
        arguments = fields.get("arguments", {})
        if not isinstance(arguments, Mapping):
            _refuse(f"{here}.arguments", f"arguments are a dict, not {type(arguments).__name__}")
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
        _refuse(field, f"an id is text, not {value!r:.80}")
    if len(value) > _ID_CHARS_MAX:
        raise InvalidPrompt(
            f"{field} is longer than {_ID_CHARS_MAX} characters",
            field=field,
            size=len(value),
            limit=_ID_CHARS_MAX,
        )
    return _text(field, value)


def _media_type(field: str, value: Any, kind: str) -> str:
    fits = isinstance(value, str) and _MEDIA_TYPE.fullmatch(value)
    if not fits or (kind == "image") != cast(str, value).startswith("image/"):
        _refuse(field, f"{value!r:.80} is not the media type of a part of the type {kind}")
    return cast(str, value)


def _data(field: str, value: Any) -> bytes:
    if isinstance(value, str):
        try:
            value = base64.b64decode(value, validate=True)
        except (binascii.Error, ValueError):
            _refuse(field, "text here is base64, and this is not")
    if not isinstance(value, bytes | bytearray) or not value:
        _refuse(field, "data are bytes, or base64 as text, and not empty")
    return bytes(value)


def _text(field: str, value: Any) -> str:
    if not isinstance(value, str):
        _refuse(field, f"it is text, not {type(value).__name__}")
    try:
        value.encode()
    except UnicodeEncodeError:
        _refuse(field, "text with a lone surrogate cannot be sent")
    return value


def _object_schema(field: str, schema: Any) -> dict[str, Any]:
    if not isinstance(schema, Mapping):
        _refuse(field, f"a schema is a dict, not {type(schema).__name__}")
    if cast(Mapping[str, Any], schema).get("type") != "object":
        _refuse(field, "the schema has to be that of an object; put what it is into a field of one")
    return _json(field, schema)


def _json(field: str, value: Any) -> Any:
    """Return a copy of what JSON and MessagePack can both express."""
    try:
        copied = msgspec.json.decode(msgspec.json.encode(value))
        msgspec.msgpack.encode(copied)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        _refuse(field, f"it cannot be said in JSON: {error}")
    return copied


def _refuse(field: str, reason: str) -> NoReturn:
    raise InvalidPrompt(f"{field}: {reason}", field=field)


def _check_int(field: str, value: Any, *, min_value: int) -> int | None:
    if value is not None and (type(value) is not int or not min_value <= value < 2**63):
        _refuse(field, f"{field} is a whole number from {min_value} on, not {value!r:.80}")
    return value


def _check_float(field: str, value: Any, *, max_value: float) -> float | None:
    if value is None:
        return None
    if type(value) not in (int, float) or not 0 <= value <= max_value:
        _refuse(field, f"{field} is a number from 0 to {max_value:g}, not {value!r:.80}")
    return float(value)


def _check_stop(field: str, value: Any) -> list[str] | None:
    if value is None:
        return None
    stops = [value] if isinstance(value, str) else value
    if not isinstance(stops, list | tuple) or not all(cast(Sequence[Any], stops)):
        _refuse(field, "stop is a text or a list of texts, none of them empty")
    texts = cast(Sequence[Any], stops)
    if len(texts) > _STOPS_MAX:
        raise InvalidPrompt(
            f"{len(texts)} texts to stop at are more than {_STOPS_MAX}",
            field=field,
            size=len(texts),
            limit=_STOPS_MAX,
        )
    return [_text(f"{field}[{index}]", text) for index, text in enumerate(texts)]
