"""The stores of the tests of the engine."""

from __future__ import annotations

from tests.engine.conftest import clock, either, house

__all__ = ["clock", "either", "house"]
