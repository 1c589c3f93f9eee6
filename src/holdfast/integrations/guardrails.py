"""Guardrails of Amazon Bedrock: which one to apply, and what it flagged in a call."""

# The trace is a JSON value of the service: Any here, and read with care.
from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, NamedTuple, cast

from holdfast.errors import InvalidRequest

__all__ = ["guardrail_config", "guardrail_flags"]

_GUARDRAIL = re.compile(
    r"([a-z0-9]+|arn:aws(?:-[^:]+)?:bedrock:[a-z0-9-]{1,20}:[0-9]{12}:guardrail/[a-z0-9]+)"
    r":([1-9][0-9]{0,7}|DRAFT)",
    re.ASCII,
)


class _Policy(NamedTuple):
    """Where an assessment lists the findings of a policy, and how a flag names one."""

    policy: str
    findings: str
    word: str
    name: str
    """The field with the name of a finding. It must not quote the text: that may be personal."""


_POLICIES = (
    _Policy("topicPolicy", "topics", "topic", "name"),
    _Policy("contentPolicy", "filters", "content", "type"),
    _Policy("wordPolicy", "customWords", "word", ""),
    _Policy("wordPolicy", "managedWordLists", "word", "type"),
    _Policy("sensitiveInformationPolicy", "piiEntities", "pii", "type"),
    _Policy("sensitiveInformationPolicy", "regexes", "regex", "name"),
    _Policy("contextualGroundingPolicy", "filters", "grounding", "type"),
)
# Kinds of findings of automated reasoning that say that an answer is wrong, or may be.
_DOUBTS = ("invalid", "impossible", "satisfiable", "translationAmbiguous")


def guardrail_config(guardrail: object) -> dict[str, Any]:
    """Return Converse's configuration of a guardrail, which is given as ``id:version``.

    Raises:
        InvalidRequest: it is not the id or the ARN of a guardrail with a version.
    """
    found = _GUARDRAIL.fullmatch(guardrail) if isinstance(guardrail, str) else None
    if found is None:
        raise InvalidRequest(
            "guardrail must be the id or ARN of a guardrail and its version, as in "
            f"'a1b2c3d4e5f6:1' or 'a1b2c3d4e5f6:DRAFT', got {guardrail!r:.120}",
            field="guardrail",
        )
    return {
        "guardrailIdentifier": found[1],
        "guardrailVersion": found[2],
        "trace": "enabled",  # without a trace an answer does not say what was flagged
    }


def guardrail_flags(trace: Any) -> tuple[str, ...]:
    """Return what a guardrail flagged, as ``side:policy:name:action``, each once and in order.

    The side is ``input`` or ``output``. The action is ``blocked``, ``anonymized``, or ``detected``
    if the guardrail only reports. No flag quotes the text that matched.
    """
    told = _member(trace, "guardrail")
    flags = [
        f"{side}:{flag}"
        for side, field in (("input", "inputAssessment"), ("output", "outputAssessments"))
        for assessment in _assessments(_member(told, field))
        for flag in _flags_in(assessment)
    ]
    return tuple(dict.fromkeys(flags))


def _assessments(by_guardrail: Any) -> Iterator[Any]:
    """Yield the assessments: one of a whole input, or several of the pieces of an output."""
    for assessed in by_guardrail.values():
        if isinstance(assessed, list):
            yield from cast(list[Any], assessed)
        else:
            yield assessed


def _flags_in(assessment: Any) -> Iterator[str]:
    for policy in _POLICIES:
        for finding in _member(_member(assessment, policy.policy), policy.findings):
            if action := _action(finding):
                yield f"{policy.word}:{finding.get(policy.name) or 'custom'}:{action}"
    for finding in _member(_member(assessment, "automatedReasoningPolicy"), "findings"):
        for kind in _DOUBTS:
            if kind in finding:
                yield f"reasoning:{kind}:detected"


def _member(value: Any, name: str) -> Any:
    """Return a member of an object; an empty object if it is missing or null."""
    return {} if value is None else value.get(name) or {}


def _action(finding: Any) -> str:
    """Return what the guardrail did about a finding; empty if it found nothing wrong."""
    action = str(finding.get("action") or "NONE")
    if action != "NONE":
        return action.lower()
    # It is None in the traces of guardrails that do not tell what they detected.
    return "detected" if finding.get("detected") is True else ""
