"""Checks the arguments of reviews: comments, values of forms, keys."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from holdfast.errors import InvalidRequest
from holdfast.graph.mismatch import Mismatch, TooLarge
from holdfast.graph.schema_check import schema_mismatch
from holdfast.graph.values import durable

__all__ = [
    "SHOWN_BYTES_MAX",
    "validated_comment",
    "validated_form_values",
    "validated_question",
    "validated_request_key",
    "validated_seen",
]

SHOWN_BYTES_MAX = 256 * 1024
"""How large what a review shows may be, packed: it is stored in one item."""
_QUESTION_CHARS_MAX = 4_000
_COMMENT_CHARS_MAX = 4_000
_KEY_CHARS_MAX = 256


def validated_question(question: object) -> str:
    """Return the question of a review.

    Raises:
        InvalidRequest: it is not a text, empty or too long.
    """
    if not isinstance(question, str) or not 0 < len(question.strip()) <= _QUESTION_CHARS_MAX:
        raise InvalidRequest(
            f"question must be a text of 1 to {_QUESTION_CHARS_MAX:,} characters, "
            f"got {question!r:.80}",
            field="question",
        )
    _check_encodable(question, "question")
    return question


def validated_comment(text: object, field: str = "comment", *, required: bool = False) -> str:
    """Return a comment, without spaces around it.

    Raises:
        InvalidRequest: it is not a text, or too long.
    """
    least = 1 if required else 0
    if not isinstance(text, str) or not least <= len(text.strip()) <= _COMMENT_CHARS_MAX:
        raise InvalidRequest(
            f"{field} must be a text of {least} to {_COMMENT_CHARS_MAX:,} characters, "
            f"got {text!r:.80}",
            field=field,
        )
    _check_encodable(text, field)
    return text.strip()


def _check_encodable(text: str, field: str) -> None:
    if not text.isascii() and any("\ud800" <= char <= "\udfff" for char in text):
        raise InvalidRequest(f"{field} must be a text without lone surrogates", field=field)


def validated_request_key(key: object) -> str:
    """Return the idempotency key of a request; an empty text if there is none.

    Raises:
        InvalidRequest: it is not a key.
    """
    if key is None:
        return ""
    if not isinstance(key, str) or not 0 < len(key) <= _KEY_CHARS_MAX or not key.isprintable():
        raise InvalidRequest(
            f"key must be a text of 1 to {_KEY_CHARS_MAX} printable characters, got {key!r:.80}",
            field="key",
        )
    return key


def validated_seen(seen: object) -> str | None:
    """Return the hash of what a reviewer was shown; None if it is not known.

    Raises:
        InvalidRequest: it is not a text.
    """
    if seen is not None and not isinstance(seen, str):
        raise InvalidRequest(
            f"seen must be the Review.rendered that the reviewer was shown, got {seen!r:.80}",
            field="seen",
        )
    return seen


def validated_form_values(values: Any, form: Mapping[str, Any] | None) -> Any:
    """Return the values of a form as they are stored.

    Raises:
        InvalidRequest: they do not fit the form, or there is no form.
    """
    if form is None:
        raise InvalidRequest(
            "values must not be given: the review has no form to edit", field="values"
        )
    try:
        stored = durable(values, bytes_max=SHOWN_BYTES_MAX)
    except TooLarge as error:
        raise InvalidRequest(
            f"values must have at most {SHOWN_BYTES_MAX:,} bytes, got {error.size:,}",
            field="values",
            size=error.size,
            limit=SHOWN_BYTES_MAX,
        ) from None
    except Mismatch as error:
        raise InvalidRequest(f"values must be JSON values: {error}", field="values") from None
    if (mismatch := schema_mismatch(stored, form)) is not None:
        raise InvalidRequest(f"values must fit the form: {mismatch}", field="values")
    return stored
