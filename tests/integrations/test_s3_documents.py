"""Events of S3 that add documents: each object once, and nothing that is not accepted."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest

from holdfast import Graph, Holdfast
from holdfast.documents.outside_files import OutsideFiles
from holdfast.errors import InvalidRequest, StoredFileNotFound
from holdfast.integrations import aws_lambda
from holdfast.integrations.aws_lambda.invocation import run_in_loop
from tests.integrations.lambda_calls import FAST, Invocation

PDF = b"%PDF-1.7\n" + bytes(3_000_000)
pipeline = Graph("documents", dict[str, Any])


@pipeline.node
def read(state: dict[str, Any]) -> dict[str, Any]:
    return {"read": state["workflow"]}


@pytest.fixture
def hf(tmp_path: Path) -> Iterator[Holdfast]:
    opened = Holdfast(f"sqlite:///{tmp_path}/runs.db")
    run_in_loop(lambda: opened.documents.projects.create("Contracts", id="p"))
    yield opened
    run_in_loop(opened.close)


@pytest.fixture
def inbox(moto_server: str, hf: Holdfast, tmp_path: Path) -> tuple[Any, str]:
    untyped: Any = boto3
    client = untyped.client("s3", endpoint_url=moto_server, region_name="us-east-1")
    bucket = f"inbox-{tmp_path.name.replace('_', '-')}"[:63].rstrip("-")
    client.create_bucket(Bucket=bucket)
    hf.documents.files.outside = OutsideFiles((), client=client)
    return client, bucket


def event_of(bucket: str, *keys: str) -> dict[str, Any]:
    return {
        "Records": [
            {
                "eventSource": "aws:s3",
                "eventName": "ObjectCreated:Put",
                "s3": {
                    "bucket": {"name": bucket},
                    "object": {"key": key, "size": 10, "sequencer": "0055AED6DCD90281E5"},
                },
            }
            for key in keys
        ]
    }


def test_an_object_becomes_a_document_once(hf: Holdfast, inbox: tuple[Any, str]) -> None:
    client, bucket = inbox
    client.put_object(Bucket=bucket, Key="in/a b.pdf", Body=PDF)
    client.put_object(Bucket=bucket, Key="in/run.exe", Body=b"MZ" + bytes(100))
    handler = aws_lambda.s3_documents(hf, [pipeline], project="p", options=FAST)
    event = event_of(bucket, "in/a+b.pdf", "in/run.exe")
    first = handler(event, Invocation())
    assert (first["started"], first["repeated"]) == (1, 1), "a program is no document"
    assert (handler(event, Invocation()))["started"] == 0

    async def check() -> None:
        (document,) = (await hf.documents.list("p")).documents
        assert document.file_uri == f"s3://{bucket}/in/a%20b.pdf"
        assert (document.file_name, document.file_bytes) == ("a b.pdf", len(PDF))
        content = [part async for part in hf.documents.files.read(document.file_uri)]
        assert b"".join(content) == PDF
        assert len(content) > 1
        run = await hf.run(f"doc-{document.workflow}").get()
        assert run.status == "finished", "the handler runs what is due"
        with pytest.raises(StoredFileNotFound):
            await hf.documents.files.get(f"s3://{bucket}/none.pdf")
        with pytest.raises(InvalidRequest):
            await hf.documents.files.get("s3://another-bucket/a.pdf")

    run_in_loop(check)


def test_an_object_that_is_gone_fails_the_invocation(hf: Holdfast, inbox: tuple[Any, str]) -> None:
    handler = aws_lambda.s3_documents(hf, [pipeline], project=lambda _: "p", options=FAST)
    with pytest.raises(ExceptionGroup, match="not all of 1 runs"):
        handler(event_of(inbox[1], "none.pdf"), Invocation())
