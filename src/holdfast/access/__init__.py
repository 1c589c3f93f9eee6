"""Access to a store over a network: API keys."""

from holdfast.access.api_keys import ApiKeys

__all__ = ["ApiKeys"]
