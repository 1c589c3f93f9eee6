"""What is accepted of a model's answer at most.

An answer comes from outside: from a service that may be broken or hostile, or from a model that
follows the text in its prompt. What exceeds a bound is refused, and asked for only once:
`AnswerTooLarge`. The bounds are far above what any model in use answers.
"""

from __future__ import annotations

from typing import Final

__all__ = [
    "ANSWER_BYTES_MAX",
    "ANSWER_SECONDS_MAX",
    "BODY_BYTES_MAX",
    "ERROR_BYTES_MAX",
    "JSON_CONTAINERS_MAX",
    "JSON_DEPTH_MAX",
    "LINE_BYTES_MAX",
    "MODEL_NAME_CHARS_MAX",
    "RETRY_AFTER_SECONDS_MAX",
    "STREAM_BYTES_MAX",
    "STREAM_EVENTS_MAX",
    "TOOL_CALLS_MAX",
]

ANSWER_BYTES_MAX: Final = 2 * 1024 * 1024
"""The text of an answer, with the names and arguments of its calls. 128,000 tokens are 0.6 MB."""
BODY_BYTES_MAX: Final = 8 * 1024 * 1024
"""The body of an answer that comes as a whole, unpacked, with all that a service adds to it."""
STREAM_BYTES_MAX: Final = 128 * 1024 * 1024
"""The body of an answer that comes in pieces: about 300 bytes for each token. It is never held."""
STREAM_EVENTS_MAX: Final = 1_000_000
"""How many pieces that may be."""
LINE_BYTES_MAX: Final = 4 * 1024 * 1024
"""One line of such a body."""
ERROR_BYTES_MAX: Final = 64 * 1024
"""What is read of the body of an error; the rest is left."""
MODEL_NAME_CHARS_MAX: Final = 200
"""What a service calls the model that answered; a longer name is cut."""
TOOL_CALLS_MAX: Final = 128
"""How many tools one answer may call."""
JSON_CONTAINERS_MAX: Final = 100_000
"""How many lists and objects the JSON may have that a model writes: `[]` takes 3 bytes there, and
about 60 in memory."""
JSON_DEPTH_MAX: Final = 64
"""How deep the JSON may be nested that a model writes: a state holds 100 levels."""
ANSWER_SECONDS_MAX: Final = 3_600
"""How long an answer may take to come, however lively the service is meanwhile."""
RETRY_AFTER_SECONDS_MAX: Final = 3_600
"""How long a service can put off the next attempt of a call; what asks for more gets this."""
