"""The application with its data in a folder of the test, and a kit that runs it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from holdfast import Request
from holdfast.integrations.offline import Offline
from holdfast.testing import TestKit
from warranty import models as rules
from warranty.application import Application, application
from warranty.settings import Settings

REVIEWER = "ana@example.com"


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    url = f"sqlite:///{tmp_path}/warranty.db"
    return Settings(data=tmp_path / "data", store_url=url, reviewers=(REVIEWER,))


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The models that were asked, in this order, by all processes of the test."""
    names: list[str] = []

    def counted(answer: Callable[[Request], object], name: str) -> Callable[[Request], object]:
        def count(request: Request) -> object:
            names.append(name)
            return answer(request)

        return count

    for function, name in (("_answer_small", "small"), ("_answer_large", "large")):
        monkeypatch.setattr(rules, function, counted(getattr(rules, function), name))
    return names


@pytest.fixture
def app(settings: Settings, asked: list[str]) -> Application:
    made = application(settings)
    assert all(isinstance(model, Offline) for model in made.models.values())
    return made


@pytest.fixture
async def kit(app: Application) -> AsyncIterator[TestKit]:
    async with TestKit(app.graph, models=app.models) as kit:
        yield kit
