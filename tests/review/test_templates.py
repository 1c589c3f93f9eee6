"""Templates and options of notices: what they refuse, and that values cannot break out of them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from holdfast import Holdfast, LogNotifier, NoticeTemplate, ReviewOptions
from holdfast.errors import InvalidRequest
from holdfast.review.templates import DEFAULT_TEMPLATES, NOTICE_KINDS, NoticeFacts
from tests.review.notices import LINK, QUESTION, Recorder, notice


def facts(**changes: Any) -> NoticeFacts:
    entry = notice(**({"expires_at": None} | {})).review
    made: dict[str, Any] = {
        "reviewer": "ana",
        "review": entry,
        "question": QUESTION,
        "link": LINK,
        "command": "holdfast review show c-1~0123456789abcdef",
    }
    return NoticeFacts(**made | changes)


@pytest.mark.parametrize("kind", NOTICE_KINDS)
def test_the_default_says_who_asks_what_until_when_and_where(kind: Any) -> None:
    subject, text, page = DEFAULT_TEMPLATES[kind].rendered(facts())
    assert QUESTION in subject
    assert page is not None
    for part in (text, page):
        assert "ana" in part
        assert QUESTION in part
        assert LINK in part
        assert "claims" in part
        assert "$" not in part


def test_the_deadline_says_what_happens_then() -> None:
    import msgspec

    entry = msgspec.structs.replace(
        facts().review, expires_at=datetime(2026, 11, 25, 9, 5, tzinfo=UTC)
    )
    _, text, _ = DEFAULT_TEMPLATES["requested"].rendered(facts(review=entry))
    assert "before 2026-11-25 09:05 UTC" in text
    assert "the run goes on without an approval" in text


def test_without_a_link_the_command_is_shown() -> None:
    _, text, page = DEFAULT_TEMPLATES["requested"].rendered(facts(link=None, reviewer=None))
    assert "holdfast review show c-1~0123456789abcdef" in text
    assert page is not None
    assert "<code>holdfast review show" in page
    assert text.startswith("Hello,")


def test_values_are_text_in_html_and_one_line_in_a_subject() -> None:
    hostile = '<script>alert("x")</script>\r\nBcc: eve@example.com\n$link ${run} \u202e\x07'
    made = facts(question=hostile, reviewer='"><img src=x>', link='https://x/"><script>')
    subject, text, page = DEFAULT_TEMPLATES["requested"].rendered(made)
    assert page is not None
    assert "<script" not in page
    assert "<img" not in page
    assert "\n" not in subject
    assert "\r" not in subject
    assert len(subject) <= 160
    for part in (subject, text, page):
        assert "\u202e" not in part
        assert "\x07" not in part
        assert "$link" in part  # what a value contains is not a field


def test_only_a_template_that_asks_for_it_gets_the_data() -> None:
    made = facts(shown={"iban": "DE89 3704", "large": "x" * 10_000})
    for template in DEFAULT_TEMPLATES.values():
        assert not any("DE89" in (part or "") for part in template.rendered(made))
    asking = NoticeTemplate(subject="s", text="$shown", html="<pre>$shown</pre>")
    _, text, page = asking.rendered(made)
    assert '"iban": "DE89 3704"' in text
    assert len(text) < 4_100
    assert page is not None
    assert "&quot;iban&quot;" in page


@pytest.mark.parametrize(
    ("texts", "field"),
    [
        ({"subject": "$questoin", "text": "x"}, "subject"),
        ({"subject": "x", "text": "${secret}"}, "text"),
        ({"subject": "x", "text": "5 $"}, "text"),
        ({"subject": "x", "text": "x", "html": "$password"}, "html"),
        ({"subject": "", "text": "x"}, "subject"),
        ({"subject": "x", "text": None}, "text"),
        ({"subject": "x", "text": b"x"}, "text"),
    ],
)
def test_a_wrong_template_is_refused_when_it_is_made(texts: Any, field: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        NoticeTemplate(**texts)
    assert refused.value.field == field


def test_a_template_may_have_a_dollar_sign() -> None:
    subject, text, page = NoticeTemplate(subject="$$5", text="$run: $$").rendered(facts())
    assert (subject, text, page) == ("$5", "c-1: $", None)


class Nameless:
    async def send(self, notice: object) -> None: ...


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"notifiers": "smtp"}, "notifiers"),
        ({"notifiers": 3}, "notifiers"),
        ({"notifiers": [print]}, "notifiers"),
        ({"notifiers": [Recorder]}, "notifiers"),
        ({"notifiers": [Nameless()]}, "notifiers"),
        ({"notifiers": [Recorder(), Recorder()]}, "notifiers"),
        ({"notifiers": [Recorder("x" * 100)]}, "notifiers"),
        ({"templates": {"asked": DEFAULT_TEMPLATES["requested"]}}, "templates"),
        ({"templates": {"requested": "text"}}, "templates"),
        ({"templates": []}, "templates"),
        ({"delegate": "bob"}, "delegate"),
        ({"link_expires": 0}, "link_expires"),
        ({"poll": 0}, "poll"),
    ],
)
def test_wrong_options_are_refused(options: Any, field: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        ReviewOptions(**options)
    assert refused.value.field == field


def test_options_of_another_type_are_refused() -> None:
    with pytest.raises(InvalidRequest, match="reviews must be ReviewOptions"):
        Holdfast("sqlite://:memory:", reviews=[Recorder()])  # type: ignore[arg-type]
    with pytest.raises(InvalidRequest, match="level"):
        LogNotifier(level="loud")  # type: ignore[arg-type]
