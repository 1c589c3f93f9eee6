"""Shows logs on standard error: those of Holdfast and those of the user's own modules."""

from __future__ import annotations

import logging
from typing import cast

import click

from holdfast.cli.text import compact, say, utc_of_ms
from holdfast.display import printable
from holdfast.log_context import log_fields
from holdfast.redaction import without_credentials

__all__ = ["LOG_FORMATS", "LOG_LEVELS", "announce", "configure_logging", "last_words"]

LOG_LEVELS = ("debug", "info", "warning", "error")
LOG_FORMATS = ("text", "json")

_DEFAULT_LEVEL = "info"
# They log each request, in part with its headers and contents.
_REQUEST_LOGGERS = frozenset(
    ("aiohttp", "boto3", "botocore", "httpcore", "httpx", "openai", "s3transfer", "urllib3")
)


def configure_logging(level: str | None, log_format: str) -> None:
    """Show logs from a level on, ``info`` by default, in one of `LOG_FORMATS` or in ``color``.

    If an imported module has configured logging, its handlers stay; a level that is given counts.
    """
    handler = logging.StreamHandler()
    handler.addFilter(_is_shown)
    handler.setFormatter(_FORMATTERS[log_format]())
    if not logging.root.handlers:
        logging.basicConfig(level=(level or _DEFAULT_LEVEL).upper(), handlers=[handler])
    elif level is not None:
        logging.root.setLevel(level.upper())


def announce(who: str, text: str) -> None:
    """Say on standard error what a process does, at every level: as JSON if logs are JSON."""
    handler = _json_handler()
    if handler is None:
        say(text, err=True)
    else:
        handler.handle(_record(who, text))


def last_words(who: str, text: str) -> bytes:
    """Return what a process writes on standard error before it ends at once."""
    handler = _json_handler()
    line = text if handler is None else handler.format(_record(who, text))
    return f"{line}\n".encode()


def _json_handler() -> logging.Handler | None:
    """Return what shows logs as JSON; None if they are text, or a module configured them."""
    handlers = logging.root.handlers
    return next((each for each in handlers if isinstance(each.formatter, _JsonFormatter)), None)


def _record(who: str, text: str) -> logging.LogRecord:
    shown = without_credentials(text)
    return logging.LogRecord(f"holdfast.{who}", logging.INFO, "", 0, shown, None, None)


def _is_shown(record: logging.LogRecord) -> bool:
    """Return whether a record is shown; libraries that log requests show only warnings."""
    package = record.name.partition(".")[0]
    return record.levelno >= logging.WARNING or package not in _REQUEST_LOGGERS


class _TextFormatter(logging.Formatter):
    """A line for each record, with its time in UTC; more lines for a traceback."""

    def format(self, record: logging.LogRecord) -> str:
        text = super().format(record)
        time = utc_of_ms(round(record.created * 1000))
        head = f"{time} {record.levelname} {record.name}{_origin(record)}"
        return "\n".join(map(printable, f"{head}: {text}".split("\n")))


class _JsonFormatter(logging.Formatter):
    """A JSON object in one line for each record."""

    def format(self, record: logging.LogRecord) -> str:
        return compact(
            {
                "time": utc_of_ms(round(record.created * 1000)),
                "level": record.levelname.lower(),
                "logger": record.name,
                "message": super().format(record),
                **log_fields(),
                **_own_fields(record),
            }
        )


class _ColorFormatter(logging.Formatter):
    """A line for each record for a person who watches: the time of day, and levels in colour."""

    def format(self, record: logging.LogRecord) -> str:
        time = utc_of_ms(round(record.created * 1000)).partition("T")[2].partition(".")[0]
        level = click.style(f"{record.levelname.lower():7}", fg=_COLORS.get(record.levelname))
        name = click.style(record.name.removeprefix("holdfast."), dim=True)
        head, *rest = map(printable, super().format(record).split("\n"))
        return "\n".join([f"{time} {level} {name}: {head}", *rest])


_COLORS = {"DEBUG": "bright_black", "INFO": "green", "WARNING": "yellow", "ERROR": "red"}
_FORMATTERS = {"color": _ColorFormatter, "json": _JsonFormatter, "text": _TextFormatter}


def _origin(record: logging.LogRecord) -> str:
    """Return the run and the node of a line of the user's code: our own lines name them."""
    fields = {} if record.name.partition(".")[0] == "holdfast" else log_fields()
    if "run" not in fields:
        return ""
    node = f", node {fields['node']}" if "node" in fields else ""
    return f" [run {fields['run']} of tenant {fields['tenant']}{node}]"


def _own_fields(record: logging.LogRecord) -> dict[str, object]:
    """Return the fields that a record of the server has, such as the status of a request."""
    fields: object = getattr(record, "fields", None)
    is_ours = record.name.partition(".")[0] == "holdfast" and isinstance(fields, dict)
    return cast("dict[str, object]", fields) if is_ours else {}
