"""What runs where, what makes no progress, and what it costs: `Fleet`."""

from holdfast.fleet.fleet import Fleet

__all__ = ["Fleet"]
