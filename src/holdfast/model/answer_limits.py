"""Limits on the answers of models.

An answer is untrusted: the service may be broken or hostile, and a model may follow instructions in
its prompt. An answer over a limit is refused with `AnswerTooLarge` and not asked for again. The
limits are far above the answers of any model in use.
"""

from __future__ import annotations

from typing import Final

__all__ = [
    "ANSWER_BYTES_MAX",
    "ANSWER_SECONDS_MAX",
    "BODY_BYTES_MAX",
    "ERROR_BYTES_MAX",
    "FLAGS_MAX",
    "FLAG_CHARS_MAX",
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
"""The text of an answer with the names and arguments of its calls. 128,000 tokens are 0.6 MB."""
BODY_BYTES_MAX: Final = 8 * 1024 * 1024
"""The uncompressed body of an answer that is not streamed."""
STREAM_BYTES_MAX: Final = 128 * 1024 * 1024
"""The body of a streamed answer: about 300 bytes a token. It is never kept in memory."""
STREAM_EVENTS_MAX: Final = 1_000_000
"""The number of events in a streamed answer."""
LINE_BYTES_MAX: Final = 4 * 1024 * 1024
"""One line of a streamed answer."""
ERROR_BYTES_MAX: Final = 64 * 1024
"""How much of the body of an error is read."""
MODEL_NAME_CHARS_MAX: Final = 200
"""The name of the model in the answer. A longer name is cut."""
FLAGS_MAX: Final = 100
"""How many flags of a guardrail are kept. A guardrail has fewer policies than that."""
FLAG_CHARS_MAX: Final = 200
"""One flag of a guardrail. The name of a topic has at most 100 characters; a longer flag is cut."""
TOOL_CALLS_MAX: Final = 128
"""How many tools one answer may call."""
JSON_CONTAINERS_MAX: Final = 100_000
"""The number of lists and objects in JSON that a model writes. `[]` has 3 bytes with its comma, and
takes about 60 in memory."""
JSON_DEPTH_MAX: Final = 64
"""The depth of JSON that a model writes. A state can have 100 levels."""
ANSWER_SECONDS_MAX: Final = 3_600
"""How long an answer may take, even if the service keeps sending."""
RETRY_AFTER_SECONDS_MAX: Final = 3_600
"""The longest delay that a service can ask for before the next attempt. More is cut to this."""
