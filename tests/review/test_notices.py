"""Notices of reviews: who gets which, when, how often, and what happens when a notifier fails."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import pytest

from holdfast import Holdfast, ReviewOptions
from holdfast.clock import ManualClock
from holdfast.errors import NoAddress, NotAssigned, Throttled
from holdfast.review.log_notifier import LogNotifier
from holdfast.review.notice import Notice
from holdfast.review.notifying import NoticeLoop
from tests.review.notices import (
    QUESTION,
    Claim,
    Pump,
    Recorder,
    ask,
    claims,
    finish,
    kernel_of,
    raising,
)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def mail() -> Recorder:
    return Recorder()


@pytest.fixture
async def hf(tmp_path: Path, clock: ManualClock, mail: Recorder) -> AsyncIterator[Holdfast]:
    options = ReviewOptions(notifiers=[mail], send_in_workers=False)
    async with Holdfast(
        f"sqlite:///{tmp_path}/runs.db",
        clock=clock,
        reviews=options,
        public_url="https://reviews.example",
    ) as opened:
        yield opened


@pytest.fixture
def pump(hf: Holdfast, clock: ManualClock) -> Pump:
    return Pump(hf, clock)


async def test_each_assignee_gets_the_request_once_with_a_link_of_their_own(
    hf: Holdfast, pump: Pump, mail: Recorder
) -> None:
    id = await ask(hf, assignees=["ana", "bob"])
    await pump.poll()
    await pump.poll(after=60)
    assert sorted(mail.told()) == [("requested", "ana"), ("requested", "bob")]
    for notice in mail.notices:
        assert notice.question == QUESTION
        assert notice.link is not None
        token = notice.link.removeprefix("https://reviews.example/r/")
        assert await hf.reviews.open_link(token) == ("default", id, notice.reviewer)
        assert notice.link in notice.text
        assert notice.review.id == id
    assert len({notice.id for notice in mail.notices}) == 2
    (action,) = (await hf.reviews.get(id)).trail
    assert (action.kind, action.by) == ("notified", None)
    assert action.data == {"notice": "requested", "to": {"ana": ["mail"], "bob": ["mail"]}}


async def test_a_review_for_everyone_is_told_once_with_the_page_of_the_inbox(
    hf: Holdfast, pump: Pump, mail: Recorder
) -> None:
    id = await ask(hf)
    await pump.poll()
    (notice,) = mail.notices
    assert (notice.reviewer, notice.link) == (None, f"https://reviews.example/reviews/{id}")


async def test_without_a_server_a_notice_has_the_command(
    tmp_path: Path, clock: ManualClock, mail: Recorder
) -> None:
    options = ReviewOptions(notifiers=[mail], send_in_workers=False)
    async with Holdfast(f"sqlite:///{tmp_path}/runs.db", clock=clock, reviews=options) as hf:
        id = await ask(hf, tenant="acme", assignees="ana")
        await Pump(hf, clock).poll()
    (notice,) = mail.notices
    assert notice.link is None
    assert notice.command == f"holdfast review show {id} --tenant acme"
    assert notice.command in notice.text


async def test_a_failed_notice_is_sent_again_to_those_who_did_not_get_it(
    hf: Holdfast, pump: Pump, mail: Recorder, caplog: pytest.LogCaptureFixture
) -> None:
    id = await ask(hf, assignees=["ana", "bob"])

    def fail_for_bob(notice: Notice) -> None:
        if notice.reviewer == "bob":
            raise OSError("mailbox full")

    mail.act = fail_for_bob
    await pump.poll()
    assert "mailbox full" in caplog.text
    await pump.poll(after=1)  # too early
    assert mail.told() == [("requested", "ana")]
    mail.act = lambda _: None
    await pump.poll(after=60)
    await pump.poll(after=60)
    assert mail.told() == [("requested", "ana"), ("requested", "bob")]
    review = await hf.reviews.get(id)
    assert review.undelivered is None
    assert [action.data["to"] for action in review.trail] == [{"ana": ["mail"]}, {"bob": ["mail"]}]


async def test_a_notice_keeps_its_id_in_every_attempt(
    hf: Holdfast, pump: Pump, mail: Recorder
) -> None:
    tried: list[str] = []

    def fail(notice: Notice) -> None:
        tried.append(notice.id)
        raise OSError("down")

    mail.act = fail
    await ask(hf, assignees="ana", remind_after="1d")
    for _ in range(3):
        await pump.poll(after=60)
    mail.act = lambda _: None
    await pump.poll(after=120)
    assert len(tried) == 3
    assert {notice.id for notice in mail.notices} == {*tried}
    await pump.poll(after=86_400)
    assert mail.notices[-1].kind == "reminder"
    assert mail.notices[-1].id not in tried


@pytest.mark.parametrize(
    "error",
    [TypeError("odd"), asyncio.CancelledError(), SystemExit(3), Exception("x" * 100_000)],
    ids=lambda error: type(error).__name__,
)
async def test_one_broken_notifier_does_not_keep_others_from_sending(
    tmp_path: Path, clock: ManualClock, error: BaseException
) -> None:
    broken, mail = Recorder("broken"), Recorder()
    broken.act = raising(error)
    options = ReviewOptions(notifiers=[broken, mail], send_in_workers=False)
    async with Holdfast(f"sqlite:///{tmp_path}/runs.db", clock=clock, reviews=options) as hf:
        pump = Pump(hf, clock)
        id = await ask(hf, assignees="ana")
        await ask(hf, "c-2", assignees="ana")
        for _ in range(4):
            await pump.poll(after=60)
        assert sorted(notice.review.run for notice in mail.notices) == ["c-1", "c-2"]
        assert (await hf.reviews.get(id)).undelivered is None
        broken.act = lambda _: None
        await pump.poll(after=600)
        assert sorted(notice.review.run for notice in broken.notices) == ["c-1", "c-2"]
        assert len(mail.notices) == 2
        await hf.reviews.approve(id, by="ana")
        assert (await finish(hf)).status == "approved"


async def test_a_notifier_that_hangs_is_given_up_and_left_alone_for_a_while(
    tmp_path: Path, clock: ManualClock
) -> None:
    slow, mail = Recorder("slow"), Recorder()
    is_over = False

    async def hang(_: Notice) -> None:
        while not is_over:
            with suppress(asyncio.CancelledError):  # it does not even stop when it is cancelled
                await asyncio.Event().wait()

    slow.act = hang
    options = ReviewOptions(notifiers=[slow, mail], send_in_workers=False)
    async with Holdfast(f"sqlite:///{tmp_path}/runs.db", clock=clock, reviews=options) as hf:
        pump = Pump(hf, clock)
        for number in range(4):
            await ask(hf, f"c-{number}", assignees="ana")
        await pump.loop._send_due(poll=True)
        await mail.wait_until(lambda: len(mail.notices) == 4)
        await slow.wait_until(lambda: slow.begun == 4)
        clock.advance(21)
        await pump.settle()
        await pump.poll(after=10)  # it rests
        assert (slow.begun, len(mail.notices)) == (4, 4)
        (entry, *_) = (await hf.reviews.list()).reviews
        assert entry.undelivered is None
        is_over = True
        left = list(pump.loop._sender._left)
        assert len(left) == 4
        pump.loop._sender.close()
        await asyncio.wait(left)


async def test_reminder_and_escalation_come_at_their_time_and_in_order(
    hf: Holdfast, pump: Pump, mail: Recorder
) -> None:
    await ask(
        hf,
        assignees="ana",
        remind_after="1h",
        escalate_after="2h",
        escalate_to=["boss"],
    )
    await pump.poll()
    await pump.poll(after=3_590)
    assert mail.told() == [("requested", "ana")]
    await pump.poll(after=11)
    assert mail.told()[1:] == [("reminder", "ana")]
    await pump.poll(after=3_600)
    assert mail.told()[2:] == [("escalation", "boss")]
    await pump.poll(after=36_000)
    assert len(mail.notices) == 3


async def test_after_an_outage_the_request_comes_and_no_reminder_of_it_at_once(
    hf: Holdfast, pump: Pump, mail: Recorder
) -> None:
    await ask(hf, assignees="ana", remind_after="1h")
    await pump.poll(after=7_200)
    await pump.poll()
    assert mail.told() == [("requested", "ana")]


async def test_a_decided_review_gets_no_more_notices(
    hf: Holdfast, pump: Pump, mail: Recorder
) -> None:
    id = await ask(hf, assignees="ana", remind_after="1h")
    await pump.poll()
    await hf.reviews.approve(id, by="ana")
    await pump.poll(after=7_200)
    assert mail.told() == [("requested", "ana")]


async def test_a_run_that_ended_gets_no_more_notices(
    hf: Holdfast, pump: Pump, mail: Recorder
) -> None:
    await ask(hf, assignees="ana")
    async with hf.worker([claims]):
        await hf.run("c-1").cancel()
        await hf.run("c-1").until("cancelled")
    await pump.poll()
    assert mail.notices == []


async def test_an_expired_review_gets_no_more_notices(
    hf: Holdfast, pump: Pump, mail: Recorder
) -> None:
    await ask(hf, assignees="ana", expires="10m")
    await pump.poll(after=601)
    assert mail.notices == []


async def test_if_no_reviewer_can_be_told_the_review_says_so_until_one_is(
    hf: Holdfast, pump: Pump, mail: Recorder, caplog: pytest.LogCaptureFixture
) -> None:
    mail.act = raising(OSError("no such host"))
    id = await ask(hf, assignees=["ana", "bob"])
    await pump.poll()
    assert (await hf.reviews.get(id)).undelivered is None
    await pump.poll(after=15)
    await pump.poll(after=30)
    undelivered = (await hf.reviews.get(id)).undelivered
    assert undelivered == "mail: OSError: no such host"
    assert "no reviewer could be notified" in caplog.text
    (entry,) = (await hf.reviews.list()).reviews
    assert entry.undelivered == undelivered

    def only_bob(notice: Notice) -> None:
        if notice.reviewer == "ana":
            raise OSError("still down")

    mail.act = only_bob
    await pump.poll(after=60)
    assert mail.told() == [("requested", "bob")]
    assert (await hf.reviews.get(id)).undelivered is None


async def test_a_reviewer_without_an_address_counts_as_not_told(
    tmp_path: Path, clock: ManualClock
) -> None:
    mail, chat = Recorder(), Recorder("chat")

    def only_known(notice: Notice) -> None:
        if notice.reviewer != "ana":
            raise NoAddress

    mail.act = only_known
    chat.act = raising(NoAddress())
    options = ReviewOptions(notifiers=[LogNotifier(), mail, chat], send_in_workers=False)
    async with Holdfast(f"sqlite:///{tmp_path}/runs.db", clock=clock, reviews=options) as hf:
        pump = Pump(hf, clock)
        known = await ask(hf, assignees="ana")
        unknown = await ask(hf, "c-2", assignees="eve")
        for _ in range(4):
            await pump.poll(after=60)
        assert mail.told() == [("requested", "ana")]
        assert (await hf.reviews.get(known)).undelivered is None
        undelivered = (await hf.reviews.get(unknown)).undelivered
        assert undelivered == "no notifier has an address of 'eve'"


async def test_a_notice_that_fails_for_three_days_is_given_up(
    hf: Holdfast, pump: Pump, mail: Recorder
) -> None:
    mail.act = raising(OSError("down"))
    id = await ask(hf, assignees="ana")
    await pump.poll()
    for _ in range(80):
        await pump.poll(after=3_601)
    mail.act = lambda _: None
    await pump.poll(after=86_400)
    assert mail.notices == []
    review = await hf.reviews.get(id)
    assert review.undelivered == "mail: OSError: down"
    (action,) = review.trail
    assert action.data == {
        "notice": "requested", "to": {}, "failed": {"ana": "mail: OSError: down"},
    }  # fmt: skip


async def test_a_process_that_dies_after_sending_lets_another_send_again(
    hf: Holdfast, clock: ManualClock, mail: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    await ask(hf, assignees="ana")
    dying, living = Pump(hf, clock), Pump(hf, clock)
    recorded = NoticeLoop._record

    async def die(*_: object, **__: object) -> None:
        raise asyncio.CancelledError

    monkeypatch.setattr(NoticeLoop, "_record", die)
    await dying.poll()
    monkeypatch.setattr(NoticeLoop, "_record", recorded)
    assert len(mail.notices) == 1
    await living.poll(after=30)  # the lease of the other holds
    assert len(mail.notices) == 1
    await living.poll(after=31)
    await living.poll(after=600)
    assert len(mail.notices) == 2
    assert mail.notices[0].id == mail.notices[1].id


async def test_of_two_processes_one_sends(hf: Holdfast, clock: ManualClock, mail: Recorder) -> None:
    for number in range(10):
        await ask(hf, f"c-{number}", assignees=["ana", "bob"])
    pumps = [Pump(hf, clock) for _ in range(3)]
    await asyncio.gather(*(pump.poll() for pump in pumps))
    await asyncio.gather(*(pump.poll(after=100) for pump in pumps))
    assert len(mail.notices) == 20
    assert len({notice.id for notice in mail.notices}) == 20


async def test_a_change_while_a_notice_is_sent_is_kept(
    hf: Holdfast, pump: Pump, mail: Recorder
) -> None:
    id = await ask(hf, assignees="ana", remind_after="1h")

    async def decide(_: Notice) -> None:
        await hf.reviews.approve(id, by="ana")

    mail.act = decide
    await pump.poll()
    review = await hf.reviews.get(id)
    assert review.status == "approved"
    assert sorted(action.kind for action in review.trail) == ["decided", "notified"]
    await pump.poll(after=7_200)
    assert len(mail.notices) == 1


async def test_a_worker_sends_at_once_when_notifiers_are_configured(
    tmp_path: Path, mail: Recorder
) -> None:
    options = ReviewOptions(notifiers=[mail], poll=3_600)
    async with (
        Holdfast(f"sqlite:///{tmp_path}/runs.db", reviews=options) as hf,
        hf.worker([claims]),
    ):
        for number in (1, 2):  # the first may be found by the poll at the start
            await hf.start(claims, Claim({"assignees": "ana"}), id=f"c-{number}")
            await mail.wait_until(lambda number=number: len(mail.notices) == number)


async def test_a_reminder_is_sent_at_its_time_between_two_polls(
    hf: Holdfast, pump: Pump, clock: ManualClock, mail: Recorder
) -> None:
    await ask(hf, assignees="ana", remind_after=20)
    await pump.poll()
    await pump.poll(after=10)
    clock.advance(9.999)
    await pump.loop._send_due(poll=False)
    assert mail.told() == [("requested", "ana")]
    clock.advance(0.001)
    await pump.loop._send_due(poll=False)
    await pump.settle()
    assert mail.told()[1:] == [("reminder", "ana")]


async def test_the_loop_of_a_process_runs_once_and_wakes_for_a_reminder(
    tmp_path: Path, mail: Recorder
) -> None:
    options = ReviewOptions(notifiers=[mail], poll=3_600)
    async with (
        Holdfast(f"sqlite:///{tmp_path}/runs.db", reviews=options) as hf,
        hf.reviews.notify(),
    ):
        await ask(hf, assignees="ana", remind_after=1)  # its worker wants the loop, too
        await mail.wait_until(lambda: len(mail.notices) == 2)
    assert mail.told() == [("requested", "ana"), ("reminder", "ana")]


async def test_without_options_the_link_is_logged(
    tmp_path: Path, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    url = "https://reviews.example"
    async with Holdfast(f"sqlite:///{tmp_path}/runs.db", clock=clock, public_url=url) as hf:
        id = await ask(hf, assignees="ana")
        with caplog.at_level(logging.INFO, "holdfast.reviews"):
            await Pump(hf, clock).poll()
        (line,) = [each for each in caplog.messages if QUESTION in each]
        token = line.rpartition("https://reviews.example/r/")[2]
        assert await hf.reviews.open_link(token) == ("default", id, "ana")
        assert (await hf.reviews.get(id)).undelivered is None


async def test_a_process_that_only_logs_leaves_notices_to_one_with_notifiers(
    tmp_path: Path, clock: ManualClock, mail: Recorder
) -> None:
    url = f"sqlite:///{tmp_path}/runs.db"
    options = ReviewOptions(notifiers=[mail], send_in_workers=False)
    async with (
        Holdfast(url, clock=clock) as plain,
        Holdfast(url, clock=clock, reviews=options) as configured,
    ):
        await Pump(configured, clock).poll()
        await ask(plain, assignees="ana")
        await Pump(plain, clock).poll(after=100)
        assert mail.notices == []
        await Pump(configured, clock).poll()
        assert mail.told() == [("requested", "ana")]
        # After two days without such a process, the others log.
        await ask(plain, "c-2", assignees="ana")
        await Pump(plain, clock).poll(after=3 * 86_400)
        review = (await plain.reviews.list(run="c-2")).reviews[0]
        (action,) = (await plain.reviews.get(review.id)).trail
        assert action.data["to"] == {"ana": ["log"]}


async def test_a_store_that_fails_loses_no_notice(
    hf: Holdfast, pump: Pump, mail: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    await ask(hf, assignees="ana")
    table = kernel_of(hf).reviews

    async def fail(*_: object, **__: object) -> None:
        raise Throttled("too busy")

    with monkeypatch.context() as patched:
        patched.setattr(table, "get", fail)
        await pump.poll()
    assert mail.notices == []
    await pump.poll(after=15)
    assert mail.told() == [("requested", "ana")]


async def test_an_escalation_makes_its_people_assignees(
    hf: Holdfast, pump: Pump, mail: Recorder
) -> None:
    id = await ask(hf, assignees="ana", escalate_after="1h", escalate_to=["boss"])
    await pump.poll()
    with pytest.raises(NotAssigned):
        await hf.reviews.approve(id, by="boss")
    await pump.poll(after=3_600)
    assert mail.told()[1:] == [("escalation", "boss")]
    assert (await hf.reviews.get(id)).assignees == ("ana", "boss")
    assert (await hf.reviews.approve(id, by="boss")).status == "approved"


async def test_those_who_are_away_get_no_notice_and_their_stand_ins_do(
    tmp_path: Path, clock: ManualClock, mail: Recorder
) -> None:
    options = ReviewOptions(
        notifiers=[mail],
        send_in_workers=False,
        delegate=lambda person, review: "carol" if person == "ana" else None,
    )
    async with Holdfast(f"sqlite:///{tmp_path}/runs.db", clock=clock, reviews=options) as hf:
        id = await ask(hf, assignees=["ana", "bob"], remind_after="1h")
        pump = Pump(hf, clock)
        await pump.poll()
        assert sorted(mail.told()) == [("reassigned", "carol"), ("requested", "bob")]
        assert (await hf.reviews.get(id)).assignees == ("carol", "bob")
        await pump.poll(after=3_601)
        assert sorted(mail.told()[2:]) == [("reminder", "bob"), ("reminder", "carol")]


async def test_a_reassignment_is_told_to_those_who_are_new(
    hf: Holdfast, pump: Pump, mail: Recorder
) -> None:
    id = await ask(hf, assignees=["ana", "bob"])
    await pump.poll()
    await hf.reviews.reassign(id, by="ana", to=["bob", "carol"])
    await pump.poll(after=15)
    assert mail.told()[2:] == [("reassigned", "carol")]
    await hf.reviews.reassign(id, by="carol", to=["ana"])
    await pump.poll(after=15)
    await hf.reviews.reassign(id, by="ana", to=["carol"])
    await pump.poll(after=15)
    assert mail.told()[3:] == [("reassigned", "ana"), ("reassigned", "carol")]
    assert len({notice.id for notice in mail.notices}) == len(mail.notices)


async def test_an_edit_is_told_to_those_whose_votes_it_voids(
    hf: Holdfast, pump: Pump, mail: Recorder
) -> None:
    id = await ask(hf, assignees=["Ana", "bob", "carol"], quorum=2, values={"months": 1})
    await pump.poll()
    await hf.reviews.edit(id, by="bob", values={"months": 2})
    await pump.poll(after=15)
    assert len(mail.told()) == 3  # none has voted
    await hf.reviews.approve(id, by="ana")
    await hf.reviews.edit(id, by="carol", values={"months": 3})
    await hf.reviews.edit(id, by="carol", values={"months": 4})
    await pump.poll(after=15)
    await pump.poll(after=15)
    assert mail.told()[3:] == [("edited", "Ana")]
    assert "your vote counts no more" in mail.notices[-1].text
    await hf.reviews.approve(id, by="carol")
    # Who votes on other values has voted on them.
    await hf.reviews.reject(id, by="bob")
    await hf.reviews.approve(id, by="carol", values={"months": 5})
    await pump.poll(after=15)
    assert sorted(mail.told()[4:]) == [("edited", "Ana"), ("edited", "bob")]
    assert mail.notices[-1].id not in {notice.id for notice in mail.notices[:-2]}
    trail = (await hf.reviews.get(id)).trail
    told = [action.data for action in trail if action.kind == "notified"]
    assert [data["notice"] for data in told] == ["requested", "edited", "edited"]


async def test_everybody_may_vote_and_those_whose_votes_are_void_are_told(
    hf: Holdfast, pump: Pump, mail: Recorder
) -> None:
    id = await ask(hf, quorum=2, values={"months": 1})
    await pump.poll()
    await hf.reviews.approve(id, by="ana")
    mail.act = raising(OSError("no route"))
    await hf.reviews.edit(id, by="bob", values={"months": 2})
    await pump.poll(after=15)
    mail.act = lambda _: None
    await pump.poll(after=60)
    assert mail.told()[1:] == [("edited", "ana")]


async def test_a_decision_of_one_person_has_no_votes_to_void(
    hf: Holdfast, pump: Pump, mail: Recorder
) -> None:
    id = await ask(hf, assignees="ana", values={"months": 1})
    await pump.poll()
    await hf.reviews.edit(id, by="ana", values={"months": 2})
    await pump.poll(after=15)
    assert mail.told() == [("requested", "ana")]


async def test_a_reminder_goes_to_the_one_who_claimed_the_review(
    hf: Holdfast, pump: Pump, mail: Recorder
) -> None:
    id = await ask(hf, assignees=["ana", "bob"], remind_after="1h")
    await pump.poll()
    await hf.reviews.claim(id, by="bob")
    await pump.poll(after=3_600)
    assert mail.told()[2:] == [("reminder", "bob")]


async def test_those_who_have_voted_are_not_reminded(
    hf: Holdfast, pump: Pump, mail: Recorder
) -> None:
    id = await ask(hf, assignees=["ana", "bob"], quorum=2, remind_after="1h")
    await pump.poll()
    await hf.reviews.approve(id, by="ANA")
    await pump.poll(after=3_600)
    assert mail.told()[2:] == [("reminder", "bob")]


async def test_a_reviewer_whose_name_is_spelled_in_another_case_is_told(
    hf: Holdfast, pump: Pump, mail: Recorder
) -> None:
    object.__setattr__(hf.reviews.options, "delegate", lambda person, _: person.title())
    id = await ask(hf, assignees=["ana", "bob"], remind_after=3600)
    await pump.poll()
    assert sorted(mail.told()) == [("requested", "Ana"), ("requested", "Bob")]
    await hf.reviews.reassign(id, by="ana", to=["ANA", "bob"])
    await pump.poll()
    assert len(mail.notices) == 2  # it is the same person


async def test_votes_that_a_stand_in_leaves_without_a_majority_reject(
    hf: Holdfast, pump: Pump, mail: Recorder
) -> None:
    id = await ask(hf, assignees=["ana", "bob", "cleo"], quorum=2, remind_after=3600)
    await pump.poll()
    await hf.reviews.reject(id, by="ana")
    away = {"bob": "cleo"}
    object.__setattr__(hf.reviews.options, "delegate", lambda person, _: away.get(person))
    await pump.poll(after=3600)
    assert (await finish(hf)).status == "rejected"
    assert "reminder" not in {kind for kind, _ in mail.told()}


async def test_a_block_that_begins_while_the_last_one_ends_sends(
    hf: Holdfast, mail: Recorder
) -> None:
    never, running = asyncio.Event(), hf.reviews.notify()
    mail.act = lambda _: never.wait()
    await running.__aenter__()
    await ask(hf)
    await mail.wait_until(lambda: mail.begun == 1)
    ending = asyncio.create_task(running.__aexit__(None, None, None))

    async def begin_another() -> None:
        async with hf.reviews.notify():
            await ending
            mail.act = lambda _: None
            await ask(hf, "c-2")
            await mail.wait_until(lambda: bool(mail.notices))

    await asyncio.create_task(begin_another())  # after the other task has begun to stop
    assert mail.notices[0].review.run == "c-2"
