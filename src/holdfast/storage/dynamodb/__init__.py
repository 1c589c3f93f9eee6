"""The DynamoDB engine. Read `engine.py` first, then `writer.py`, `exchange.py` and `wire.py`.

It needs the extra ``holdfast[aws]``, and is imported by `storage/open.py` alone, when it is used.
"""

from holdfast.storage.dynamodb.definition import definition, template
from holdfast.storage.dynamodb.engine import DynamoEngine

__all__ = ["DynamoEngine", "definition", "template"]
