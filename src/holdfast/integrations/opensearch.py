"""`OpenSearchSegments`: the search over segments in OpenSearch, for several machines.

Needs the extra ``client`` (httpx), and the extra ``aws`` to sign requests for Amazon OpenSearch
Service. A domain or a cluster of your own; not OpenSearch Serverless, which cannot delete by query.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, cast

import httpx
import msgspec

from holdfast.documents.search_query import FOUND_END, FOUND_START, marked_snippet
from holdfast.documents.search_words import SearchPhrase, SearchWords, read_search, stem_of
from holdfast.errors import InvalidRequest, SearchIndexDamaged, SearchUnavailable
from holdfast.integrations.aws_signing import RequestSigner
from holdfast.model.segment_search import (
    ENTRIES_MAX,
    SegmentEntry,
    SegmentHit,
    validated_entry,
    validated_hits,
    validated_query,
    validated_scope,
)
from holdfast.redaction import without_credentials

__all__ = ["DEFAULT_INDEX", "OpenSearchSegments"]

DEFAULT_INDEX = "holdfast-segments"
"""The name of the index where an address names none."""

_TIMEOUT_SECONDS = 30.0
_ANSWER_BYTES_MAX = 32 * 1024 * 1024
_BULK_BYTES_MAX = 5 * 1024 * 1024
_REASON_LETTERS_MAX = 300
_INDEX_LETTERS = frozenset("abcdefghijklmnopqrstuvwxyz0123456789-_.")
_KEYWORDS = ("tenant", "project", "document", "workflow")
# Lower case and without accents. The tokenizer takes Han and kana character by character.
_ANALYZER = {"type": "custom", "tokenizer": "standard", "filter": ["lowercase", "asciifolding"]}
_INDEX: dict[str, Any] = {
    "settings": {"analysis": {"analyzer": {"segments": _ANALYZER}}},
    "mappings": {
        "dynamic": False,
        "properties": {
            **{name: {"type": "keyword"} for name in _KEYWORDS},
            "segment": {"type": "integer"},
            "title": {"type": "text", "analyzer": "segments"},
            "body": {"type": "text", "analyzer": "segments"},
        },
    },
}
_FIELDS = ["title^3", "body"]
_HIGHLIGHT = {
    "pre_tags": [FOUND_START],
    "post_tags": [FOUND_END],
    "fields": {"body": {"number_of_fragments": 1, "fragment_size": 240, "no_match_size": 240}},
}


class _Source(msgspec.Struct):
    """A segment as the index stores it."""

    tenant: str
    project: str
    document: str
    workflow: str
    segment: int
    title: str
    body: str


class _FoundSource(msgspec.Struct):
    """A segment as a search returns it, without its text."""

    project: str
    document: str
    workflow: str
    segment: int
    title: str


class _Highlight(msgspec.Struct):
    """The part of a text around the words that were found."""

    body: list[str] = []


class _Found(msgspec.Struct):
    """A hit."""

    source: _FoundSource = msgspec.field(name="_source")
    score: float = msgspec.field(name="_score")
    highlight: _Highlight = msgspec.field(default_factory=_Highlight)


class _Hits(msgspec.Struct):
    """The list of hits."""

    hits: list[_Found]


class _SearchAnswer(msgspec.Struct):
    """The answer to a search."""

    hits: _Hits


class _BulkItem(msgspec.Struct):
    """What became of one action of a bulk request."""

    status: int = 200
    error: msgspec.Raw = msgspec.Raw(b"null")


class _BulkAnswer(msgspec.Struct):
    """The answer to a bulk request."""

    errors: bool
    items: list[dict[str, _BulkItem]] = []


class OpenSearchSegments:
    """A `SegmentSearch` in an index of OpenSearch, which several machines may share.

    What is added can be found about a second later.
    """

    def __init__(
        self,
        url: str,
        *,
        index: str = DEFAULT_INDEX,
        auth: tuple[str, str] | None = None,
        region: str | None = None,
        profile: str | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        """Use the index of this name at ``url``; it is created when the first segment is added.

        ``auth`` is a user and a password. With a ``region``, requests are signed with credentials
        of AWS, those of ``profile`` or of the process, instead.

        Raises:
            InvalidRequest: the address or the index is not valid, or both ``auth`` and ``region``
                are given.
        """
        if auth is not None and region is not None:
            raise InvalidRequest("pass either auth or region, not both", field="auth")
        self._address = _validated_address(url)
        self._index = _validated_index(index)
        self._signer = None if region is None else RequestSigner("es", region, profile=profile)
        self._client = httpx.AsyncClient(
            auth=auth, timeout=_TIMEOUT_SECONDS, transport=transport, follow_redirects=False
        )
        self._is_created = False

    async def add(
        self,
        tenant: str,
        project: str,
        document: str,
        workflow: str,
        entries: Iterable[SegmentEntry],
    ) -> None:
        """Add segments, or replace them; see `SegmentSearch.add`.

        The workflow that adds last is the one that is searched.

        Raises:
            InvalidRequest: an entry or an id is not valid, or there are more than 1,000 entries.
            SearchUnavailable: OpenSearch does not respond, or refused the request.
            SearchIndexDamaged: the index has other fields.
        """
        validated_scope(tenant, project=project, document=document, workflow=workflow)
        checked = [validated_entry(each) for each in islice(entries, ENTRIES_MAX + 1)]
        if len(checked) > ENTRIES_MAX:
            raise InvalidRequest(
                f"one call may add at most {ENTRIES_MAX:,} entries: add them in parts",
                field="entries",
            )
        await self._create()
        key = _Source(tenant, project, document, workflow, 0, "", "")
        for body in _bulk_bodies(key, checked):
            answer = await self._request("POST", "_bulk", body, ndjson=True)
            _check_bulk(_decoded(answer, _BulkAnswer))
        others = {"must_not": [{"term": {"workflow": workflow}}]}
        await self._delete({"tenant": tenant, "document": document}, **others)

    async def remove(self, tenant: str, document: str) -> None:
        """Remove all segments of a document; do nothing where there is none.

        Raises:
            SearchUnavailable: OpenSearch does not respond, or refused the request.
        """
        await self._request("POST", "_refresh", b"", missing=b"")
        await self._delete({"tenant": tenant, "document": document})

    async def clear(self, tenant: str) -> None:
        """Remove all segments of a tenant.

        Raises:
            SearchUnavailable: OpenSearch does not respond, or refused the request.
        """
        await self._request("POST", "_refresh", b"", missing=b"")
        await self._delete({"tenant": tenant})

    async def search(
        self,
        tenant: str,
        text: str,
        *,
        project: str | None = None,
        document: str | None = None,
        limit: int = 20,
    ) -> list[SegmentHit]:
        """Return the segments that fit a question best; see `SegmentSearch.search`.

        Raises:
            InvalidQuery: the text has more than 1,000 characters, or a limit that is not from 1
                to 100.
            InvalidName: an id is not valid.
            SearchUnavailable: OpenSearch does not respond, or refused the request.
        """
        validated_scope(tenant, project=project, document=document)
        words = read_search(validated_query(text))
        limit = validated_hits(limit)
        if words.is_empty:
            return []
        scope = {"tenant": tenant, "project": project, "document": document}
        asked = {
            "size": limit,
            "query": _query(
                words, {name: each for name, each in scope.items() if each is not None}
            ),
            "_source": [*_KEYWORDS[1:], "segment", "title"],
            "highlight": _HIGHLIGHT,
        }
        nothing = b'{"hits": {"hits": []}}'
        answer = await self._request("POST", "_search", msgspec.json.encode(asked), missing=nothing)
        return [_hit_of(found) for found in _decoded(answer, _SearchAnswer).hits.hits]

    async def close(self) -> None:
        """Close the connections."""
        await self._client.aclose()

    async def _create(self) -> None:
        """Create the index, unless it exists."""
        if self._is_created:
            return
        body = msgspec.json.encode(_INDEX)
        await self._request("PUT", "", body, accepted="resource_already_exists_exception")
        self._is_created = True

    async def _delete(self, terms: Mapping[str, str], **more: Any) -> None:
        filters = [{"term": {name: value}} for name, value in terms.items()]
        body = msgspec.json.encode({"query": {"bool": {"filter": filters, **more}}})
        path = "_delete_by_query?conflicts=proceed&refresh=true"
        await self._request("POST", path, body, missing=b"")

    async def _request(
        self,
        method: str,
        path: str,
        body: bytes,
        *,
        ndjson: bool = False,
        missing: bytes | None = None,
        accepted: str = "",
    ) -> bytes:
        """Send a request; return the body of the answer, or ``missing`` if there is no index."""
        url = f"{self._address}/{self._index}" + (f"/{path}" if path else "")
        kind = "application/x-ndjson" if ndjson else "application/json"
        headers = {"content-type": kind} if body else {}
        if self._signer is not None:
            headers = await asyncio.to_thread(
                self._signer.signed_headers, method, url, headers=headers, body=body
            )
        try:
            async with self._client.stream(method, url, content=body, headers=headers) as response:
                answer = await _read_bounded(response)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise SearchUnavailable(
                f"OpenSearch at {self._shown} does not respond: {type(error).__name__}"
            ) from error
        if response.is_success:
            return answer
        reason = _reason_of(answer)
        if response.status_code == 404 and missing is not None:
            return missing
        if accepted and accepted in reason:
            return answer
        self._is_created = self._is_created and response.status_code != 404
        raise _refusal(response.status_code, reason, self._shown)

    @property
    def _shown(self) -> str:
        return without_credentials(self._address)


def _validated_address(url: str) -> str:
    try:
        parts = httpx.URL(url)
        usable = parts.scheme in ("http", "https") and parts.host and not parts.query
    except (httpx.InvalidURL, TypeError):
        usable, parts = False, httpx.URL("")
    if not usable or parts.userinfo:
        raise InvalidRequest(
            "the address of OpenSearch must be http(s)://host[:port] without credentials, got "
            f"{without_credentials(repr(url)):.200}",
            field="url",
        )
    return str(url).rstrip("/")


def _validated_index(index: str) -> str:
    if (
        not isinstance(index, str)
        or not index
        or len(index) > 200
        or not _INDEX_LETTERS.issuperset(index)
        or index[0] in "-_."
    ):
        raise InvalidRequest(
            "index must have 1 to 200 lower-case letters, digits, '-', '_' or '.', and begin with "
            f"a letter or a digit, got {index!r:.80}",
            field="index",
        )
    return index


def _bulk_bodies(key: _Source, entries: Sequence[SegmentEntry]) -> Iterator[bytes]:
    """Yield the bodies of bulk requests, each of which OpenSearch accepts in size."""
    body = bytearray()
    for entry in entries:
        source = msgspec.structs.replace(
            key, segment=entry.index, title=entry.title, body=entry.text
        )
        action = {"index": {"_id": _id_of(source)}}
        lines = b"%b\n%b\n" % (msgspec.json.encode(action), msgspec.json.encode(source))
        if body and len(body) + len(lines) > _BULK_BYTES_MAX:
            yield bytes(body)
            body.clear()
        body += lines
    if body:
        yield bytes(body)


def _id_of(source: _Source) -> str:
    names = (source.tenant, source.document, source.workflow, str(source.segment))
    return hashlib.blake2b("\0".join(names).encode(), digest_size=20).hexdigest()


def _check_bulk(answer: _BulkAnswer) -> None:
    """Raise the first error of a bulk request, a lasting one before one that may pass.

    Raises:
        SearchUnavailable: OpenSearch was too busy.
        SearchIndexDamaged: it refused an entry.
    """
    if not answer.errors:
        return
    failed = [item for each in answer.items for item in each.values() if item.status >= 300]
    failed.sort(key=lambda item: _is_passing(item.status))
    status = failed[0].status if failed else 500
    reason = bytes(failed[0].error).decode(errors="replace") if failed else ""
    raise _refusal(status, reason[:_REASON_LETTERS_MAX], "the index")


def _query(words: SearchWords, scope: Mapping[str, str]) -> dict[str, Any]:
    """Return the question as clauses: a person's words never become syntax."""
    should = [clause for phrase in words.any_of for clause in _clauses(phrase)]
    must = [_matches(phrase.text, type="phrase") for phrase in words.required]
    return {
        "bool": {
            "filter": [{"term": {name: value}} for name, value in scope.items()],
            "must": must,
            "should": should,
            "must_not": [_matches(phrase.text, type="phrase") for phrase in words.excluded],
            "minimum_should_match": 0 if must else 1,
        }
    }


def _clauses(phrase: SearchPhrase) -> Iterator[dict[str, Any]]:
    if phrase.is_prefix:
        yield _matches(phrase.text, type="phrase_prefix")
        return
    yield _matches(phrase.text, type="phrase")
    stem = stem_of(phrase.text)
    if stem is not None:
        yield _matches(stem, type="phrase_prefix", boost=0.5)


def _matches(text: str, **more: Any) -> dict[str, Any]:
    return {"multi_match": {"query": text, "fields": _FIELDS, **more}}


def _hit_of(found: _Found) -> SegmentHit:
    text, marks = marked_snippet(found.highlight.body[0] if found.highlight.body else "")
    source = found.source
    return SegmentHit(
        document=source.document,
        project=source.project,
        workflow=source.workflow,
        index=source.segment,
        title=source.title,
        snippet=text,
        marks=marks,
        score=found.score,
    )


# --- answers --------------------------------------------------------------------------------------


async def _read_bounded(response: httpx.Response) -> bytes:
    read = bytearray()
    async for piece in response.aiter_bytes():
        read += piece
        if len(read) > _ANSWER_BYTES_MAX:
            raise SearchUnavailable(
                f"OpenSearch sent more than {_ANSWER_BYTES_MAX:,} bytes in one answer"
            )
    return bytes(read)


def _decoded(answer: bytes, kind: type[Any]) -> Any:
    try:
        return msgspec.json.decode(answer, type=kind)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise SearchUnavailable(f"OpenSearch sent an answer that cannot be read: {error}") from None


def _reason_of(answer: bytes) -> str:
    """Return what an error says, which is text or an object of several forms."""
    try:
        shown: Any = msgspec.json.decode(answer)
    except (msgspec.MsgspecError, RecursionError):
        return answer[:_REASON_LETTERS_MAX].decode(errors="replace")
    error: Any = cast(dict[str, Any], shown).get("error") if isinstance(shown, dict) else shown
    if isinstance(error, dict):
        told = cast(dict[str, Any], error)
        error = f"{told.get('type')}: {told.get('reason')}"
    return str(error)[:_REASON_LETTERS_MAX]


def _is_passing(status: int) -> bool:
    return status in (401, 403, 404, 408, 429) or status >= 500


def _refusal(status: int, reason: str, place: str) -> Exception:
    if status in (401, 403):
        return SearchUnavailable(
            f"OpenSearch at {place} refused the credentials (status {status}): {reason}"
        )
    if _is_passing(status):
        return SearchUnavailable(f"OpenSearch at {place} answered with status {status}: {reason}")
    return SearchIndexDamaged(
        f"OpenSearch refused the request (status {status}): {reason}. If the index has other "
        "fields, delete it and build it again: holdfast documents reindex"
    )
