"""Prices of DynamoDB and S3, as dated lists.

The name of a list says from when it is valid. Prices are in US dollars, for on-demand capacity in
us-east-1, without the free tier.
"""

from __future__ import annotations

import msgspec

__all__ = ["PRICES", "PRICES_2024_11", "PRICES_BEFORE_2024_11", "PriceList"]


class PriceList(msgspec.Struct, frozen=True, kw_only=True):
    """Prices of storage in one region, valid from a day on."""

    valid_from: str
    region: str
    write_units_million_usd: float
    """The price of a million DynamoDB write units."""
    read_units_million_usd: float
    """The price of a million DynamoDB read units."""
    blob_puts_thousand_usd: float
    """The price of a thousand S3 PUT, COPY, POST or LIST requests."""
    blob_gets_thousand_usd: float
    """The price of a thousand S3 GET requests."""


PRICES_BEFORE_2024_11 = PriceList(
    valid_from="2018-11-28",
    region="us-east-1",
    write_units_million_usd=1.25,
    read_units_million_usd=0.25,
    blob_puts_thousand_usd=0.005,
    blob_gets_thousand_usd=0.0004,
)
"""The price list before November 2024."""

PRICES_2024_11 = msgspec.structs.replace(
    PRICES_BEFORE_2024_11,
    valid_from="2024-11-01",
    write_units_million_usd=0.625,
    read_units_million_usd=0.125,
)
"""The price list since 1 November 2024, when AWS halved the prices of on-demand capacity."""

PRICES = PRICES_2024_11
"""The newest price list."""
