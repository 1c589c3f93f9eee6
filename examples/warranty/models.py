"""The two models: on Bedrock if they are configured, else rules that need no network.

The rules read the same prompts and give answers of the same types as a model on Bedrock, and cost
what Haiku and Sonnet cost for as many tokens. So the dollars of a laptop are those of AWS, but for
the tokenizer: four bytes count as a token.
"""

from __future__ import annotations

import re
from typing import Any

from holdfast import Model, Request
from holdfast.integrations.offline import Offline, OfflineAnswer
from holdfast.model.pricing import price_of
from warranty.settings import Settings

__all__ = ["models"]

SMALL, LARGE = "anthropic.claude-haiku-4-5", "anthropic.claude-sonnet-4-5"
"""The models whose prices the rules have."""

_DOCUMENT = re.compile(r"<document>\n(.*)\n</document>", re.DOTALL)
_FIELD = re.compile(r"^([A-Z][A-Za-z ]+): *(.+)$", re.MULTILINE)
_MONTHS = re.compile(r"^.*?\bWarranty: *(\d+) months", re.MULTILINE)
_AMOUNT = re.compile(r"\d+(?:\.\d+)?")
_LIABILITY = re.compile(r"liable|loss of production", re.IGNORECASE)


def models(settings: Settings) -> dict[str, Model]:
    """Return the models by the names that the pipeline uses: ``small`` and ``large``."""
    if settings.model_small and settings.model_large:
        from holdfast.integrations.bedrock import Bedrock

        return {
            name: Bedrock(id, region=settings.region, guardrail=settings.guardrail)
            for name, id in (("small", settings.model_small), ("large", settings.model_large))
        }
    return {
        "small": Offline(_answer_small, name="rules-small", price=price_of(SMALL)),
        "large": Offline(_answer_large, name="rules-large", price=price_of(LARGE)),
    }


def _answer_small(request: Request) -> OfflineAnswer:
    return _answer(request, careful=False)


def _answer_large(request: Request) -> OfflineAnswer:
    return _answer(request, careful=True)


def _answer(request: Request, *, careful: bool) -> OfflineAnswer:
    prompt = request.messages[-1]["content"]
    found = _DOCUMENT.search(prompt)
    text = found[1] if found else prompt
    asked = (request.output or {}).get("properties", {})
    if "product" in asked:
        return _fields(text)
    if "risk" in asked:
        return _verdict(text, careful=careful)
    return _reminder(prompt)


def _fields(text: str) -> dict[str, Any]:
    said = {name.lower(): value.strip() for name, value in reversed(_FIELD.findall(text))}
    months = _MONTHS.search(text)
    return {
        "product": said.get("product", ""),
        "serial": said.get("serial number", ""),
        "customer": said.get("customer", ""),
        "purchased": said.get("date of purchase", ""),
        "price_usd": _amount(said.get("price", "")),
        "months": int(months[1]) if months else 0,
        "coverage": said.get("coverage", ""),
        "exclusions": [each.strip() for each in said.get("exclusions", "").split(",") if each],
    }


def _verdict(text: str, *, careful: bool) -> dict[str, Any]:
    fields = _fields(text)
    terms = {int(months) for months in _MONTHS.findall(text)}
    reasons: list[str] = []
    if fields["price_usd"] > 10_000:
        reasons.append("The product is expensive.")
    if _LIABILITY.search(text):
        reasons.append("The manufacturer is liable for consequences.")
    if len(terms) > 1:
        reasons.append(f"The terms contradict each other: {sorted(terms)} months.")
        if not careful:  # the small model notices, and does not know what follows from it
            return {"reasons": reasons, "risk": "medium", "confidence": 0.55}
    if reasons or not fields["serial"]:
        reasons = reasons or ["There is no serial number."]
        return {"reasons": reasons, "risk": "high", "confidence": 0.93}
    if fields["price_usd"] > 500 or fields["months"] > 24:
        return {"reasons": ["The product is not cheap."], "risk": "medium", "confidence": 0.86}
    return {"reasons": ["An ordinary warranty."], "risk": "low", "confidence": 0.97}


def _reminder(prompt: str) -> str:
    said = dict(_FIELD.findall(prompt))
    product, months = said.get("Product", "your product"), said.get("Months", "0")
    return (
        f"The warranty of {product} began on {said.get('Purchased', 'the day of purchase')} and "
        f"lasts {months} months. It covers {said.get('Coverage', 'what the certificate says')}. "
        "Please keep the certificate and the receipt. We write again a month before it ends."
    )


def _amount(text: str) -> float:
    found = _AMOUNT.search(text.replace(",", ""))
    return float(found[0]) if found else 0.0
