"""Bugs to plant in answers that runs share, and in text as it comes."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from holdfast import handle
from holdfast.engine.effects import call_records, invocations, shared_answers
from holdfast.engine.execution import visit_calls, visit_permits
from holdfast.engine.execution.external_effects import ExternalEffects
from holdfast.engine.history import text_stream
from holdfast.engine.journal.payloads import delete_orphaned_blob
from holdfast.engine.kernel import spool
from holdfast.records import shared_answer as shared_records
from holdfast.records.keys import answer_key
from tests.simulation.bugs.planting import bug


def _blind(patch: pytest.MonkeyPatch, name: str) -> None:
    """Let a write to a shared answer compare nothing."""
    write = getattr(shared_records, name)

    def blind(*arguments: Any, **values: Any) -> Any:
        return msgspec.structs.replace(write(*arguments, **values), condition=None)

    patch.setattr(shared_records, name, blind)


# --- shared answers -------------------------------------------------------------------------------


@bug("telling")
def a_lease_on_an_answer_that_anybody_may_take(patch: pytest.MonkeyPatch) -> None:
    _blind(patch, "lease_write")


@bug("telling")
def an_answer_written_without_its_lease(patch: pytest.MonkeyPatch) -> None:
    """An asker that stalled past its lease puts its answer in the place of another one."""
    _blind(patch, "answer_write")


@bug("telling")
def an_asker_that_fails_removes_what_stands(patch: pytest.MonkeyPatch) -> None:
    """It gives up a lease that is another asker's by now, or an answer."""
    _blind(patch, "release_write")


@bug("telling")
def a_lease_on_an_answer_that_is_not_renewed(patch: pytest.MonkeyPatch) -> None:
    async def nothing(*arguments: Any) -> None: ...

    patch.setattr(shared_answers.SharedAnswers, "_renew_lease", nothing)


@bug("telling")
def an_answer_that_counts_is_asked_for_again(patch: pytest.MonkeyPatch) -> None:
    """An answer is taken for one whose time is over when a third of it has passed."""
    standing_of = shared_records.shared_answer_of

    def hasty(item: Any) -> Any:
        found = standing_of(item)
        if found.state != "answered":
            return found
        return msgspec.structs.replace(found, expires_ms=found.expires_ms - 27_000)

    patch.setattr(shared_answers, "shared_answer_of", hasty)
    _blind(patch, "lease_write")


@bug("telling")
def tenants_that_share_answers(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(shared_answers, "answer_key", lambda tenant, digest: answer_key("acme", digest))


@bug("telling")
def a_shared_answer_that_each_run_pays(patch: pytest.MonkeyPatch) -> None:
    charged = invocations._ModelCall.charged

    def dear(self: Any, value: Any) -> Any:
        return charged(self, msgspec.structs.replace(value, from_cache=False))

    patch.setattr(invocations._ModelCall, "charged", dear)


@bug("telling")
def the_bytes_of_an_answer_that_are_freed(patch: pytest.MonkeyPatch) -> None:
    content_of = shared_answers.SharedAnswers._store_content

    async def forgetful(self: Any, *arguments: Any) -> Any:
        content = await content_of(self, *arguments)
        await delete_orphaned_blob(self._blobs, content)
        return content

    patch.setattr(shared_answers.SharedAnswers, "_store_content", forgetful)


@bug("telling")
def a_question_that_waits_for_its_quota_and_keeps_its_lease(patch: pytest.MonkeyPatch) -> None:
    """It waits for all other calls of its node, which may wait for it."""
    patch.setattr(
        visit_permits.VisitPermits, "acquire_in_place", visit_permits.VisitPermits.acquire
    )


@bug("telling")
def a_question_that_waits_for_its_quota_and_counts_as_paid(patch: pytest.MonkeyPatch) -> None:
    async def nothing(*arguments: Any) -> None: ...

    patch.setattr(call_records.CallRecords, "cancel_reservation", nothing)


# --- text as it comes -----------------------------------------------------------------------------


@bug("telling")
def calls_of_branches_whose_texts_have_one_name(patch: pytest.MonkeyPatch) -> None:
    def plain(self: Any, call: str, name: str) -> Any:
        return self._visit.external.text_writer(call, name)

    patch.setattr(visit_calls.VisitCalls, "text_writer", plain)


@bug("telling")
def an_answer_recorded_before_its_text_is_written(patch: pytest.MonkeyPatch) -> None:
    async def hasty(self: Any) -> None:
        if self._stream is not None:
            self._append(self._stream, "", last=True)
            self.abandon()

    patch.setattr(text_stream.TokenWriter, "finish", hasty)


@bug("telling")
def an_attempt_that_begins_and_nobody_is_told(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(text_stream._TextReader, "_is_restart", lambda *arguments, **values: False)


@bug("telling")
def a_cursor_that_names_the_piece_before(patch: pytest.MonkeyPatch) -> None:
    cursor_of = handle.parse_text_cursor

    def earlier(*arguments: Any, **values: Any) -> Any:
        cursor = cursor_of(*arguments, **values)
        if cursor is None or not cursor.index:
            return cursor
        return msgspec.structs.replace(cursor, index=cursor.index - 1)

    patch.setattr(handle, "parse_text_cursor", earlier)


@bug("telling")
def text_said_while_an_item_is_written_goes_into_it(patch: pytest.MonkeyPatch) -> None:
    def late(self: Any, entry: Any) -> None:
        batch = self._first_unwritten() or self._batches[-1]
        batch.entries.append(entry)
        batch.size += len(entry.text)

    patch.setattr(spool.Spool, "_add", late)


@bug("telling")
def text_that_outlasts_its_run(patch: pytest.MonkeyPatch) -> None:
    text_item = text_stream.text_write

    def lasting(*arguments: Any, **values: Any) -> Any:
        put = text_item(*arguments, **values)
        item = {**put.item, "ttl": put.item["ttl"] + 30 * 24 * 3600}
        return msgspec.structs.replace(put, item=item)

    patch.setattr(text_stream, "text_write", lasting)


@bug("telling", stream_stall=1.0)
def an_owner_that_lost_the_run_is_heard_to_its_end(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(text_stream._TextReader, "update_head", lambda *arguments: None)


@bug("telling", stream_stall=0.6)
def an_owner_that_lost_the_run_writes_its_text(patch: pytest.MonkeyPatch) -> None:
    def text_writer(self: Any, call: str, name: str) -> Any:
        hold = self._claimed
        return text_stream.TokenWriter(
            hold.kernel,
            hold.head,
            is_claimed=lambda: True,
            is_lost=lambda: False,
            call=call,
            name=name,
        )

    patch.setattr(ExternalEffects, "text_writer", text_writer)
