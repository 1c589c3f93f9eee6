"""The inbox: who may sign in, what they see, and which forms are accepted."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator

import httpx
import pytest
from joserfc import jwt
from joserfc.jwk import OctKey

from holdfast import Holdfast
from holdfast.clock import SystemClock
from holdfast.server import JwtOptions, ServerOptions
from tests.server.callers import bearer
from tests.server.review_pages import ANA, BEN, Desk, desk, form_of

SECRET = "a-secret-that-issuers-share-with-servers"
GUARDED = ServerOptions(
    authentication=True, key_rate=None, tenant_rate=None, jwt=JwtOptions(secret=SECRET)
)


@pytest.fixture
async def site(hf: Holdfast) -> AsyncIterator[Desk]:
    async with desk(hf, GUARDED) as opened:
        yield opened


@pytest.fixture
async def open_site(hf: Holdfast) -> AsyncIterator[Desk]:
    async with desk(hf) as opened:
        yield opened


def token_for(tenant: str, role: str, *, sub: str = "ann") -> str:
    claims = {"exp": 10**10, "tenant": tenant, "role": role, "sub": sub}
    return jwt.encode({"alg": "HS256"}, claims, OctKey.import_key(SECRET))


async def sign_in(site: Desk, name: str = ANA, role: str = "reviewer", **given: str) -> str:
    """Sign the client in with a new key; return the id of the key."""
    tenant = given.pop("tenant", "default")
    key = await site.hf.keys.create(name, tenant=tenant, role=role)  # type: ignore[arg-type]
    done = await site.http.post("/login", data={"key": key.secret, "end": "1", **given})
    assert done.status_code == 303, done.text
    return key.id


def token_of(page: str) -> str:
    found = re.search(r'name="form_token" value="([^"]+)"', page)
    assert found is not None, page
    return found[1]


async def post(site: Desk, path: str, **fields: str) -> httpx.Response:
    page = (await site.http.get(path)).text
    return await site.http.post(path, data={"form_token": token_of(page), "end": "1", **fields})


async def test_without_a_session_every_page_asks_to_sign_in(site: Desk) -> None:
    review = await site.review()
    for path in ("/reviews", f"/reviews/{review.id}"):
        answer = await site.http.get(path)
        assert answer.status_code == 401
        assert answer.headers["www-authenticate"] == "Bearer"
        assert '<input id="key" name="key" type="password"' in answer.text
        assert review.question not in answer.text


async def test_a_key_signs_in_and_the_cookie_is_guarded(site: Desk) -> None:
    key = await site.hf.keys.create(ANA, tenant="default", role="reviewer")
    done = await site.http.post(
        "/login", data={"key": f" {key.secret}\n", "next": "/reviews/run~1", "end": "1"}
    )
    assert (done.status_code, done.headers["location"]) == (303, "/reviews/run~1")
    cookie = done.headers["set-cookie"]
    assert key.secret.rpartition("_")[2] not in cookie
    for part in ("holdfast_session=", "HttpOnly", "SameSite=lax", "Path=/", "Max-Age=43200"):
        assert part in cookie, cookie
    assert "Secure" not in cookie
    page = await site.http.get("/reviews")
    assert page.status_code == 200
    assert ANA in page.text
    assert key.secret not in page.text


async def test_behind_https_the_cookie_is_sent_over_https_only(site: Desk) -> None:
    site.hf.callbacks.set_public_url("https://reviews.example.com")
    key = await site.hf.keys.create(ANA, tenant="default", role="reviewer")
    done = await site.http.post("/login", data={"key": key.secret, "end": "1"})
    assert "__Host-holdfast=" in done.headers["set-cookie"]
    assert "Secure" in done.headers["set-cookie"]
    text = done.headers["set-cookie"].partition("=")[2].partition(";")[0]
    site.http.cookies.clear()
    # Another host of the same site can set this one.
    planted = await site.http.get("/reviews", headers={"Cookie": f"holdfast_session={text}"})
    assert planted.status_code == 401
    own = await site.http.get("/reviews", headers={"Cookie": f"__Host-holdfast={text}"})
    assert own.status_code == 200
    assert "Sign out" in own.text


@pytest.mark.parametrize(
    "next",
    ["https://evil.example/reviews/", "//evil.example/reviews/", "/\\evil", "/v1/runs", "//[", ""],
)
async def test_signing_in_leads_to_no_other_site(site: Desk, next: str) -> None:
    key = await site.hf.keys.create(ANA, tenant="default", role="reviewer")
    done = await site.http.post("/login", data={"key": key.secret, "next": next, "end": "1"})
    assert done.headers["location"] == "/reviews"
    assert (await site.http.get("/login", params={"next": next})).status_code == 200


async def test_wrong_keys_weak_keys_and_too_many_of_them(site: Desk) -> None:
    for wrong in ("", "hf_x", "secret", token_for("default", "admin")):
        answer = await site.http.post("/login", data={"key": wrong, "end": "1"})
        assert answer.status_code == 422
        assert "The API key is not valid." in answer.text
        assert "set-cookie" not in answer.headers
    viewer = await site.hf.keys.create("v", tenant="default", role="viewer")
    answer = await site.http.post("/login", data={"key": viewer.secret, "end": "1"})
    assert answer.status_code == 403
    assert "reviews need the role reviewer" in answer.text
    statuses = [
        (await site.http.post("/login", data={"key": "hf_x", "end": "1"})).status_code
        for _ in range(60)
    ]
    assert statuses[-1] == 429


async def test_signing_in_from_another_site_is_refused(site: Desk) -> None:
    key = await site.hf.keys.create(ANA, tenant="default", role="reviewer")
    for headers in ({"Origin": "https://evil.example"}, {"Origin": "null"}):
        answer = await site.http.post(
            "/login", data={"key": key.secret, "end": "1"}, headers=headers
        )
        assert answer.status_code == 403
        assert "set-cookie" not in answer.headers


async def test_a_revoked_key_ends_the_session(site: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    id = await sign_in(site)
    assert (await site.http.get("/reviews")).status_code == 200
    await site.hf.keys.revoke(id)
    ahead = SystemClock().monotonic() + 3
    monkeypatch.setattr(site.hf.clock, "monotonic", lambda: ahead)
    answer = await site.http.get("/reviews")
    assert answer.status_code == 401
    assert "Your session has ended" in answer.text


async def test_a_forged_session_and_one_without_a_key_open_nothing(
    site: Desk, open_site: Desk
) -> None:
    named = await open_site.http.post("/login", data={"name": ANA, "end": "1"})
    text = named.cookies["holdfast_session"]
    for forged in (text, f"{text}x", "v1.a.b", ""):
        answer = await site.http.get("/reviews", headers={"Cookie": f"holdfast_session={forged}"})
        assert answer.status_code == 401


async def test_a_session_opens_pages_and_no_api(site: Desk) -> None:
    await sign_in(site, role="admin")
    assert (await site.http.get("/reviews")).status_code == 200
    for path in ("/v1/reviews", "/v1/runs", "/v1/keys"):
        assert (await site.http.get(path)).status_code == 401


async def test_signing_out(site: Desk) -> None:
    await sign_in(site)
    done = await site.http.post("/logout", data={"end": "1"})
    assert (done.status_code, done.headers["location"]) == (303, "/login")
    assert (await site.http.get("/reviews")).status_code == 401


async def test_a_header_works_without_a_cookie(site: Desk) -> None:
    review = await site.review(assignees=["ann"])
    token = bearer(token_for("default", "reviewer", sub="ann"))
    page = (await site.http.get("/reviews", headers=token)).text
    assert "Sign out" not in page
    assert review.question in page
    path = f"/reviews/{review.id}"
    form = {**form_of((await site.http.get(path, headers=token)).text), "action": "approve"}
    assert (await site.http.post(path, data=form, headers=token)).status_code == 303
    decision = (await site.hf.reviews.get(review.id)).decision
    assert decision is not None
    assert decision.by == "ann"


async def test_mine_all_and_overdue(site: Desk) -> None:
    mine = await site.review("mine", text="For Ana?", assignees=[ANA.upper()])
    anyone = await site.review("anyone", text="For all?")
    await site.review("bens", text="For Ben?", assignees=[BEN])
    await site.review("other", text="For a rival?", tenant="rival")
    await sign_in(site)
    page = (await site.http.get("/reviews")).text
    assert [text for text in ("For Ana?", "For all?", "For Ben?") if text in page] == [
        mine.question,
        anyone.question,
    ]
    counts = re.findall(r'(\w+) <span class="count">(\d+)</span>', page)
    assert counts == [("Mine", "2"), ("All", "3"), ("Overdue", "0")]
    every = (await site.http.get("/reviews?view=all")).text
    assert "For Ben?" in every
    assert "rival" not in every
    assert "Nothing is overdue." in (await site.http.get("/reviews?view=overdue")).text
    assert "Nothing was decided yet." in (await site.http.get("/reviews?view=decided")).text
    assert (await site.http.get("/reviews?view=none&utm=1")).status_code == 200
    assert (await site.http.get("/reviews?cursor=wrong")).status_code == 422


async def test_another_tenant_sees_nothing_and_changes_nothing(site: Desk) -> None:
    review = await site.review(tenant="rival")
    await sign_in(site, role="admin")
    path = f"/reviews/{review.id}"
    assert (await site.http.get(path)).status_code == 404
    form_token = await site.hf.sessions.sign_form("default/key:x")
    answer = await site.http.post(
        path,
        data={"action": "approve", "seen": review.rendered, "form_token": form_token, "end": "1"},
    )
    assert answer.status_code == 404
    assert await site.status(review) == "pending"


async def test_claim_release_reassign_comment_and_edit(site: Desk) -> None:
    review = await site.review(assignees=[ANA], with_form=True)
    await sign_in(site)
    path = f"/reviews/{review.id}"
    assert (await post(site, path, action="claim")).status_code == 303
    assert "only you can decide it" in (await site.http.get(path)).text
    assert (await post(site, path, action="release")).status_code == 303
    assert (await post(site, path, action="comment", text=" Hm. ")).status_code == 303
    form = form_of((await site.http.get(path)).text)
    edited = await site.http.post(path, data={**form, "v/months": "6", "action": "edit"})
    assert edited.status_code == 303
    same = form_of((await site.http.get(path)).text)
    assert (await site.http.post(path, data={**same, "action": "edit"})).status_code == 422
    assert (await post(site, path, action="comment", text=" ")).status_code == 422
    assert (await post(site, path, action="reassign", to=f"{BEN}\n\n{ANA} ")).status_code == 303
    assert (await post(site, path, action="reassign", to=BEN)).status_code == 303
    found = await site.hf.reviews.get(review.id)
    assert (found.assignees, found.values["months"]) == ((BEN,), 6)
    kinds = [action.kind for action in found.trail if action.kind != "notified"]
    assert kinds == ["claimed", "released", "commented", "edited", "reassigned", "reassigned"]
    page = (await site.http.get(path)).text
    for line in ("claimed it", "Hm.", "changed the values", f"reassigned it to {BEN}"):
        assert line in page
    form = {"form_token": form["form_token"], "end": "1"}  # the page has no forms any more
    for action, status in (("claim", 403), ("none", 400)):
        answer = await site.http.post(path, data={**form, "action": action})
        assert answer.status_code == status


async def test_people_who_are_not_assigned_get_no_forms_and_operators_get_those_that_work(
    site: Desk,
) -> None:
    review = await site.review(assignees=[BEN])
    path = f"/reviews/{review.id}"
    await sign_in(site)
    page = (await site.http.get(path)).text
    assert f"This review is assigned to {BEN}." in page
    for button in ("claim", "reassign", "comment", "approve"):
        assert f'value="{button}"' not in page
    await sign_in(site, role="operator")
    page = (await site.http.get(path)).text
    for button, is_there in (("claim", False), ("reassign", True), ("comment", True)):
        assert (f'value="{button}"' in page) is is_there, button
    assert (await post(site, path, action="comment", text="Hm.")).status_code == 303


async def test_a_decided_review_shows_what_was_approved_and_changed(site: Desk) -> None:
    review = await site.review(assignees=[ANA], with_form=True)
    values = {"months": 6, "cover": "parts", "notes": ["frost"], "urgent": False}
    await site.hf.reviews.approve(review.id, by=ANA, values=values)
    await sign_in(site)
    page = (await site.http.get(f"/reviews/{review.id}")).text
    assert "Approved values</h2>" in page
    assert "<bdi>months: 24 → 6</bdi>" in page


async def test_a_claim_of_another_reviewer_is_shown_and_can_be_taken_over(site: Desk) -> None:
    review = await site.review()
    await site.hf.reviews.claim(review.id, by=BEN)
    await sign_in(site)
    path = f"/reviews/{review.id}"
    page = (await site.http.get(path)).text
    assert f"{BEN} has claimed this review." in page
    assert "Approve</button>" not in page
    assert (await post(site, path, action="claim")).status_code == 409
    assert (await post(site, path, action="claim", take_over="1")).status_code == 303
    assert (await site.hf.reviews.get(review.id)).claimed_by == ANA


async def test_a_form_needs_its_token(site: Desk) -> None:
    review = await site.review()
    path = f"/reviews/{review.id}"
    await sign_in(site, name=BEN)
    foreign = token_of((await site.http.get(path)).text)
    await sign_in(site)
    form = {"action": "claim", "end": "1"}
    for wrong in ({}, {"form_token": "x"}, {"form_token": foreign}):
        assert (await site.http.post(path, data={**form, **wrong})).status_code == 403
    for headers in ({"Sec-Fetch-Site": "cross-site"}, {"Origin": "null"}):
        token = token_of((await site.http.get(path)).text)
        sent = {**form, "form_token": token}
        assert (await site.http.post(path, data=sent, headers=headers)).status_code == 403
    assert (await site.hf.reviews.get(review.id)).claimed_by is None


async def test_without_authentication_people_choose_their_names(open_site: Desk) -> None:
    site = open_site
    review = await site.review()
    path = f"/reviews/{review.id}"
    assert ">local</span>" in (await site.http.get("/reviews")).text
    for wrong in ("", "*", "x" * 201, "a\tb"):
        answer = await site.http.post("/login", data={"name": wrong, "end": "1"})
        assert answer.status_code == 422
    await site.http.post("/login", data={"name": "Ana <b>", "end": "1"})
    assert ">Ana &lt;b&gt;</span>" in (await site.http.get("/reviews")).text
    assert (await post(site, path, action="claim")).status_code == 303
    assert (await site.hf.reviews.get(review.id)).claimed_by == "Ana <b>"
    evil = {"Origin": "https://evil.example"}
    assert (await site.http.get(path, headers=evil)).status_code == 403
    assert (await site.http.get(path, headers={"Host": "evil.example"})).status_code == 421


async def test_paging(site: Desk) -> None:
    for number in range(52):
        await site.review(f"run-{number:02}", text=f"Question {number:02}?")
    await sign_in(site)
    first = (await site.http.get("/reviews")).text
    found = re.search(r'href="(/reviews\?view=mine&amp;cursor=[^"]+)">Next page', first)
    assert found is not None
    second = (await site.http.get(found[1].replace("&amp;", "&"))).text
    asked = [set(re.findall(r"Question \d\d", page)) for page in (first, second)]
    assert [len(each) for each in asked] == [50, 2]
    assert not asked[0] & asked[1]
    assert "First page" in second
