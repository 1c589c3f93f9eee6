"""What the nodes of this process do something to the world with, besides the store."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from holdfast.engine.effects.quotas import QuotaLimiter
from holdfast.engine.effects.savings import SavingsCounter
from holdfast.engine.effects.shared_answers import SharedAnswers
from holdfast.engine.kernel.kernel import Kernel
from holdfast.engine.runs.budget_accounts import Accounts
from holdfast.errors import InvalidRequest
from holdfast.model.invocation import Model
from holdfast.model.quota import Quota

__all__ = ["Resources", "check_resources"]

_NAME_CHARS_MAX = 58


def check_resources(
    models: Mapping[str, Model] | None,
    quotas: Mapping[str, Quota] | None,
    tasks: Mapping[str, Callable[..., Any]] | None,
) -> None:
    """Check the models, quotas and tasks of a process.

    Raises:
        InvalidRequest: one of them is not a model, a quota or a task, or a quota has no model.
    """
    for field, given in (("models", models), ("quotas", quotas), ("tasks", tasks)):
        if not isinstance(given, Mapping | None):
            raise InvalidRequest(f"{field} are a dict by name, not {given!r:.80}", field=field)
    for name, model in (models or {}).items():
        if not isinstance(name, str) or not name:
            raise InvalidRequest(f"a model's name is text, not {name!r:.80}", field="models")
        if len(name) > _NAME_CHARS_MAX or "#" in name:
            raise InvalidRequest(
                f"a model's name has at most {_NAME_CHARS_MAX} letters, and no '#' among them: "
                f"{name!r:.80} cannot be one",
                field="models",
            )
        if not callable(getattr(model, "answer", None)):
            raise InvalidRequest(f"{model!r:.80} is not a model", field="models")
    for name, task in (tasks or {}).items():
        if not isinstance(name, str) or not name or not callable(task):
            raise InvalidRequest(
                f"tasks must be functions by name, got {name!r:.80}: {task!r:.80}", field="tasks"
            )
    for name, quota in (quotas or {}).items():
        if not isinstance(quota, Quota):
            raise InvalidRequest(f"{quota!r:.80} is not a quota", field="quotas")
        if name not in (models or {}):
            raise InvalidRequest(f"there is no model {name!r:.80} to limit", field="quotas")


class Resources:
    """The models that can be asked, what limits that, and what is shared on the way."""

    def __init__(
        self,
        kernel: Kernel,
        models: Mapping[str, Model] | None = None,
        quotas: Mapping[str, Quota] | None = None,
        tasks: Mapping[str, Callable[..., Any]] | None = None,
    ) -> None:
        """Take models and their quotas, and tasks, by the names under which programs use them."""
        self.models, self.quotas = dict(models or {}), dict(quotas or {})
        self.tasks = dict(tasks or {})
        self.accounts = Accounts(kernel)
        self.shared_answers = SharedAnswers(kernel)
        self.quota_limiter = QuotaLimiter(kernel)
        self.savings = SavingsCounter()

    async def close(self) -> None:
        """Write down what quotas are given back."""
        await self.quota_limiter.close()
