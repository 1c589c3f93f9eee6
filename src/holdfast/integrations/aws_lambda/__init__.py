"""Handlers for AWS Lambda: start runs of uploads, serve the API, run what is due. Needs no extra.

Each handler runs what is due within the time left and then releases what it holds.
"""

from holdfast.integrations.aws_lambda.api import api
from holdfast.integrations.aws_lambda.due_runs import LambdaOptions, run_due
from holdfast.integrations.aws_lambda.invocation import LambdaContext
from holdfast.integrations.aws_lambda.s3_documents import s3_documents
from holdfast.integrations.aws_lambda.s3_events import S3Object, object_id, s3_objects
from holdfast.integrations.aws_lambda.s3_trigger import s3_trigger
from holdfast.integrations.aws_lambda.schedule_trigger import schedule_trigger
from holdfast.integrations.aws_lambda.stream_trigger import STREAM_FILTER, stream_trigger

__all__ = [
    "STREAM_FILTER",
    "LambdaContext",
    "LambdaOptions",
    "S3Object",
    "api",
    "object_id",
    "run_due",
    "s3_documents",
    "s3_objects",
    "s3_trigger",
    "schedule_trigger",
    "stream_trigger",
]
