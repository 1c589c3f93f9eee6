"""The search in OpenSearch, against a server that gives recorded answers."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from holdfast.documents.search import SegmentSearch
from holdfast.documents.sqlite_search import SqliteSegmentSearch
from holdfast.errors import (
    CredentialsMissing,
    InvalidQuery,
    InvalidRequest,
    InvalidUrl,
    SearchIndexDamaged,
    SearchUnavailable,
)
from holdfast.integrations.opensearch import OpenSearchSegments
from holdfast.integrations.search_address import open_search
from holdfast.model.segment_search import SegmentEntry
from tests.servers import stub_http
from tests.servers.stub_http import Endpoint, Step, say

CREATED = {"acknowledged": True, "shards_acknowledged": True, "index": "segments"}
EXISTS = {
    "error": {
        "root_cause": [{"type": "resource_already_exists_exception", "reason": "index exists"}],
        "type": "resource_already_exists_exception",
        "reason": "index [segments/0vR] already exists",
        "index": "segments",
    },
    "status": 400,
}
NO_INDEX = {
    "error": {"type": "index_not_found_exception", "reason": "no such index [segments]"},
    "status": 404,
}
BULK = {
    "took": 7,
    "errors": False,
    "items": [{"index": {"_index": "segments", "_id": "1f", "result": "created", "status": 201}}],
}
DELETED = {"took": 9, "timed_out": False, "total": 1, "deleted": 1, "failures": []}
REFRESHED = {"_shards": {"total": 2, "successful": 1, "failed": 0}}
FOUND = {
    "took": 3,
    "timed_out": False,
    "_shards": {"total": 1, "successful": 1, "skipped": 0, "failed": 0},
    "hits": {
        "total": {"value": 1, "relation": "eq"},
        "max_score": 2.5,
        "hits": [
            {
                "_index": "segments",
                "_id": "1f",
                "_score": 2.5,
                "_source": {
                    "project": "proj",
                    "document": "doc",
                    "workflow": "wf",
                    "segment": 3,
                    "title": "Terms",
                },
                "highlight": {"body": ["The \x02total\x03 <b>amount</b>"]},
            }
        ],
    },
}


def ok(body: Any, status: int = 200) -> Step:
    return say(json.dumps(body).encode(), status=status)


@pytest.fixture
async def endpoint() -> AsyncIterator[Endpoint]:
    async with stub_http.serve() as endpoint:
        yield endpoint


@pytest.fixture
async def search(endpoint: Endpoint) -> AsyncIterator[OpenSearchSegments]:
    opened = OpenSearchSegments(endpoint.url, index="segments", auth=("ana", "secret"))
    yield opened
    await opened.close()


def entry(index: int = 1, text: str = "word") -> SegmentEntry:
    return SegmentEntry(index, text)


async def test_segments_are_added_in_bulk(endpoint: Endpoint, search: OpenSearchSegments) -> None:
    endpoint.plan(ok(CREATED), ok(BULK), ok(DELETED), ok(BULK), ok(DELETED))
    await search.add("t", "proj", "doc", "wf", [entry(1, "one\ntwo"), entry(2)])
    await search.add("t", "proj", "doc", "wf", [entry(1, "changed")])
    created, bulk, deleted, again, _ = endpoint.asked
    assert created.path == "/segments"
    assert created.fields["mappings"]["properties"]["tenant"] == {"type": "keyword"}
    assert created.headers["authorization"].startswith("Basic ")
    assert bulk.path == "/segments/_bulk"
    assert bulk.headers["content-type"] == "application/x-ndjson"
    action, source, second, _, end = bulk.body.split(b"\n")
    assert end == b""
    assert json.loads(source) == {
        **{"tenant": "t", "project": "proj", "document": "doc", "workflow": "wf"},
        **{"segment": 1, "title": "", "body": "one two"},
    }
    assert action != second
    # The same segment again has the same id, so it is replaced.
    assert again.body.split(b"\n")[0] == action
    assert deleted.path.startswith("/segments/_delete_by_query?")
    assert deleted.fields["query"]["bool"] == {
        "filter": [{"term": {"tenant": "t"}}, {"term": {"document": "doc"}}],
        "must_not": [{"term": {"workflow": "wf"}}],
    }


async def test_an_index_that_exists_is_used(endpoint: Endpoint, search: OpenSearchSegments) -> None:
    endpoint.plan(ok(EXISTS, 400), ok(BULK), ok(DELETED))
    await search.add("t", "proj", "doc", "wf", [entry()])
    assert len(endpoint.asked) == 3


async def test_a_large_addition_is_several_requests(
    endpoint: Endpoint, search: OpenSearchSegments
) -> None:
    endpoint.plan(ok(CREATED), ok(BULK), ok(BULK), ok(DELETED))
    await search.add("t", "proj", "doc", "wf", [entry(n, "x" * 200_000) for n in range(1, 31)])
    sizes = [len(asked.body) for asked in endpoint.asked if asked.path.endswith("_bulk")]
    assert len(sizes) == 2
    assert max(sizes) <= 5 * 1024 * 1024
    with pytest.raises(InvalidRequest, match="at most 1,000 entries"):
        await search.add("t", "proj", "doc", "wf", [entry(n) for n in range(1, 1002)])


async def test_a_question_becomes_clauses_and_never_syntax(
    endpoint: Endpoint, search: OpenSearchSegments
) -> None:
    endpoint.plan(ok(FOUND), ok(FOUND))
    question = 'what is the total* of "net amount" OR title:x -draft {"query": 1}'
    (hit,) = await search.search("t", question, project="proj", limit=5)
    assert (hit.document, hit.workflow, hit.index, hit.title) == ("doc", "wf", 3, "Terms")
    assert hit.parts() == [("The ", False), ("total", True), (" <b>amount</b>", False)]
    assert hit.score == 2.5
    asked = endpoint.asked[0].fields
    assert asked["size"] == 5
    query = asked["query"]["bool"]
    assert query["filter"] == [{"term": {"tenant": "t"}}, {"term": {"project": "proj"}}]
    assert [each["multi_match"]["query"] for each in query["must"]] == ["net amount", "query"]
    assert [each["multi_match"]["query"] for each in query["must_not"]] == ["draft"]
    assert query["should"][0]["multi_match"] == {
        **{"query": "total", "fields": ["title^3", "body"], "type": "phrase_prefix"}
    }
    assert query["minimum_should_match"] == 0
    assert "query_string" not in json.dumps(asked)
    await search.search("t", "amounts")
    query = endpoint.asked[1].fields["query"]["bool"]
    assert [each["multi_match"]["query"] for each in query["should"]] == ["amounts", "amount"]
    assert query["minimum_should_match"] == 1


async def test_a_document_and_a_tenant_are_removed(
    endpoint: Endpoint, search: OpenSearchSegments
) -> None:
    endpoint.plan(ok(REFRESHED), ok(DELETED), ok(REFRESHED), ok(DELETED))
    await search.remove("t", "doc")
    await search.clear("t")
    assert endpoint.asked[0].path == "/segments/_refresh"
    terms = [asked.fields["query"]["bool"]["filter"] for asked in endpoint.asked[1::2]]
    assert terms == [
        [{"term": {"tenant": "t"}}, {"term": {"document": "doc"}}],
        [{"term": {"tenant": "t"}}],
    ]


async def test_without_an_index_there_is_nothing(
    endpoint: Endpoint, search: OpenSearchSegments
) -> None:
    endpoint.plan(*(ok(NO_INDEX, 404) for _ in range(3)))
    assert await search.search("t", "word") == []
    await search.remove("t", "doc")
    # Without a word, nothing is asked.
    assert await search.search("t", "?!") == []
    assert len(endpoint.asked) == 3


@pytest.mark.parametrize(
    ("status", "body", "error", "told"),
    [
        (
            429,
            {"error": {"type": "rejected", "reason": "full"}},
            SearchUnavailable,
            "rejected: full",
        ),
        (503, "<html>busy</html>", SearchUnavailable, "503"),
        (401, "Unauthorized", SearchUnavailable, "credentials"),
        (403, {"message": "no"}, SearchUnavailable, "credentials"),
        (400, {"error": "other fields"}, SearchIndexDamaged, "holdfast documents reindex"),
        (302, {}, SearchIndexDamaged, "302"),
        (200, [1], SearchUnavailable, "cannot be read"),
        (200, {"hits": {"hits": [{}]}}, SearchUnavailable, "cannot be read"),
    ],
)
async def test_what_fails_is_an_error_of_a_search(
    endpoint: Endpoint,
    search: OpenSearchSegments,
    status: int,
    body: Any,
    error: type[Exception],
    told: str,
) -> None:
    endpoint.plan(ok(body, status))
    with pytest.raises(error, match=told):
        await search.search("t", "word")


async def test_a_refused_entry_is_an_error(endpoint: Endpoint, search: OpenSearchSegments) -> None:
    busy = {"index": {"status": 429, "error": {"type": "rejected", "reason": "queue"}}}
    wrong = {"index": {"status": 400, "error": {"type": "mapper_parsing_exception"}}}
    endpoint.plan(ok(CREATED), ok({"took": 1, "errors": True, "items": [busy, wrong]}))
    with pytest.raises(SearchIndexDamaged, match="mapper_parsing"):
        await search.add("t", "p", "d", "w", [entry(1), entry(2)])
    endpoint.plan(ok({"took": 1, "errors": True, "items": [busy]}))
    with pytest.raises(SearchUnavailable, match="queue"):
        await search.add("t", "p", "d", "w", [entry(1)])


async def test_a_server_that_is_gone_is_unavailable(
    endpoint: Endpoint, search: OpenSearchSegments
) -> None:
    endpoint.plan(stub_http.drop)
    with pytest.raises(SearchUnavailable, match="does not respond"):
        await search.search("t", "word")
    with pytest.raises(InvalidQuery):
        await search.search("t", "word", limit=0)


async def test_requests_are_signed_with_credentials_of_aws(
    endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("AWS_SESSION_TOKEN", "token")
    search = OpenSearchSegments(endpoint.url, region="eu-west-1")
    endpoint.plan(ok(FOUND))
    assert len(await search.search("t", "total")) == 1
    await search.close()
    headers = endpoint.asked[0].headers
    assert headers["authorization"].startswith("AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/")
    assert "/eu-west-1/es/aws4_request" in headers["authorization"]
    assert "content-type;host;x-amz-date" in headers["authorization"]
    assert headers["x-amz-security-token"] == "token"
    assert "secret" not in str(headers)


async def test_missing_credentials_are_an_error(
    endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    search = OpenSearchSegments(endpoint.url, region="eu-west-1", profile="no-such-profile")
    with pytest.raises(CredentialsMissing):
        await search.search("t", "total")
    await search.close()
    assert endpoint.asked == []


@pytest.mark.parametrize(
    ("url", "given"),
    [
        ("https://ana:secret@host", {}),
        ("ftp://host", {}),
        ("host:9200", {}),
        ("https://host?x=1", {}),
        ("https://host", {"index": "Upper"}),
        ("https://host", {"index": "_hidden"}),
        ("https://host", {"index": "a/../_all"}),
        ("https://host", {"auth": ("a", "b"), "region": "eu-west-1"}),
        ("https://host", {"region": ""}),
    ],
)
def test_what_cannot_be_an_address_or_an_index(url: str, given: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest) as raised:
        OpenSearchSegments(url, **given)
    assert "secret" not in str(raised.value)


async def test_addresses_of_searches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_SEARCH_AUTH", "ana:secret")
    assert open_search("none") is None
    opened = [
        open_search("sqlite:///some/index.db"),
        open_search("opensearch+https://host:9200?index=mine"),
        open_search("opensearch+https://host?region=eu-west-1"),
    ]
    kinds = [SqliteSegmentSearch, OpenSearchSegments, OpenSearchSegments]
    assert [type(each) for each in opened] == kinds
    for each in opened:
        assert isinstance(each, SegmentSearch)
        await each.close()
    wrong = ("", "https://host", "sqlite://:memory:", "sqlite:///x?changes=on", "dynamodb://x")
    for address in (*wrong, "opensearch+https://host?colour=red", "opensearch+https://host?index="):
        with pytest.raises(InvalidUrl, match="opensearch\\+https"):
            open_search(address)
