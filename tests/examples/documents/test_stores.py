"""The pipeline on DynamoDB and S3, as moto imitates them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import boto3

from documents.application import application
from documents.settings import Settings
from holdfast.documents.pipelines import start_pipelines
from tests.examples.documents.conftest import PROJECT, SENTENCE, Bench, CountedModels, KnownText
from tests.examples.documents.files import pdf_file


async def test_documents_are_processed_on_dynamodb_and_s3(
    moto_server: str, tmp_path: Path, counted: CountedModels, ocr: KnownText
) -> None:
    pdf_file(tmp_path / "a.pdf", [SENTENCE, "", "The last page."])
    name = tmp_path.name.replace("_", "-")
    address = f"dynamodb://{name}?region=us-east-1&endpoint={moto_server}"
    settings = replace(
        Settings(data=tmp_path / "data", store_url="", image_pixels=100_000),
        store_url=f"{address}&bucket={name}&bucket_endpoint={moto_server}",
    )
    app = application(settings, models=counted.models(), recognizer=lambda _name: ocr)
    async with app.open() as hf:
        await hf.create()
        start_pipelines(hf, [app.graph])
        await hf.documents.projects.create("Tested", id=PROJECT)
        async with hf.worker([app.graph]):
            bench = Bench(app, hf)
            workflow = await bench.processed(tmp_path / "a.pdf")
            assert (workflow.status, workflow.error) == ("completed", None)
            statuses = [each.status for each in await bench.segments(workflow)]
            assert statuses == ["completed"] * 3
    s3: Any = boto3.client("s3", endpoint_url=moto_server)
    stored = [each["Key"] for each in s3.list_objects_v2(Bucket=name)["Contents"]]
    of_document = [key for key in stored if key.startswith("documents/default/")]
    assert any("/images/00002-" in key for key in of_document)
    assert any("/graph/index-" in key for key in of_document)
