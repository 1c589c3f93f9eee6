"""Where blobs can be, each with a way to look at and to spoil what is there behind its back."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any, Protocol

from holdfast.storage.blobs import BlobEngine
from holdfast.storage.folder_blobs import FolderBlobs
from holdfast.storage.s3 import S3Blobs

PLACES = ("folder", "bucket")


class Place(Protocol):
    def open(self) -> BlobEngine:
        """Return a new engine on the same blobs."""
        ...

    def store(self, key: str, data: bytes) -> None:
        """Store bytes under a key, as somebody else might."""
        ...

    def load(self, key: str) -> bytes | None:
        """Return the bytes that are really there."""
        ...

    def litter(self) -> set[str]:
        """Leave things that no put can have made, and return how `names` calls them."""
        ...

    def names(self) -> set[str]:
        """Return the names of everything that is there."""
        ...

    def empty(self) -> None:
        """Remove everything."""
        ...


class Folder:
    def __init__(self, root: Path) -> None:
        self.root = root

    def open(self) -> FolderBlobs:
        return FolderBlobs(self.root)

    def path(self, key: str) -> Path:
        """Return the file of a blob; written anew here, since files of old releases stay."""
        *folders, name = [
            segment.replace("%", "%25").replace("~", "%7E") for segment in key.split("/")
        ]
        return self.root.joinpath(*(f"{folder}~" for folder in folders), name)

    def store(self, key: str, data: bytes) -> None:
        path = self.path(key)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)

    def load(self, key: str) -> bytes | None:
        path = self.path(key)
        return path.read_bytes() if path.is_file() else None

    def litter(self) -> set[str]:
        litter = {
            "a~/.hidden",
            "a~/backup~~",
            "a~/lower%7e",
            "a~/half%2",
            "a~/plain folder/file",
            "a~/..~/file",
            "a~/back\\slash",
            "a~/line\nbreak",
            "a~/\udcff",  # a byte that is not UTF-8
        }
        for name in litter:
            path = self.root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(b"litter")
        (self.root / "a~/pretends to be a folder~").write_bytes(b"litter")
        return litter | {"a~/pretends to be a folder~"}

    def names(self) -> set[str]:
        files = (path for path in self.root.rglob("*") if path.is_file())
        return {str(path.relative_to(self.root)) for path in files}

    def empty(self) -> None:
        shutil.rmtree(self.root, ignore_errors=True)


class Bucket:
    def __init__(self, bucket: str, endpoint: str, client: Any) -> None:
        self.bucket = bucket
        self.endpoint = endpoint
        self.client = client

    def open(self) -> S3Blobs:
        return S3Blobs(self.bucket, endpoint=self.endpoint, attempts_max=2)

    def store(self, key: str, data: bytes) -> None:
        self.client.put_object(Bucket=self.bucket, Key=key, Body=data)

    def load(self, key: str) -> bytes | None:
        try:
            return self.client.get_object(Bucket=self.bucket, Key=key)["Body"].read()
        except self.client.exceptions.NoSuchKey:
            return None

    def litter(self) -> set[str]:
        litter = {"a/", "a/.hidden", "a/b//c", "a/back\\slash", "a/" + "x" * 256}
        for key in litter:
            self.store(key, b"litter")
        return litter

    def names(self) -> set[str]:
        answer = self.client.list_objects_v2(Bucket=self.bucket)
        return {each["Key"] for each in answer.get("Contents", [])}

    def empty(self) -> None:
        for key in self.names():
            self.client.delete_object(Bucket=self.bucket, Key=key)
