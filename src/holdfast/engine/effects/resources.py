"""What the nodes of this process use besides the store: models, quotas and budget accounts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from holdfast.engine.effects.argument_recorder import ArgumentRecorder
from holdfast.engine.effects.model_usage import ModelUsageCounter
from holdfast.engine.effects.quotas import QuotaLimiter
from holdfast.engine.effects.savings import SavingsCounter
from holdfast.engine.effects.shared_answers import SharedAnswers
from holdfast.engine.effects.token_estimates import TokenEstimates
from holdfast.engine.kernel.kernel import Kernel
from holdfast.engine.runs.budget_accounts import Accounts
from holdfast.errors import InvalidRequest, ResourceMissing
from holdfast.model.invocation import Model
from holdfast.model.program import Program
from holdfast.model.quota import Quota

__all__ = ["Resources", "check_resources", "is_model_name"]

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
            raise InvalidRequest(f"{field} must be a dict by name, got {given!r:.80}", field=field)
    for name, model in (models or {}).items():
        if not isinstance(name, str) or not name:
            raise InvalidRequest(
                f"the name of a model must be a text, got {name!r:.80}", field="models"
            )
        if not is_model_name(name):
            raise InvalidRequest(
                f"the name of a model must have at most {_NAME_CHARS_MAX} characters and no '#', "
                f"got {name!r:.80}",
                field="models",
            )
        if not callable(getattr(model, "answer", None)):
            raise InvalidRequest(
                f"a model must have a method answer(), got {model!r:.80}", field="models"
            )
    for name, task in (tasks or {}).items():
        if not isinstance(name, str) or not name or not callable(task):
            raise InvalidRequest(
                f"tasks must be functions by name, got {name!r:.80}: {task!r:.80}", field="tasks"
            )
    for name, quota in (quotas or {}).items():
        if not isinstance(quota, Quota):
            raise InvalidRequest(f"a quota must be a Quota, got {quota!r:.80}", field="quotas")
        if name not in (models or {}):
            raise InvalidRequest(
                f"a quota must be given for a known model, got {name!r:.80}", field="quotas"
            )


def is_model_name(name: object) -> bool:
    """Return whether a model can have this name."""
    return isinstance(name, str) and 0 < len(name) <= _NAME_CHARS_MAX and "#" not in name


class Resources:
    """The models of this process, their quotas, and what all runs share for them."""

    def __init__(
        self,
        kernel: Kernel,
        models: Mapping[str, Model] | None = None,
        quotas: Mapping[str, Quota] | None = None,
        tasks: Mapping[str, Callable[..., Any]] | None = None,
        *,
        recorder: ArgumentRecorder | None = None,
    ) -> None:
        """Take models and their quotas, and tasks, by the names under which programs use them."""
        self.recorder = recorder or ArgumentRecorder()
        self.models, self.quotas = dict(models or {}), dict(quotas or {})
        self.tasks = dict(tasks or {})
        self.accounts = Accounts(kernel)
        self.shared_answers = SharedAnswers(kernel)
        self.quota_limiter = QuotaLimiter(kernel)
        self.savings = SavingsCounter()
        self.model_usage = ModelUsageCounter()
        self.token_estimates = TokenEstimates()

    def check_needs(self, program: Program) -> None:
        """Check that this process has what a program declares to need.

        Raises:
            ResourceMissing: it lacks a model, a quota or a task.
        """
        needs = program.needs
        for what, option, lacking in (
            ("model", "models", needs.models - self.models.keys()),
            ("a quota for model", "quotas", needs.quotas - self.quotas.keys()),
            ("task", "tasks", needs.tasks - self.tasks.keys()),
        ):
            if lacking:
                names = sorted(lacking)
                shown = ", ".join(f"{name!r:.80}" for name in names)
                command = "" if option == "tasks" else f" or `holdfast worker --{option} …`"
                raise ResourceMissing(
                    f"graph {program.name!r} needs {what} {shown}, which this process does not "
                    f"have: pass it to Holdfast({option}={{…}}){command}",
                    graph=program.name,
                    missing=[f"{what} {name!r:.80}" for name in names],
                )

    async def close(self) -> None:
        """Write what calls gave back to their quotas."""
        await self.quota_limiter.close()
