"""The options of ``holdfast serve`` that say who may ask, and how much."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any

import click

from holdfast.cli.failures import show_errors

if TYPE_CHECKING:
    from holdfast.server.options import ServerOptions

__all__ = ["options_of", "server_options"]

_OPTIONS = (
    click.option(
        "--body-max",
        "body_bytes_max",
        type=click.IntRange(min=1024),
        metavar="BYTES",
        help="The limit on the body of a request.  [default: 4 MiB]",
    ),
    click.option(
        "--auth",
        "authentication",
        is_flag=True,
        help="Requests need an API key: 'holdfast key create'.",
    ),
)
_NAMES = ("authentication", "body_bytes_max")


def server_options(function: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options of a server, and pass it `ServerOptions` as ``options``."""

    @wraps(function)
    def command(**given: Any) -> None:
        named = {name: given.pop(name) for name in _NAMES}
        with show_errors():
            options = options_of(**named)
        function(options=options, **given)

    decorated: Callable[..., None] = command
    for option in _OPTIONS:
        decorated = option(decorated)
    return decorated


def options_of(**given: Any) -> ServerOptions:
    """Return the options of a server; None stands for the default.

    Raises:
        click.ClickException: the extra ``server`` is not installed.
        InvalidRequest: an option is not valid.
    """
    try:
        from holdfast.server.options import ServerOptions
    except ImportError as error:
        raise click.ClickException(
            f"this command needs the server, which is not installed ({error.name} is missing): "
            "pip install 'holdfast[server]'"
        ) from None
    return ServerOptions(**{name: value for name, value in given.items() if value is not None})
