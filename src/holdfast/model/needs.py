"""What a program needs from the process that runs it."""

from __future__ import annotations

import msgspec

__all__ = ["Needs"]

_NONE: frozenset[str] = frozenset()


class Needs(msgspec.Struct, frozen=True, kw_only=True):
    """The names of what a program uses and a process may lack."""

    models: frozenset[str] = _NONE
    """Models, as `Holdfast` gets them with ``models=``."""
    quotas: frozenset[str] = _NONE
    """Models that must have a quota, as `Holdfast` gets it with ``quotas=``."""
    tasks: frozenset[str] = _NONE
    """Tasks, as `Holdfast` gets them with ``tasks=``."""
    complete: bool = False
    """Whether the program uses no other models and tasks. Another name is then its mistake."""

    def with_part(self, part: Needs) -> Needs:
        """Return the needs of a program that includes another one."""
        return Needs(
            models=self.models | part.models,
            quotas=self.quotas | part.quotas,
            tasks=self.tasks | part.tasks,
            complete=self.complete and part.complete,
        )
