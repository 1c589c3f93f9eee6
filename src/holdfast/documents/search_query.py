"""Questions as expressions of FTS5, and its rows as hits. Pure.

A person's words never become syntax: each is a string in quotes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from holdfast.documents.search_words import (
    WORD_BREAK,
    SearchPhrase,
    SearchWords,
    stem_of,
    with_word_breaks,
)
from holdfast.model.segment_search import SegmentHit

__all__ = ["FOUND_END", "FOUND_START", "fts_expression", "hit_of", "marked_snippet"]

FOUND_START, FOUND_END = "\x02", "\x03"
"""What surrounds a word that was found. No text in an index contains them."""
_SNIPPET_LETTERS_MAX = 300
_LETTERS_BEFORE = 60


def fts_expression(words: SearchWords, *, scope: str) -> str:
    """Return the expression that finds segments within a scope."""
    terms = [term for phrase in words.any_of for term in _terms(phrase)]
    required = [_string(phrase) for phrase in words.required]
    found = " OR ".join(required + terms)
    if required:
        # The words only decide which of them fit better.
        found = " AND ".join([*required, f"({found})"])
    found = f"({{title body}} : ({found}))"
    excluded = " OR ".join(map(_string, words.excluded))
    if excluded:
        found = f"({found} NOT ({{title body}} : ({excluded})))"
    return f'(scope : "{scope}") AND {found}'


def _terms(phrase: SearchPhrase) -> Iterator[str]:
    """Yield what a word may stand in a text as. The exact word counts more than another form."""
    yield _string(phrase)
    stem = None if phrase.is_prefix else stem_of(phrase.text)
    if stem is not None:
        yield _string(SearchPhrase(stem, True))


def _string(phrase: SearchPhrase) -> str:
    text = with_word_breaks(phrase.text).replace('"', '""')
    return f'"{text}" *' if phrase.is_prefix else f'"{text}"'


def hit_of(row: Iterable[Any]) -> SegmentHit:
    """Return the hit of a row: its key, the title, the marked snippet and the rank."""
    document, project, workflow, index, title, snippet, rank = row
    text, marks = marked_snippet(snippet)
    return SegmentHit(
        document=document,
        project=project,
        workflow=workflow,
        index=index,
        title=title.replace(WORD_BREAK, ""),
        snippet=text,
        marks=marks,
        score=-rank,
    )


def marked_snippet(marked: str) -> tuple[str, list[tuple[int, int]]]:
    """Return a snippet as plain text of one line, and where the words that were found stand."""
    text = ""
    marks: list[tuple[int, int]] = []
    start: int | None = None
    for part in _parts(marked.replace(WORD_BREAK, "")):
        if part == FOUND_START:
            start = len(text) if start is None else start
        elif part == FOUND_END:
            if start is not None and start < len(text):
                marks.append((start, len(text)))
            start = None
        else:
            text += part
    return _cut(text, marks)


def _parts(marked: str) -> Iterator[str]:
    part = ""
    for letter in marked:
        if letter in (FOUND_START, FOUND_END):
            yield part
            yield letter
            part = ""
        else:
            part += letter
    yield part


def _cut(text: str, marks: list[tuple[int, int]]) -> tuple[str, list[tuple[int, int]]]:
    """Return at most 300 characters around the first mark: a word may be as long as a book."""
    if len(text) <= _SNIPPET_LETTERS_MAX:
        return text, marks
    first = marks[0][0] if marks else 0
    begin = max(0, min(first - _LETTERS_BEFORE, len(text) - _SNIPPET_LETTERS_MAX + 2))
    before = "…" if begin else ""
    end = begin + _SNIPPET_LETTERS_MAX - 2
    after = "…" if end < len(text) else ""
    shift = len(before) - begin
    kept = [
        (max(start, begin) + shift, min(stop, end) + shift)
        for start, stop in marks
        if start < end and stop > begin
    ]
    return f"{before}{text[begin:end]}{after}", kept
