"""The application with the settings of the environment, for the command line of Holdfast.

``holdfast worker warranty.app:graph --models warranty.app:MODELS --reviews warranty.app:REVIEWS``
runs it.
"""

from __future__ import annotations

from warranty.application import application

__all__ = ["MODELS", "REVIEWS", "graph"]

_APPLICATION = application()
graph = _APPLICATION.graph
MODELS = _APPLICATION.models
REVIEWS = _APPLICATION.reviews
