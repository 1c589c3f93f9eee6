"""Reviews over HTTP: who acts, what is answered, and what the trail and the run get."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from holdfast import Holdfast
from holdfast.server import ServerOptions, asgi
from tests.server.callers import bearer
from tests.server.graphs import GRAPHS, Order, Sale, refunding, reviewed

ROLES = {"ana": "reviewer", "bob": "reviewer", "vic": "viewer", "ops": "operator"}


class Desk:
    """A server with a worker, and people who have keys."""

    def __init__(self, hf: Holdfast, http: httpx.AsyncClient, secrets: dict[str, str]) -> None:
        self.hf, self.http, self.secrets = hf, http, secrets

    async def ask(self, id: str = "sale-1", **given: Any) -> str:
        """Start a run that asks for a review; return the review's id."""
        await self.hf.start(reviewed, Sale("lamp", **given), id=id)
        await self.hf.run(id).until("waiting", timeout=20)
        return (await self.hf.reviews.list(run=id)).reviews[0].id

    async def get(self, who: str, path: str, **query: Any) -> httpx.Response:
        return await self.http.get(path, params=query, headers=bearer(self.secrets[who]))

    async def act(
        self, who: str, id: str, action: str, body: Any = None, **headers: str
    ) -> httpx.Response:
        sent = {**bearer(self.secrets[who]), **headers}
        return await self.http.post(f"/v1/reviews/{id}/{action}", json=body, headers=sent)

    async def resume(self, who: str, run: str, *entries: Any) -> httpx.Response:
        sent = bearer(self.secrets[who])
        body = {"threadId": "t", "runId": "r", "resume": entries}
        return await self.http.post(f"/v1/runs/{run}/interrupts", json=body, headers=sent)

    async def result(self, id: str = "sale-1") -> Sale:
        return await self.hf.run(id, graph=reviewed).result(timeout=20)


@pytest.fixture
async def desk(hf: Holdfast) -> AsyncIterator[Desk]:
    hf.callbacks.set_public_url("https://runs.example.com")
    keys = {
        name: await hf.keys.create(name, tenant="default", role=role)  # pyright: ignore[reportArgumentType]
        for name, role in ROLES.items()
    }
    app = asgi(hf, GRAPHS, options=ServerOptions(authentication=True, key_rate=None))
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with (
        app.lifespan(),
        httpx.AsyncClient(transport=transport, base_url="http://localhost") as http,
    ):
        yield Desk(hf, http, {name: key.secret for name, key in keys.items()})


# --- deciding -------------------------------------------------------------------------------------


async def test_an_approval_is_that_of_the_caller(desk: Desk) -> None:
    id = await desk.ask()
    body = {"comment": "fine", "values": {"months": 12, "note": ""}}
    answer = await desk.act("ana", id, "approve", body)
    assert answer.status_code == 200, answer.text
    shown = answer.json()
    assert (shown["status"], shown["decision"]["by"]) == ("approved", "ana")
    result = await desk.result()
    assert (result.by, result.status, result.comment, result.months) == (
        "ana",
        "approved",
        "fine",
        12,
    )
    assert (await desk.act("ana", id, "approve", {"by": "bob"})).status_code == 400


async def test_the_second_decision_reads_the_first(desk: Desk) -> None:
    id = await desk.ask()
    first = await desk.act("bob", id, "reject", {"comment": "no date"})
    assert first.json()["decision"]["status"] == "rejected"
    second = await desk.act("ana", id, "approve")
    problem = second.json()
    assert (second.status_code, problem["code"]) == (409, "review_decided")
    assert second.headers["content-type"] == "application/problem+json"
    assert problem["decision"] == first.json()["decision"]
    assert problem["decision"]["comment"] == "no date"
    assert "rejected by bob at 20" in problem["detail"]
    assert (await desk.result()).by == "bob"


async def test_a_repeated_request_counts_once(desk: Desk) -> None:
    id = await desk.ask()
    key = {"Idempotency-Key": "click/7"}
    first = await desk.act("ana", id, "approve", {"comment": "yes"}, **key)
    again = await desk.act("ana", id, "approve", {"comment": "yes"}, **key)
    assert (first.status_code, again.status_code) == (200, 200)
    assert again.json()["decision"] == first.json()["decision"]
    other = await desk.act("bob", id, "approve", {"comment": "yes"}, **key)
    assert other.status_code == 409


async def test_a_decision_on_an_old_page_is_refused(desk: Desk) -> None:
    id = await desk.ask()
    seen = (await desk.get("ana", f"/v1/reviews/{id}")).json()["rendered"]
    edited = await desk.act("bob", id, "edit", {"values": {"months": 6, "note": "used"}})
    assert edited.status_code == 200, edited.text
    refused = await desk.act("ana", id, "approve", {"seen": seen})
    problem = refused.json()
    assert (refused.status_code, problem["code"]) == (409, "review_changed")
    assert problem["review"]["values"] == {"months": 6, "note": "used"}
    assert any("months" in line for line in problem["difference"])
    seen = problem["review"]["rendered"]
    assert (await desk.act("ana", id, "approve", {"seen": seen})).status_code == 200
    assert (await desk.result()).months == 6


async def test_a_signal_cannot_stand_in_for_a_decision(desk: Desk) -> None:
    id = await desk.ask()
    name = f"%review.{id.partition('~')[2]}"
    forged = {"name": name, "signal_id": "decision", "payload": {"status": "approved"}}
    sent = bearer(desk.secrets["ops"])
    answer = await desk.http.post("/v1/runs/sale-1/signals", json=forged, headers=sent)
    assert answer.status_code == 422, answer.text
    assert (await desk.hf.reviews.get(id)).status == "pending"


async def test_values_that_do_not_fit_are_refused(desk: Desk) -> None:
    id = await desk.ask()
    refused = await desk.act("ana", id, "approve", {"values": {"months": "many"}})
    assert (refused.status_code, refused.json()["field"]) == (422, "values")
    assert (await desk.hf.reviews.get(id)).status == "pending"


async def test_only_operators_withdraw(desk: Desk) -> None:
    id = await desk.ask()
    assert (await desk.act("ana", id, "withdraw")).status_code == 403
    assert (await desk.act("vic", id, "approve")).status_code == 403
    done = await desk.act("ops", id, "withdraw", {"comment": "sold already"})
    assert done.json()["status"] == "withdrawn"
    assert (await desk.result()).status == "withdrawn"


async def test_an_operator_acts_on_behalf_of_a_person_and_the_trail_says_so(desk: Desk) -> None:
    id = await desk.ask(assignees=["ana"])
    as_ana = {"on_behalf_of": "ana"}
    refused = await desk.act("bob", id, "approve", as_ana)
    assert (refused.status_code, refused.json()["code"]) == (403, "forbidden")
    own = await desk.act("ops", id, "approve")
    assert (own.status_code, own.json()["code"]) == (403, "not_assigned")
    for action, body in (
        ("claim", {}),
        ("comment", {"text": "on the phone"}),
        ("edit", {"values": {"months": 3, "note": ""}}),
        ("release", {}),
        ("approve", {"comment": "as told"}),
    ):
        for _ in range(2):  # the repetition of a request counts once
            key = {"Idempotency-Key": f"{action}-{'x' * 240}"}
            done = await desk.act("ops", id, action, {**body, **as_ana}, **key)
            assert done.status_code == 200, (action, done.text)
    shown = done.json()
    assert shown["decision"]["by"] == "ana"
    done_by = [
        (each["kind"], each["by"], each["data"]["through"])
        for each in shown["trail"]
        if each["kind"] != "notified"
    ]
    kinds = ("claimed", "commented", "edited", "released", "decided")
    assert done_by == [(kind, "ana", "ops") for kind in kinds]
    assert (await desk.result()).by == "ana"


async def test_a_refused_action_on_behalf_of_a_person_leaves_nothing_in_the_trail(
    desk: Desk,
) -> None:
    id = await desk.ask(assignees=["ana"])
    for action, body, code in (
        ("approve", {"on_behalf_of": "bob"}, "not_assigned"),
        ("approve", {"on_behalf_of": "ana", "seen": "0"}, "review_changed"),
        ("edit", {"on_behalf_of": "ana", "values": {"months": "x"}}, "invalid_request"),
        ("comment", {"on_behalf_of": "bob", "text": "hm"}, "not_assigned"),
        ("claim", {"on_behalf_of": "bob"}, "not_assigned"),
    ):
        refused = await desk.act("ops", id, action, body)
        assert (refused.status_code >= 400, refused.json()["code"]) == (True, code), action
    trail = (await desk.get("ana", f"/v1/reviews/{id}")).json()["trail"]
    assert [each for each in trail if each["kind"] != "notified"] == []


async def test_a_vote_says_through_whom_it_was_cast(desk: Desk) -> None:
    id = await desk.ask(quorum=2)
    first = await desk.act("ops", id, "approve", {"on_behalf_of": "ana"})
    assert [(each["by"], each["through"]) for each in first.json()["votes"]] == [("ana", "ops")]
    decided = await desk.act("bob", id, "approve")
    cast = {each["by"]: each["through"] for each in decided.json()["decision"]["votes"]}
    assert cast == {"ana": "ops", "bob": None}
    assert (await desk.result()).votes == 2


async def test_a_missing_role_is_named_with_what_needs_it(desk: Desk) -> None:
    id = await desk.ask()
    for action, body, what in (
        ("link", {"reviewer": "bob"}, "to make a link for another person"),
        ("approve", {"on_behalf_of": "bob"}, "to act for another person"),
        ("comment", {"text": "hm", "force": True}, "to comment on a review of other people"),
        ("reassign", {"to": "bob", "force": True}, "to reassign a review of other people"),
    ):
        detail = (await desk.act("ana", id, action, body)).json()["detail"]
        assert what in detail
        assert "you need the role operator; yours is reviewer" in detail


async def test_a_quorum_needs_different_people(desk: Desk) -> None:
    id = await desk.ask(quorum=2)
    first = await desk.act("ana", id, "approve")
    assert (first.json()["status"], len(first.json()["votes"])) == ("pending", 1)
    again = await desk.act("ana", id, "approve")
    assert (again.status_code, again.json()["code"]) == (409, "already_voted")
    assert (await desk.act("bob", id, "approve")).json()["status"] == "approved"
    assert (await desk.result()).votes == 2


# --- other actions --------------------------------------------------------------------------------


async def test_a_claim_keeps_others_away_until_it_is_released(desk: Desk) -> None:
    id = await desk.ask()
    assert (await desk.act("ana", id, "claim")).json()["claimed_by"] == "ana"
    refused = await desk.act("bob", id, "approve")
    assert (refused.status_code, refused.json()["code"]) == (409, "review_claimed")
    assert refused.json()["by"] == "ana"
    assert (await desk.act("bob", id, "claim")).status_code == 409
    taken = await desk.act("bob", id, "claim", {"take_over": True})
    assert taken.json()["claimed_by"] == "bob"
    assert (await desk.act("bob", id, "release")).json()["claimed_by"] is None
    assert (await desk.act("ana", id, "approve")).status_code == 200


async def test_a_review_is_reassigned_and_an_operator_may_force_it(desk: Desk) -> None:
    id = await desk.ask(assignees=["ana"])
    assert (await desk.act("bob", id, "approve")).json()["code"] == "not_assigned"
    assert (await desk.act("bob", id, "reassign", {"to": "bob"})).status_code == 403
    forced = await desk.act("bob", id, "reassign", {"to": "bob", "force": True})
    assert (forced.status_code, forced.json()["code"]) == (403, "forbidden")
    forced = await desk.act("ops", id, "reassign", {"to": ["bob"], "force": True})
    assert forced.json()["assignees"] == ["bob"]
    assert (await desk.act("bob", id, "approve")).status_code == 200


async def test_a_comment_is_in_the_trail_once(desk: Desk) -> None:
    id = await desk.ask()
    for _ in range(2):
        done = await desk.act("ana", id, "comment", {"text": "hm"}, **{"Idempotency-Key": "c-1"})
        assert done.status_code == 200
    commented = [each for each in done.json()["trail"] if each["kind"] == "commented"]
    assert [each["by"] for each in commented] == ["ana"]


async def test_a_reviewer_gets_links_for_himself_and_an_operator_for_all(desk: Desk) -> None:
    id = await desk.ask()
    own = await desk.act("ana", id, "link")
    assert own.status_code == 200, own.text
    assert own.json()["url"].startswith("https://runs.example.com/r/")
    named = await desk.act("ana", id, "link", {"reviewer": "Ana", "expires": "1h"})
    assert named.status_code == 200
    assert (await desk.act("ana", id, "link", {"reviewer": "bob"})).status_code == 403
    assert (await desk.act("ops", id, "link", {"reviewer": "bob"})).status_code == 200
    assert (await desk.act("ana", "x~0123456789abcdef", "link")).status_code == 404


# --- reading --------------------------------------------------------------------------------------


async def test_lists_have_filters_and_pages(desk: Desk) -> None:
    ids = {name: await desk.ask(f"sale-{name}", assignees=[name]) for name in ("ana", "bob")}
    ids["all"] = await desk.ask("sale-all")

    async def listed(who: str = "ana", path: str = "/v1/reviews", **query: Any) -> set[str]:
        answer = await desk.get(who, path, **query)
        assert answer.status_code == 200, answer.text
        return {each["id"] for each in answer.json()["reviews"]}

    assert await listed() == set(ids.values())
    assert await listed("ana", mine=True) == {ids["ana"], ids["all"]}
    assert await listed("ana", assignee="bob") == {ids["bob"], ids["all"]}
    assert await listed("ops", run="sale-bob") == {ids["bob"]}
    assert await listed("ana", "/v1/runs/sale-ana/reviews") == {ids["ana"]}
    assert await listed(overdue=True) == set()
    await desk.act("bob", ids["bob"], "reject")
    assert await listed(status="decided") == {ids["bob"]}
    assert await listed(status="rejected") == {ids["bob"]}
    assert await listed(status="approved") == set()
    assert await listed("ana", "/v1/runs/sale-bob/reviews", status="decided") == {ids["bob"]}
    first = (await desk.get("ana", "/v1/reviews", limit=1)).json()
    rest = await listed(limit=10, cursor=first["cursor"])
    assert {each["id"] for each in first["reviews"]} | rest == {ids["ana"], ids["all"]}
    assert (await desk.get("ana", "/v1/reviews", mine=True, assignee="bob")).status_code == 422
    assert (await desk.get("ana", "/v1/runs/nothing/reviews")).status_code == 404


async def test_a_review_shows_everything_and_has_an_etag(desk: Desk) -> None:
    id = await desk.ask()
    answer = await desk.get("ana", f"/v1/reviews/{id}")
    shown = answer.json()
    assert (shown["question"], shown["shown"]) == ("Sell lamp?", {"item": "lamp"})
    assert shown["values"] == {"months": 24, "note": ""}
    assert shown["form"]["properties"].keys() == {"months", "note"}
    while answer.status_code == 200:  # a notice may come into the trail meanwhile
        headers = {**bearer(desk.secrets["ana"]), "If-None-Match": answer.headers["etag"]}
        answer = await desk.http.get(f"/v1/reviews/{id}", headers=headers)
    assert answer.status_code == 304
    for missing in ("sale-1", "sale-1~0123456789abcdef", "nothing~0123456789abcdef", "~", "%00"):
        assert (await desk.get("ana", f"/v1/reviews/{missing}")).status_code == 404, missing


async def test_the_events_of_a_run_name_its_review(desk: Desk) -> None:
    id = await desk.ask()
    shown = [
        entry.details["waits"]
        async for entry in desk.hf.run("sale-1").events(follow=False, ephemeral=True)
        if entry.kind in ("snapshot", "paused")
    ]
    assert [[wait["review"] for wait in waits] for waits in shown] == [[id]] * len(shown)
    assert shown


# --- interrupts -----------------------------------------------------------------------------------


async def test_a_run_has_its_reviews_as_interrupts(desk: Desk) -> None:
    id = await desk.ask()
    answer = await desk.get("ana", "/v1/runs/sale-1/interrupts")
    (interrupt,) = answer.json()["interrupts"]
    assert interrupt["id"] == id
    assert (interrupt["reason"], interrupt["message"]) == ("input_required", "Sell lamp?")
    assert interrupt["expiresAt"].endswith("Z")
    schema = interrupt["responseSchema"]
    assert schema["required"] == ["approved"]
    assert schema["properties"].keys() == {"approved", "comment", "values"}
    assert schema["properties"]["values"]["properties"].keys() == {"months", "note"}
    told = interrupt["metadata"]["holdfast"]
    assert (told["shown"], told["values"]["months"]) == ({"item": "lamp"}, 24)
    assert (await desk.get("ana", "/v1/runs/nothing/interrupts")).status_code == 404


async def test_an_interrupt_is_resolved_and_the_same_entry_may_be_sent_again(desk: Desk) -> None:
    id = await desk.ask()
    payload = {"approved": True, "comment": "fine", "values": {"months": 12, "note": "x"}}
    entry = {"interruptId": id, "status": "resolved", "payload": payload}
    for _ in range(2):
        answer = await desk.resume("ana", "sale-1", entry)
        assert (answer.status_code, answer.json()["interrupts"]) == (200, []), answer.text
    other = await desk.resume("ana", "sale-1", {**entry, "payload": {"approved": False}})
    assert (other.status_code, other.json()["code"]) == (409, "review_decided")
    result = await desk.result()
    assert (result.by, result.months, result.comment) == ("ana", 12, "fine")


async def test_the_arguments_of_a_tool_can_be_edited(desk: Desk) -> None:
    await desk.hf.start(refunding, Order("lamp", cents=500), id="r-1")
    await desk.hf.run("r-1").until("waiting", timeout=20)
    (interrupt,) = (await desk.get("ana", "/v1/runs/r-1/interrupts")).json()["interrupts"]
    assert interrupt["reason"] == "holdfast:tool_call"
    told = interrupt["metadata"]["holdfast"]
    assert (told["tool"], told["values"]) == ("refund", {"item": "lamp", "cents": 500})
    schema = interrupt["responseSchema"]["properties"]
    assert schema.keys() == {"approved", "comment", "editedArgs"}
    assert schema["editedArgs"]["properties"].keys() == {"item", "cents"}
    payload = {"approved": True, "editedArgs": {"item": "lamp", "cents": 300}}
    entry = {"interruptId": interrupt["id"], "status": "resolved", "payload": payload}
    assert (await desk.resume("ana", "r-1", entry)).status_code == 200
    assert (await desk.hf.run("r-1", graph=refunding).result(timeout=20)).item == "lamp: 300"


async def test_a_cancelled_interrupt_is_rejected(desk: Desk) -> None:
    id = await desk.ask()
    answer = await desk.resume("bob", "sale-1", {"interruptId": id, "status": "cancelled"})
    assert answer.status_code == 200, answer.text
    result = await desk.result()
    assert (result.status, result.comment) == ("rejected", "cancelled without an answer")


async def test_an_answer_to_what_the_person_did_not_see_is_refused(desk: Desk) -> None:
    id = await desk.ask()
    (interrupt,) = (await desk.get("ana", "/v1/runs/sale-1/interrupts")).json()["interrupts"]
    seen = {"holdfast": {"seen": interrupt["metadata"]["holdfast"]["seen"]}, "other": 1}
    await desk.act("bob", id, "edit", {"values": {"months": 1, "note": ""}})
    entry = {"interruptId": id, "status": "resolved", "payload": {"approved": True}}
    refused = await desk.resume("ana", "sale-1", {**entry, "metadata": seen})
    assert (refused.status_code, refused.json()["code"]) == (409, "review_changed")


@pytest.mark.parametrize(
    ("entries", "status"),
    [
        ([], 400),
        ([{"interruptId": "sale-1~0123456789abcdef", "status": "denied"}], 400),
        ([{"interruptId": "sale-1~0123456789abcdef", "status": "resolved", "payload": {}}], 400),
        ([{"interruptId": "sale-1~0123456789abcdef", "status": "resolved"}], 422),
        (
            [
                {
                    "interruptId": "sale-1~0123456789abcdef",
                    "status": "cancelled",
                    "payload": {"approved": True},
                }
            ],
            422,
        ),
        ([{"interruptId": "other~0123456789abcdef", "status": "cancelled"}], 422),
        ([{"interruptId": "sale-1~0123456789abcdef", "status": "cancelled"}] * 2, 422),
        ([{"interruptId": "sale-1~0123456789abcdef", "status": "cancelled"}], 404),
    ],
)
async def test_malformed_answers_change_nothing(
    desk: Desk, entries: list[Any], status: int
) -> None:
    id = await desk.ask()
    answer = await desk.resume("ana", "sale-1", *entries)
    assert answer.status_code == status, answer.text
    assert (await desk.hf.reviews.get(id)).status == "pending"
