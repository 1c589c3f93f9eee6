"""Links to reviews: what they show, what they decide, and what they must never do."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from holdfast import Holdfast
from holdfast.errors import (
    InvalidRequest,
    PublicUrlMissing,
    ReviewLinkExpired,
    ReviewLinkInvalid,
    StoreUnavailable,
)
from holdfast.model.review import Review
from tests.server.review_pages import ANA, BEN, Desk, Question, asked, desk, form_of

NEVER = {
    "content-security-policy": "default-src 'none'; style-src 'self'; form-action 'self'; "
    "base-uri 'none'; frame-ancestors 'none'",
    "cache-control": "no-store",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-robots-tag": "noindex, nofollow",
}


@pytest.fixture
async def site(hf: Holdfast) -> AsyncIterator[Desk]:
    async with desk(hf) as opened:
        yield opened


async def test_a_link_is_for_one_review_and_one_reviewer(site: Desk) -> None:
    review = await site.review(tenant="acme")
    token = (await site.link(review)).removeprefix("/r/")
    assert await site.hf.reviews.open_link(token) == ("acme", review.id, ANA)
    for wrong in ("", "x", token[:-1], f"{token}A", token.upper(), "v1.a.b", None, 5):
        with pytest.raises(ReviewLinkInvalid):
            await site.hf.reviews.open_link(wrong)  # type: ignore[arg-type]
    for reviewer in ("", " ", "*", "a\nb", "x" * 201, 5):
        with pytest.raises(InvalidRequest, match="reviewer must be a name"):
            await site.hf.reviews.link(review.id, reviewer=reviewer, tenant="acme")  # type: ignore[arg-type]


async def test_a_token_of_another_purpose_is_no_link(site: Desk) -> None:
    review = await site.review()
    form = await site.hf.sessions.sign_form(f"default{review.run}")
    with pytest.raises(ReviewLinkInvalid):
        await site.hf.reviews.open_link(form)


def pass_a_millisecond(site: Desk) -> None:
    """Return when a link that was made for a millisecond has expired."""
    expired_ms = site.hf.clock.now_ms() + 1
    while site.hf.clock.now_ms() < expired_ms:
        pass


async def test_a_link_expires_with_its_review_or_earlier(site: Desk) -> None:
    review = await site.review()
    early = (await site.link(review, expires="1ms")).removeprefix("/r/")
    pass_a_millisecond(site)
    with pytest.raises(ReviewLinkExpired):
        await site.hf.reviews.open_link(early)
    with pytest.raises(InvalidRequest, match="expires must be more than 0"):
        await site.link(review, expires=0)


async def test_an_expired_link_says_what_became_of_the_review(site: Desk) -> None:
    review = await site.review(expires="1s")
    path = await site.link(review)
    await site.hf.run(review.run).until("finished", timeout=20)
    answer = await site.http.get(path)
    assert answer.status_code == 410
    assert "This review has expired" in answer.text
    assert "the run went on without an approval" in answer.text
    assert "ask for a new link" not in answer.text

    review = await site.review("approved")
    path = await site.link(review, expires="1ms")
    pass_a_millisecond(site)
    assert "ask for a new link" in (await site.http.get(path)).text
    await site.hf.reviews.approve(review.id, by=BEN)
    told = (await site.http.get(path)).text
    assert "This review is decided" in told
    assert BEN not in told


async def test_a_link_needs_the_address_of_the_server(hf: Holdfast) -> None:
    async with hf.worker([asked]):
        run = await hf.start(asked, Question(), id="run")
        await run.until("waiting", timeout=20)
    [entry] = (await hf.reviews.list()).reviews
    with pytest.raises(PublicUrlMissing, match="links to reviews need the address"):
        await hf.reviews.link(entry.id, reviewer=ANA)


async def test_rotated_keys_still_open_links_and_revoked_ones_do_not(site: Desk) -> None:
    review = await site.review()
    path = await site.link(review)
    await site.hf.callbacks.rotate_keys()
    assert (await site.http.get(path)).status_code == 200
    await site.hf.callbacks.rotate_keys(revoke=True)
    assert (await site.http.get(path)).status_code == 404


async def test_following_a_link_changes_nothing(site: Desk) -> None:
    review = await site.review(with_form=True)
    path = await site.link(review)
    before = await _what_people_did(site, review)

    for method in ("GET", "HEAD", "OPTIONS"):
        for headers in ({}, {"Purpose": "prefetch"}, {"Sec-Purpose": "prefetch;prerender"}):
            answer = await site.http.request(method, f"{path}?utm_source=mail", headers=headers)
            assert answer.status_code in (200, 204), (method, answer.text)
    for method in ("PUT", "PATCH", "DELETE"):
        assert (await site.http.request(method, path)).status_code == 405
    assert await _what_people_did(site, review) == before


async def test_every_page_has_strict_headers(site: Desk) -> None:
    review = await site.review()
    for path in (await site.link(review), "/r/forged", await site.link(review, expires="1ms")):
        answer = await site.http.get(path)
        assert answer.headers["content-type"] == "text/html; charset=utf-8"
        assert {name: answer.headers[name] for name in NEVER} == NEVER
        assert "<script" not in answer.text
        assert "style=" not in answer.text


async def test_the_form_goes_back_unchanged_and_edited(site: Desk) -> None:
    review = await site.review(with_form=True)
    path = await site.link(review)
    form = form_of((await site.http.get(path)).text)
    assert form["v/months"] == "24"
    entered = {**form, "action": "approve", "v/months": "61", "comment": "kept?"}
    wrong = await site.http.post(path, data=entered)
    assert wrong.status_code == 422
    assert "it must be at most 60" in wrong.text
    assert 'value="61"' in wrong.text
    assert "kept?" in wrong.text
    assert await site.status(review) == "pending"
    entered |= {"v/months": "12", "v/urgent": "1", "comment": "fine"}
    done = await site.http.post(path, data=entered)
    assert (done.status_code, done.headers["location"]) == (303, path)
    decided = (await site.hf.reviews.get(review.id)).decision
    assert decided is not None
    assert decided.values == {"months": 12, "cover": "parts", "notes": ["frost"], "urgent": True}
    assert (decided.by, decided.comment) == (ANA, "fine")
    result = await site.hf.run("run").result(timeout=20)
    assert (result["outcome"], result["months"]) == ("approved", 12)
    page = (await site.http.get(path)).text
    assert f"Approved by <bdi>{ANA}</bdi>" in page
    assert "<button" not in page


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"v/months": ""}, "it must not be empty"),
        ({"v/months": "12.5"}, "it must be an integer"),
        ({"v/months": "1e400"}, "it must be an integer"),
        ({"v/cover": ""}, "choose one"),
        ({"v/cover": "7"}, "choose one"),
        ({"comment": "x" * 4001}, "comment must"),
    ],
)
async def test_wrong_values_are_shown_again(
    site: Desk, change: dict[str, str], message: str
) -> None:
    review = await site.review(with_form=True)
    path = await site.link(review)
    form = form_of((await site.http.get(path)).text)
    answer = await site.http.post(path, data={**form, **change, "action": "approve"})
    assert answer.status_code == 422
    assert message in answer.text
    assert await site.status(review) == "pending"


async def test_a_changed_review_is_shown_again_with_the_difference(site: Desk) -> None:
    review = await site.review(with_form=True)
    path = await site.link(review)
    form = form_of((await site.http.get(path)).text)
    values = {"months": 36, "cover": "parts", "notes": ["frost"], "urgent": False}
    await site.hf.reviews.edit(review.id, by=BEN, values=values)
    answer = await site.http.post(
        path, data={**form, "v/cover": "0", "comment": "my comment", "action": "approve"}
    )
    assert answer.status_code == 409
    assert "This review was changed after you opened the page" in answer.text
    assert "months: 24 → 36" in answer.text
    assert "Stored now: <bdi>parts</bdi>" in answer.text
    assert "my comment" in answer.text
    assert await site.status(review) == "pending"
    again = form_of(answer.text)
    # What was entered is kept. Untouched fields show what is stored now.
    assert (again["v/months"], again["v/cover"]) == ("36", "0")
    assert again["seen"] != form["seen"]
    done = await site.http.post(path, data={**again, "action": "approve"})
    assert done.status_code == 303
    assert (await site.hf.run("run").result(timeout=20))["months"] == 36


async def test_a_form_without_what_was_seen_decides_nothing(site: Desk) -> None:
    review = await site.review()
    path = await site.link(review)
    form = {"action": "approve", "end": "1"}
    assert (await site.http.post(path, data=form)).status_code == 409
    assert (await site.http.post(path, data={**form, "seen": "0" * 32})).status_code == 409
    assert await site.status(review) == "pending"


async def test_the_second_reviewer_reads_who_decided(site: Desk) -> None:
    review = await site.review()
    ana, ben = await site.link(review), await site.link(review, BEN)
    forms = {path: form_of((await site.http.get(path)).text) for path in (ana, ben)}
    assert (await site.http.post(ana, data={**forms[ana], "action": "reject"})).status_code == 303
    late = await site.http.post(ben, data={**forms[ben], "action": "approve"})
    assert late.status_code == 409
    assert "it was decided before" in late.text
    assert f"Rejected by <bdi>{ANA}</bdi>" in late.text
    # The same button, pressed twice, is no conflict.
    again = await site.http.post(ana, data={**forms[ana], "action": "reject"})
    assert again.status_code == 303


async def test_a_link_does_not_outrank_an_assignment(site: Desk) -> None:
    review = await site.review(assignees=[ANA])
    path = await site.link(review, BEN)
    page = (await site.http.get(path)).text
    assert f"This review is assigned to {ANA}." in page
    assert "<button" not in page
    form = {"seen": review.rendered, "action": "approve", "end": "1"}
    refused = await site.http.post(path, data=form)
    assert refused.status_code == 403
    assert await site.status(review) == "pending"


async def test_votes_of_a_quorum(site: Desk) -> None:
    review = await site.review(quorum=2, with_form=True)
    for number, person in enumerate((ANA, BEN)):
        path = await site.link(review, person)
        page = (await site.http.get(path)).text
        assert f"So far: {number} to approve" in page
        done = await site.http.post(path, data={**form_of(page), "action": "approve"})
        assert done.status_code == 303
        assert "<button" not in (await site.http.get(path)).text
    assert await site.status(review) == "approved"


@pytest.mark.parametrize("action", ["claim", "reassign", "comment", "edit", "withdraw", ""])
async def test_a_link_decides_and_does_nothing_else(site: Desk, action: str) -> None:
    review = await site.review(with_form=True)
    path = await site.link(review)
    form = form_of((await site.http.get(path)).text)
    answer = await site.http.post(path, data={**form, "to": BEN, "text": "x", "action": action})
    assert answer.status_code == 400
    trail = (await site.hf.reviews.get(review.id)).trail
    assert [each.kind for each in trail if each.kind != "notified"] == []


@pytest.mark.parametrize(
    "headers",
    [
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Sec-Fetch-Site": "cross-site", "Origin": "http://localhost"},
        {"Origin": "https://evil.example"},
        {"Origin": "http://localhost.evil.example"},
        {"Origin": "http://[localhost"},
    ],
)
async def test_a_form_of_another_site_is_refused(site: Desk, headers: dict[str, str]) -> None:
    review = await site.review()
    path = await site.link(review)
    form = {**form_of((await site.http.get(path)).text), "action": "approve"}
    assert (await site.http.post(path, data=form, headers=headers)).status_code == 403
    assert await site.status(review) == "pending"


@pytest.mark.parametrize(
    "headers",
    [{}, {"Origin": "null", "Sec-Fetch-Site": "same-origin"}, {"Origin": "http://localhost"}],
)
async def test_our_own_form_is_accepted(site: Desk, headers: dict[str, str]) -> None:
    review = await site.review()
    path = await site.link(review)
    form = {**form_of((await site.http.get(path)).text), "action": "approve"}
    assert (await site.http.post(path, data=form, headers=headers)).status_code == 303


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        ({"content": b"{}", "headers": {"Content-Type": "application/json"}}, 415),
        ({"content": b"action=approve"}, 400),
        ({"content": b"action=approve&action=reject&end=1"}, 400),
        ({"content": b"\xff=1&end=1"}, 400),
        ({"content": b"a=%ff&end=1"}, 400),
        ({"content": b"&".join(b"%d=1" % number for number in range(3000)) + b"&end=1"}, 400),
        ({"content": b""}, 400),
    ],
)
async def test_a_broken_form_is_refused(site: Desk, sent: dict[str, Any], status: int) -> None:
    review = await site.review()
    path = await site.link(review)
    headers = {"Content-Type": "application/x-www-form-urlencoded", **sent.pop("headers", {})}
    answer = await site.http.post(path, headers=headers, **sent)
    assert answer.status_code == status
    assert answer.headers["content-type"].startswith("text/html")
    assert await site.status(review) == "pending"


async def test_a_link_is_throttled(site: Desk) -> None:
    review = await site.review()
    path = await site.link(review)
    statuses = [(await site.http.get(path)).status_code for _ in range(70)]
    assert statuses[0] == 200
    assert statuses[-1] == 429
    assert (await site.http.get(await site.link(review, BEN))).status_code == 200


async def test_no_log_and_no_metric_shows_a_token(
    site: Desk, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.DEBUG)
    review = await site.review()
    path = await site.link(review)
    await site.http.get(path)
    await site.http.post(path, data={"action": "approve", "end": "1"})
    await site.http.get(f"{path}/more")

    async def fail(*given: object, **named: object) -> None:
        raise RuntimeError("a mistake in the server")

    monkeypatch.setattr(site.hf.reviews, "get", fail)
    broken = await site.http.get(path)
    assert broken.status_code == 500
    assert "a mistake" not in broken.text
    assert "a mistake in the server" in caplog.text
    metrics = (await site.http.get("/metrics")).text
    assert 'route="/r/{token}"' in metrics
    token = path.removeprefix("/r/")
    logged = "".join(caplog.handler.format(each) for each in caplog.records if each.name != "httpx")
    assert "GET /r/{token} 500" in logged
    for part in token.split(".")[1:]:
        assert part not in logged
        assert part not in metrics
        assert part not in broken.text


async def test_without_a_store_the_pages_say_so_and_no_more(
    site: Desk, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    review = await site.review()
    path = await site.link(review)
    form = {**form_of((await site.http.get(path)).text), "action": "approve"}

    async def fail(*given: object, **named: object) -> None:
        raise StoreUnavailable("no answer from db.internal:8000")

    monkeypatch.setattr(site.hf.reviews, "get", fail)
    monkeypatch.setattr(site.hf.reviews, "list", fail)
    answers = [await site.http.get(each) for each in (path, "/reviews", f"/reviews/{review.id}")]
    for answer in (*answers, await site.http.post(path, data=form)):
        assert answer.status_code == 503
        assert answer.headers["retry-after"] == "1"
        assert answer.headers["content-security-policy"] == NEVER["content-security-policy"]
        assert "<h1>The server cannot answer now</h1>" in answer.text
        assert "db.internal" not in answer.text
    assert "GET /r/{token} cannot be answered now: no answer from db.internal:8000" in caplog.text


async def test_hostile_and_huge_data(site: Desk) -> None:
    evil = "<script>alert(1)</script>\"'`{{1234*1234}}\u202egnp.\x00\x1b[2J"
    shown = {
        evil: evil,
        "long": "word " * 40_000,
        "many": list(range(5_000)),
        "deep": _nested(60),
        "empty": {"text": "", "list": [], "dict": {}, "null": None, "yes": True},
    }
    review = await site.review(text=evil.replace("\x00", ""), shown=shown)
    answer = await site.http.get(await site.link(review, "<i>ana</i>"))
    assert answer.status_code == 200
    assert "<script>" not in answer.text
    assert "<i>" not in answer.text
    assert "\u202e" not in answer.text
    assert "\x1b" not in answer.text
    assert str(1234 * 1234) not in answer.text
    assert "180,000 more characters are not shown here" in answer.text
    assert "more items are not shown here" in answer.text
    assert len(answer.content) < 400_000


async def test_a_page_of_a_mounted_server(hf: Holdfast) -> None:
    async with desk(hf) as site:
        review = await site.review()
        path = await site.link(review)
        transport = httpx.ASGITransport(site.app, root_path="/hf")
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
            page = await http.get(f"/hf{path}")
            assert f'action="/hf{path}"' in page.text
            assert 'href="/hf/pages/style-' in page.text
            form = {**form_of(page.text), "action": "approve"}
            done = await http.post(f"/hf{path}", data=form)
            assert done.headers["location"] == f"/hf{path}"


def _nested(depth: int) -> Any:
    return {"in": _nested(depth - 1)} if depth else "bottom"


async def _what_people_did(site: Desk, review: Review) -> list[Any]:
    found = await site.hf.reviews.get(review.id, tenant=review.tenant)
    actions = [each for each in found.trail if each.kind != "notified"]
    return [found.status, found.rendered, found.claimed_by, found.votes, found.decision, actions]
