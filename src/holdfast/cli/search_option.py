"""The option that names the search over segments of documents."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from holdfast.cli.failures import show_errors
from holdfast.documents.search_opening import SearchChoice

__all__ = ["search_option"]

F = TypeVar("F", bound=Callable[..., Any])


def _open_search_option(
    context: click.Context, parameter: click.Parameter, address: str
) -> SearchChoice:
    if address == "default":
        return "default"
    from holdfast.integrations.search_address import open_search

    with show_errors():
        return open_search(address)


def search_option(function: F) -> F:
    """Give a command the option of the search; it gets what `Holdfast` takes as ``search``."""
    return click.option(
        "--search",
        envvar="HOLDFAST_SEARCH",
        show_envvar=True,
        default="default",
        callback=_open_search_option,
        metavar="ADDRESS",
        help="The search over segments of documents: default (beside a store in a file), none, "
        "sqlite:///search.db or opensearch+https://host.  [default: default]",
    )(function)
