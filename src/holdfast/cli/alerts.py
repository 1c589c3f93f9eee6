"""``holdfast alerts``: prints alert rules for Prometheus and for CloudWatch."""

from __future__ import annotations

from pathlib import Path

import click

from holdfast.cli.parameters import RequiredChoice, example

__all__ = ["alerts"]

_RULES = {"prometheus": "prometheus.yml", "cloudwatch": "cloudwatch.json"}
_EPILOG = example(
    "holdfast alerts prometheus > holdfast-rules.yml",
    "holdfast alerts cloudwatch > holdfast-alarms.json",
)


@click.command(epilog=_EPILOG)
@click.argument("system", type=RequiredChoice(list(_RULES)))
def alerts(system: str) -> None:
    """Print alert rules: for Prometheus, or as a CloudFormation template for CloudWatch.

    Those for Prometheus use the metrics of `holdfast serve` and `holdfast worker --metrics`. Those
    for CloudWatch use the metrics of the DynamoDB table, and JSON logs (--log-format json).
    """
    file = Path(__file__).parent / "alert_rules" / _RULES[system]
    click.echo(file.read_text(encoding="utf-8"), nl=False)
