"""What a fleet does so that it can come to rest."""

from __future__ import annotations

import pytest

from tests.simulation.fleet import funds_owed
from tests.simulation.script import Line, Script


@pytest.mark.parametrize(
    ("status", "refused", "owed"),
    [
        ("waiting", True, ["1000000"]),
        ("running", True, ["1000000"]),
        ("waiting", False, []),
        ("quarantined", True, []),
        ("expired", True, []),
        (None, True, []),
    ],
)
def test_a_run_that_was_retried_after_money_was_refused_is_given_it(
    status: str | None, refused: bool, owed: list[str]
) -> None:
    script = Script()
    script.clients = [
        [
            Line(5.0, "signal", "run-03", "go", done=True, refused=True),
            Line(9.0, "fund", "run-03", "100 1000000", done=True, refused=refused),
        ]
    ]
    lines = funds_owed(script, {} if status is None else {"run-03": status})
    assert [line.argument for line in lines] == owed
    assert not any(line.done for line in lines)
