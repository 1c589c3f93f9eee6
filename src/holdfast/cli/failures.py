"""Shows errors as a line on standard error with exit code 1; click shows misuse with code 2."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Generator
from contextlib import contextmanager
from functools import wraps
from typing import Any, ParamSpec

import click

from holdfast.display import printable
from holdfast.errors import HoldfastError
from holdfast.redaction import without_credentials

__all__ = ["EscapingGroup", "asynchronous", "show_errors"]

Arguments = ParamSpec("Arguments")


@contextmanager
def show_errors() -> Generator[None]:
    """Show errors of Holdfast without a traceback, but with their codes."""
    try:
        yield
    except HoldfastError as error:
        raise click.ClickException(f"{error} [{error.code}]") from error


class EscapingGroup(click.Group):
    """A group that escapes control characters in errors, which quote arguments and stored text."""

    def make_context(self, *args: Any, **kwargs: Any) -> click.Context:
        with _escape_errors():
            return super().make_context(*args, **kwargs)

    def invoke(self, ctx: click.Context) -> Any:
        with _escape_errors():
            return super().invoke(ctx)


@contextmanager
def _escape_errors() -> Generator[None]:
    try:
        with _show_output_errors():
            yield
    except click.ClickException as error:
        # Some have several lines: an invalid address is followed by the valid forms.
        lines = without_credentials(error.message).split("\n")
        vars(error)["message"] = "\n".join(map(printable, lines))
        raise


@contextmanager
def _show_output_errors() -> Generator[None]:
    """Show that output cannot be written in one line; click itself handles a closed pipe."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        raise click.ClickException(f"{type(error).__name__}: {error}") from error


def asynchronous(
    function: Callable[Arguments, Coroutine[Any, Any, None]],
) -> Callable[Arguments, None]:
    """Run a coroutine as a command."""

    @wraps(function)
    def run(*args: Arguments.args, **kwargs: Arguments.kwargs) -> None:
        with show_errors():
            asyncio.run(function(*args, **kwargs))

    return run
