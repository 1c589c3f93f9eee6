"""The two models: on Bedrock if they are configured, else rules that need no network.

The rules read the same prompts and give answers of the same types as a model on Bedrock, and cost
what Haiku and Sonnet cost for as many tokens, with four bytes for a token.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from typing import Any

from documents.prompts import EntityKind
from documents.settings import Settings
from holdfast import Model, Request
from holdfast.integrations.offline import Offline, OfflineAnswer
from holdfast.model.pricing import price_of

__all__ = ["answer_by_rules", "models"]

SMALL, LARGE = "anthropic.claude-haiku-4-5", "anthropic.claude-sonnet-4-5"
"""The models whose prices the rules have."""

_CONTENT = re.compile(r"<(segment|summaries)>\n(.*)\n</\1>", re.DOTALL)
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+|\n+")
_NAME = re.compile(r"\b[A-Z][a-z]+(?: [A-Z][a-z]+)+\b")
_AMOUNT = re.compile(r"\b\d[\d,]*(?:\.\d\d)? (?:USD|EUR)\b")
_DATE = re.compile(r"\b\d{4}-\d\d-\d\d\b")
_VERB = re.compile(r"^ (supplies|pays|owns|employs|sues|insures) ")
_FIRM = re.compile(r" (?:Bank|Company|Group|Industries|Partners|Works)$")
_PLACE = re.compile(r" (?:City|County|Harbour|Island|Valley)$")
_WORD = re.compile(r"[A-Za-z]{5,}")
_SUMMARY_CHARS = 240
_ENTITIES_MAX = 20
_TOPICS_MAX = 5


def models(settings: Settings) -> dict[str, Model]:
    """Return the models by the names that the pipeline uses: ``small`` and ``large``."""
    if settings.model_small and settings.model_large:
        from holdfast.integrations.bedrock import Bedrock

        return {
            name: Bedrock(id, region=settings.region, guardrail=settings.guardrail)
            for name, id in (("small", settings.model_small), ("large", settings.model_large))
        }
    return {
        "small": Offline(answer_by_rules, name="rules-small", price=price_of(SMALL)),
        "large": Offline(answer_by_rules, name="rules-large", price=price_of(LARGE)),
    }


def answer_by_rules(request: Request) -> OfflineAnswer:
    """Return the answer of the rules to a question of the pipeline."""
    prompt = request.messages[-1]["content"]
    found = _CONTENT.search(prompt)
    text = found[2] if found else prompt
    asked = (request.output or {}).get("properties", {})
    if "entities" in asked:
        return _analysis(text)
    if "topics" in asked:
        return _document(text)
    return {"summary": _shortened(text.splitlines())}


def _analysis(text: str) -> dict[str, Any]:
    names = [match[0] for match in _NAME.finditer(text)]
    kinds: dict[str, EntityKind] = {name: _kind(name) for name in names}
    kinds |= {match[0]: "amount" for match in _AMOUNT.finditer(text)}
    kinds |= {match[0]: "date" for match in _DATE.finditer(text)}
    return {
        "summary": _shortened(_SENTENCE_END.split(text)),
        "entities": [
            {"name": name, "kind": kind} for name, kind in list(kinds.items())[:_ENTITIES_MAX]
        ],
        "relations": _relations(text)[:_ENTITIES_MAX],
    }


def _relations(text: str) -> list[dict[str, str]]:
    found: list[dict[str, str]] = []
    for source in _NAME.finditer(text):
        verb = _VERB.match(text[source.end() : source.end() + 20])
        target = _NAME.match(text, source.end() + verb.end()) if verb else None
        if verb and target:
            relation = {"source": source[0], "relation": verb[1], "target": target[0]}
            if relation not in found:
                found.append(relation)
    return found


def _kind(name: str) -> EntityKind:
    if _FIRM.search(name):
        return "organization"
    return "place" if _PLACE.search(name) else "person"


def _document(text: str) -> dict[str, Any]:
    lines = [line for line in text.splitlines() if line.strip()]
    words = Counter(word.lower() for word in _WORD.findall(text))
    common = sorted(words, key=lambda word: (-words[word], word))
    title = " ".join(lines[0].split()[:8]).rstrip(".,;:") if lines else "An empty document"
    return {"title": title, "topics": common[:_TOPICS_MAX], "summary": _shortened(lines, 800)}


def _shortened(sentences: Iterable[str], chars: int = _SUMMARY_CHARS) -> str:
    """Return the first sentences, up to a number of characters."""
    kept = ""
    for sentence in sentences:
        text = " ".join(sentence.split())
        if text and len(kept) + len(text) + 1 > chars:
            return kept or f"{text[: chars - 1]}…"
        kept = f"{kept} {text}".strip()
    return kept or "Nothing."
