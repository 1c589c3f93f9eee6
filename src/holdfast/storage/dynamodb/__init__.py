"""The DynamoDB engine. Read `engine.py` first, then `writer.py`, `client.py` and `transport.py`.

It needs the extra ``holdfast[aws]``. Only `storage/open.py` imports it, when it is used.
"""

from holdfast.storage.dynamodb.engine import DynamoEngine
from holdfast.storage.dynamodb.table_definition import (
    cloudformation_template,
    create_table_params,
    terraform_definition,
)

__all__ = ["DynamoEngine", "cloudformation_template", "create_table_params", "terraform_definition"]
