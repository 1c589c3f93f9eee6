"""The graph of a document: its entities, and the relations between them.

Segments are added one after the other. The graph is then cut into parts by the names of its
entities, so that a query reads one part and never the whole graph.
"""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

__all__ = [
    "EntityFacts",
    "EntityGraph",
    "RelationFacts",
    "facts_in",
    "find_entity",
    "part_of",
    "parts_of",
]

ENTITIES_MAX = 50_000
RELATIONS_MAX = 100_000
SEGMENTS_MAX = 100
"""How many segments an entity or a relation names; the number of all is kept."""
NAME_CHARS_MAX = 200
_ENTITIES_PER_PART = 500


@dataclass
class RelationFacts:
    """A relation, and where the document states it."""

    source: str
    relation: str
    target: str
    mentions: int = 0
    segments: list[int] = field(default_factory=list[int])


@dataclass
class EntityFacts:
    """An entity, and where the document names it."""

    name: str
    kind: str
    mentions: int = 0
    segments: list[int] = field(default_factory=list[int])
    relations: list[RelationFacts] = field(default_factory=list[RelationFacts])


class EntityGraph:
    """Gathers entities and relations, up to a number of each."""

    def __init__(
        self, *, entities_max: int = ENTITIES_MAX, relations_max: int = RELATIONS_MAX
    ) -> None:
        self._entities_max, self._relations_max = entities_max, relations_max
        self._entities: dict[str, EntityFacts] = {}
        self._relations: dict[tuple[str, str, str], RelationFacts] = {}
        self.left_out = 0
        """How many entities and relations did not fit."""

    @property
    def entities(self) -> int:
        return len(self._entities)

    @property
    def relations(self) -> int:
        return len(self._relations)

    def add(self, segment: int, analysis: Mapping[str, Any]) -> None:
        """Add what a model said about a segment, a `SegmentAnalysis` as JSON."""
        for each in analysis["entities"]:
            self._mention(each["name"], each["kind"], segment)
        for each in analysis["relations"]:
            source, target = _shown(each["source"]), _shown(each["target"])
            relation = _shown(each["relation"])
            if not (source and relation and target):
                continue
            key = (_key(source), relation.casefold(), _key(target))
            if key not in self._relations:
                # A model may relate entities that it did not list.
                known = [self._known(name, "other") is not None for name in (source, target)]
                if not all(known) or len(self._relations) >= self._relations_max:
                    self.left_out += 1
                    continue
                self._relations[key] = RelationFacts(source, relation, target)
            _mark(self._relations[key], segment)

    def parts(self) -> Iterable[dict[str, Any]]:
        """Yield the parts of the graph, each as JSON; `part_of` says which has an entity."""
        number = parts_of(self.entities)
        names: list[list[str]] = [[] for _ in range(number)]
        for key in sorted(self._entities):
            names[part_of(key, number)].append(key)
        related: dict[str, list[RelationFacts]] = {}
        for (source, _, target), facts in sorted(self._relations.items()):
            for key in dict.fromkeys((source, target)):
                related.setdefault(key, []).append(facts)
        for keys in names:
            yield {
                key: {
                    **asdict(self._entities[key]),
                    "relations": [asdict(each) for each in related.get(key, ())],
                }
                for key in keys
            }

    def largest(self, number: int) -> list[dict[str, Any]]:
        """Return the entities that the document names most."""
        most = sorted(self._entities.values(), key=lambda each: (-each.mentions, each.name))
        return [
            {"name": each.name, "kind": each.kind, "mentions": each.mentions}
            for each in most[:number]
        ]

    def _mention(self, name: str, kind: str, segment: int) -> None:
        shown = _shown(name)
        if shown and (known := self._known(shown, kind)) is not None:
            if known.kind == "other":
                known.kind = kind
            _mark(known, segment)

    def _known(self, name: str, kind: str) -> EntityFacts | None:
        key = _key(name)
        if key not in self._entities:
            if len(self._entities) >= self._entities_max:
                self.left_out += 1
                return None
            self._entities[key] = EntityFacts(name, kind)
        return self._entities[key]


def parts_of(entities: int) -> int:
    """Return into how many parts a graph of so many entities is cut."""
    return max(1, -(-entities // _ENTITIES_PER_PART))


def part_of(name: str, parts: int) -> int:
    """Return the number of the part that has an entity."""
    digest = hashlib.sha256(_key(name).encode(errors="replace")).digest()
    return int.from_bytes(digest[:8], "big") % parts


def facts_in(part: Mapping[str, Any], name: str) -> EntityFacts | None:
    """Return what a part of the graph says about an entity; None if the document names none."""
    found = part.get(_key(name))
    if found is None:
        return None
    facts = EntityFacts(**found)
    facts.relations = [RelationFacts(**each) for each in found["relations"]]
    return facts


async def find_entity(
    load: Callable[[str], Awaitable[Any]], graph: str, name: str
) -> EntityFacts | None:
    """Return what a document says about an entity; None if it does not name it.

    ``graph`` is the address of its graph. The query reads two blobs, however large the graph is.
    """
    index = await load(graph)
    parts: list[str] = index["parts"]
    return facts_in(await load(parts[part_of(name, len(parts))]), name)


def _mark(facts: EntityFacts | RelationFacts, segment: int) -> None:
    facts.mentions += 1
    if len(facts.segments) < SEGMENTS_MAX and segment not in facts.segments[-1:]:
        facts.segments.append(segment)


def _shown(name: str) -> str:
    return " ".join(name.split())[:NAME_CHARS_MAX]


def _key(name: str) -> str:
    return _shown(name).casefold()
