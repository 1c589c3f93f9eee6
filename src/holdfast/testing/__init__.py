"""The kit for tests of workflows: a store in memory, a manual clock, scripted models, one node."""

from holdfast.testing.answers import REAL, NotProvided, in_turn, raises, timed_out
from holdfast.testing.clock import KitClock
from holdfast.testing.fake_context import FakeContext, MadeCall
from holdfast.testing.fake_visit import AskedWait, StartedChild
from holdfast.testing.kit import NotSettled, TestKit
from holdfast.testing.review_answers import (
    AskedReview,
    ReviewAnswer,
    approved,
    expired,
    rejected,
    withdrawn,
)
from holdfast.testing.scripted_model import ScriptedModel, scripted

__all__ = [
    "REAL",
    "AskedReview",
    "AskedWait",
    "FakeContext",
    "KitClock",
    "MadeCall",
    "NotProvided",
    "NotSettled",
    "ReviewAnswer",
    "ScriptedModel",
    "StartedChild",
    "TestKit",
    "approved",
    "expired",
    "in_turn",
    "raises",
    "rejected",
    "scripted",
    "timed_out",
    "withdrawn",
]
