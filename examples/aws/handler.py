"""The handlers of the order app on AWS Lambda: one archive, four functions."""

from __future__ import annotations

import os

from orders import Order, graph

from holdfast import Holdfast
from holdfast.integrations.aws_lambda import (
    S3Object,
    api,
    s3_trigger,
    schedule_trigger,
    stream_trigger,
)
from holdfast.server import ServerOptions, asgi

# dynamodb://runs?region=eu-west-1&bucket=my-blobs
hf = Holdfast(os.environ["HOLDFAST_URL"])


def order_of(uploaded: S3Object) -> Order:
    """Return the order of an upload such as orders/o-1/4200.pdf."""
    _, number, name = uploaded.key.split("/")
    return Order(number, int(name.removesuffix(".pdf")))


on_upload = s3_trigger(hf, graph, input_of=order_of, id_of=lambda each: order_of(each).number)
on_request = api(asgi(hf, [graph], options=ServerOptions(authentication=True)))
on_change = stream_trigger(hf, [graph])
on_schedule = schedule_trigger(hf, [graph])
