"""The application on AWS Lambda: one archive, four functions, no worker that waits.

An upload starts a run, which reads and judges the document, and pauses if a person has to decide.
The decision arrives at the API days later. The stream of the table tells of it, and only the steps
after the pause run. No event tells that a reminder is due or that a review has expired: the
schedule finds these.
"""

from __future__ import annotations

from holdfast.integrations.aws_lambda import (
    S3Object,
    api,
    s3_trigger,
    schedule_trigger,
    stream_trigger,
)
from holdfast.server import ServerOptions, asgi
from warranty.application import Application, application
from warranty.documents import document_of, labels_of, tenant_of

__all__ = ["app", "hf", "on_change", "on_request", "on_schedule", "on_upload"]


def _application() -> Application:
    """Return the application with the settings of the environment.

    Raises:
        ValueError: a setting is missing without which a function would lose what it writes.
    """
    made = application()
    if not made.settings.store_url.startswith("dynamodb:"):
        raise ValueError(
            "set HOLDFAST_URL to a table, such as dynamodb://warranties?region=eu-west-1&bucket="
            "my-blobs: the files of a function are deleted with its process"
        )
    if made.settings.topic is None:
        raise ValueError("set WARRANTY_TOPIC to the ARN of an SNS topic for notices to tenants")
    return made


def _id_of(uploaded: S3Object) -> str:
    return document_of(uploaded).id


app = _application()
graph = app.graph
hf = app.open()

on_upload = s3_trigger(
    hf,
    graph,
    input_of=document_of,
    id_of=_id_of,
    tenant_of=lambda uploaded: tenant_of(uploaded.key),
    labels_of=lambda uploaded: labels_of(uploaded.key),
)
# The stream runs what a decision made due: a reviewer need not wait for a model.
on_request = api(asgi(hf, [graph], options=ServerOptions(authentication=True)), run_seconds=0)
on_change = stream_trigger(hf, [graph])
on_schedule = schedule_trigger(hf, [graph])
