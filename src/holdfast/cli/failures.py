"""How errors are shown: a line on standard error, and exit code 1; misuse has click's own, 2."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Generator
from contextlib import contextmanager
from functools import wraps
from typing import Any, ParamSpec

import click

from holdfast.cli.text import printable
from holdfast.errors import HoldfastError

__all__ = ["asynchronous", "showing_errors"]

Arguments = ParamSpec("Arguments")


@contextmanager
def showing_errors() -> Generator[None]:
    """Show what Holdfast raises without a traceback, and with the code that machines read."""
    try:
        yield
    except HoldfastError as error:
        # An address that is not understood brings a few lines of those that are.
        lines = [printable(line) for line in str(error).splitlines()]
        raise click.ClickException("\n".join(lines) + f" [{error.code}]") from error


def asynchronous(
    function: Callable[Arguments, Coroutine[Any, Any, None]],
) -> Callable[Arguments, None]:
    """Run a coroutine as a command."""

    @wraps(function)
    def run(*args: Arguments.args, **kwargs: Arguments.kwargs) -> None:
        with showing_errors():
            asyncio.run(function(*args, **kwargs))

    return run
