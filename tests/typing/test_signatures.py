"""What is written twice for type checkers is the same in both places."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest

from holdfast import (
    BlockingCaller,
    BlockingContext,
    Caller,
    Context,
    Graph,
    QuestionOptions,
    WorkerKeywords,
    WorkerOptions,
)
from holdfast.engine.effects.model_signatures import ModelOptions, SharedOptions
from holdfast.engine.execution.review_signatures import ReviewArguments
from holdfast.graph.graph import GraphOptions


def keywords(function: Callable[..., Any]) -> set[str]:
    parameters = inspect.signature(function).parameters.values()
    return {each.name for each in parameters if each.kind is each.KEYWORD_ONLY}


def test_the_options_of_a_worker_are_those_that_it_takes_by_name() -> None:
    assert set(WorkerKeywords.__annotations__) == set(WorkerOptions.__struct_fields__)


def test_the_options_of_a_graph_are_typed() -> None:
    assert set(GraphOptions.__annotations__) == keywords(Graph.__init__)


def test_the_options_of_a_model_are_typed() -> None:
    typed = {*ModelOptions.__annotations__, "output", "check"}
    assert typed == keywords(inspect.unwrap(Context.model))
    assert set(QuestionOptions.__annotations__) == {*SharedOptions.__annotations__, "check"}


def test_the_options_of_a_review_are_typed() -> None:
    typed = {*ReviewArguments.__annotations__, "form", "values"}
    assert typed == keywords(inspect.unwrap(Context.review))


def public(of: type) -> set[str]:
    names = {name for base in of.__mro__ if base is not object for name in vars(base)}
    names |= {name for base in of.__mro__ for name in inspect.get_annotations(base)}
    return {name for name in names if not name.startswith("_")}


@pytest.mark.parametrize(
    ("blocking", "awaited"), [(BlockingContext, Context), (BlockingCaller, Caller)]
)
def test_a_plain_function_has_all_of_the_context(blocking: type, awaited: type) -> None:
    assert public(blocking) == public(awaited)
    for name in public(awaited):
        method = inspect.unwrap(getattr(awaited, name))
        if inspect.isfunction(method) and name != "model":  # which takes any options
            twin = inspect.signature(getattr(blocking, name)).parameters.values()
            own = inspect.signature(method).parameters.values()
            assert [(p.name, p.kind, p.default) for p in twin] == [
                (p.name, p.kind, p.default) for p in own
            ], name
