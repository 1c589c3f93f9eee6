"""Any text as a question and as content: nothing raises, and what is there is found."""

from __future__ import annotations

import html
import re
import sqlite3
import unicodedata

from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from holdfast.clock import SystemClock
from holdfast.documents.search_file import MEMORY, SearchFile
from holdfast.documents.search_query import marked_snippet
from holdfast.documents.search_words import read_search, with_word_breaks
from holdfast.model.segment_search import SegmentEntry, SegmentHit, validated_entry

SYNTAX = st.sampled_from(
    ['"', "*", "-", "(", ")", "{", "}", ":", "^", "+", "'", "AND", "OR", "NOT", "NEAR", "body", " "]
)
ANY_TEXT = st.one_of(
    st.text(max_size=80),
    st.text(alphabet=st.characters(categories=["Cs", "Cc", "Mn", "Lo", "No", "Ll"]), max_size=40),
    st.lists(st.one_of(SYNTAX, st.text(max_size=6)), max_size=20).map("".join),
)
WORD = st.from_regex(r"\A[a-zäöü]{1,12}\Z")


def found(content: str, question: str, *, title: str = "") -> list[SegmentHit]:
    file = SearchFile(MEMORY, SystemClock())
    try:
        entry = validated_entry(SegmentEntry(1, content, title))
        file.add("t", "p", document="d", workflow="w", entries=[entry])
        words = read_search(question)
        if words.is_empty:
            return []
        return file.search("t", words, project=None, document="d", limit=10)
    finally:
        file.close()


@settings(deadline=None)
@given(content=ANY_TEXT, question=ANY_TEXT, title=ANY_TEXT)
@example(content="a", question='""', title="")
@example(content="\x02a\x03", question="a", title="\x1f")
@example(content="ⅷ ² ﷽", question="ⅷ ²* -﷽", title="")
def test_any_question_about_any_content(content: str, question: str, title: str) -> None:
    for hit in found(content, question, title=title):
        parts = hit.parts()
        assert "".join(text for text, _ in parts) == hit.snippet
        assert not re.search(r"[\x00-\x1f\x7f]", hit.snippet + hit.title)
        assert len(hit.snippet) <= 300
        # What a caller shows is text, whatever the content is.
        shown = "".join(f"<mark>{html.escape(t)}</mark>" if f else html.escape(t) for t, f in parts)
        assert "<" not in shown.replace("<mark>", "").replace("</mark>", "")
        assert SegmentHit.from_dict(hit.as_dict()) == hit


@settings(deadline=None)
@given(content=ANY_TEXT, document=ANY_TEXT, question=ANY_TEXT)
def test_no_question_reaches_another_tenant(content: str, document: str, question: str) -> None:
    file = SearchFile(MEMORY, SystemClock())
    try:
        entry = validated_entry(SegmentEntry(1, content))
        id = document.encode("utf-8", "replace").decode()
        file.add("one", "p", document=id, workflow="w", entries=[entry])
        words = read_search(question)
        assume(not words.is_empty)
        assert file.search("other", words, project=None, document=None, limit=10) == []
    finally:
        file.close()


@settings(deadline=None)
@given(words=st.lists(WORD, min_size=1, max_size=8), chosen=st.integers(0, 7))
def test_each_word_and_its_beginning_are_found(words: list[str], chosen: int) -> None:
    word = words[chosen % len(words)]
    content = " ".join(words)
    for question in (word, word.upper(), f'"{word}"', f"{word[: len(word) // 2 + 1]}*"):
        (hit,) = found(content, question)
        marked = {text for text, is_found in hit.parts() if is_found}
        assert word in " ".join(marked)


@settings(deadline=None)
@given(words=st.lists(WORD, min_size=2, max_size=8), at=st.integers(0, 6))
def test_a_phrase_is_found_and_an_excluded_word_is_not(words: list[str], at: int) -> None:
    at %= len(words) - 1
    phrase = " ".join(words[at : at + 2])
    content = " ".join(words)
    assert found(content, f'"{phrase}"')
    assert found(content, f'"{phrase}" nothing')
    assert found(content, f"{words[0]} -{words[1]}") == []


@settings(deadline=None)
@given(text=st.text(alphabet="東京都合計金額文書検索ひらカナ문서검색", min_size=1, max_size=12))
def test_scripts_without_spaces_are_searched_by_character(text: str) -> None:
    (hit,) = found(f"前{text}後", text)
    assert text in "".join(part for part, is_found in hit.parts() if is_found)
    assert hit.snippet == f"前{text}後"


@settings(deadline=None)
@given(text=ANY_TEXT)
def test_breaks_leave_the_text_as_it_is(text: str) -> None:
    kept = text.replace("\x1f", "")
    assert with_word_breaks(kept).replace("\x1f", "") == kept


@settings(deadline=None)
@given(text=st.text(alphabet="a\x02\x03\x1f…", max_size=700))
def test_marks_are_in_order_whatever_is_marked(text: str) -> None:
    snippet, marks = marked_snippet(text)
    edges = [edge for mark in marks for edge in mark]
    assert edges == sorted(edges)
    assert all(0 <= start < end <= len(snippet) for start, end in marks)
    assert len(snippet) <= 300


def test_words_that_most_texts_contain_are_left_out_unless_there_are_no_others() -> None:
    def asked(question: str) -> list[str]:
        return [phrase.text for phrase in read_search(question).any_of]

    assert asked("What is the total of the invoice?") == ["total", "invoice"]
    assert asked("Wie hoch ist die Summe?") == ["hoch", "Summe"]
    assert asked("the who") == ["the", "who"]
    assert asked("INVOICE invoice Invoice") == ["INVOICE"]
    assert asked("caf" + "e\u0301") == [unicodedata.normalize("NFC", "cafe\u0301")]
    required = read_search('„der Betrag" the').required
    assert [phrase.text for phrase in required] == ["der Betrag"]
    assert len(read_search(" ".join(f"w{n}" for n in range(200))).any_of) == 32


def test_sqlite_has_what_the_search_needs() -> None:
    assert sqlite3.sqlite_version_info >= (3, 35), "RETURNING"
