"""The search that an address names, as HOLDFAST_SEARCH has one."""

from __future__ import annotations

import os
from urllib.parse import parse_qsl, urlsplit, urlunsplit

from holdfast.clock import Clock
from holdfast.documents.search import SegmentSearch
from holdfast.documents.sqlite_search import SqliteSegmentSearch
from holdfast.errors import InvalidUrl, StoreUnusable
from holdfast.redaction import without_credentials
from holdfast.storage.open import sqlite_paths

__all__ = ["SEARCH_FORMS", "open_search"]

SEARCH_FORMS = """\
  default                                         beside a store in a file, none for DynamoDB
  none                                            no search
  sqlite:///search.db                             an index in this file
  opensearch+https://host:9200?index=segments     an index of OpenSearch
  opensearch+https://host?region=eu-west-1        Amazon OpenSearch Service, signed requests
options of opensearch: index, region, profile; HOLDFAST_SEARCH_AUTH=USER:PASSWORD for others"""
"""The forms of addresses, as the help of commands shows them."""

_AUTH_VARIABLE = "HOLDFAST_SEARCH_AUTH"
_OPTIONS = ("index", "region", "profile")


def open_search(address: str, *, clock: Clock | None = None) -> SegmentSearch | None:
    """Return the search at an address; None for ``none``. Nothing is opened before its first use.

    Raises:
        InvalidUrl: the address cannot be understood; the message shows the right forms.
        StoreUnusable: httpx is not installed, which OpenSearch needs.
    """
    if address == "none":
        return None
    scheme = address.partition(":")[0]
    if scheme == "sqlite":
        return SqliteSegmentSearch(_sqlite_path(address), clock=clock)
    if scheme in ("opensearch+http", "opensearch+https"):
        return _open_opensearch(address)
    raise _invalid(address, "it must begin with sqlite: or opensearch+https:")


def _sqlite_path(address: str) -> str:
    try:
        path, _ = sqlite_paths(address)
    except InvalidUrl:
        raise _invalid(address, "it must name a file") from None
    if "?" in address:
        raise _invalid(address, "a search index in a file has no options")
    return path


def _open_opensearch(address: str) -> SegmentSearch:
    parts = urlsplit(address.removeprefix("opensearch+"))
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    for name, value in options.items():
        if name not in _OPTIONS or not value:
            raise _invalid(address, f"there is no such option, or it is empty: {name!r:.80}")
    try:
        from holdfast.integrations.opensearch import DEFAULT_INDEX, OpenSearchSegments
    except ImportError as error:
        raise StoreUnusable(
            f"a search in OpenSearch needs httpx: install the extra 'client' ({error})"
        ) from error
    user, separator, password = os.environ.get(_AUTH_VARIABLE, "").partition(":")
    has_auth = bool(separator) and "region" not in options
    return OpenSearchSegments(
        urlunsplit((parts.scheme, parts.netloc, parts.path, "", "")),
        auth=(user, password) if has_auth else None,
        index=options.get("index", DEFAULT_INDEX),
        region=options.get("region"),
        profile=options.get("profile"),
    )


def _invalid(address: object, reason: str) -> InvalidUrl:
    shown = without_credentials(repr(address))
    return InvalidUrl(
        f"cannot open the search {shown:.200}: {reason}. Searches are:\n{SEARCH_FORMS}"
    )
