"""Storage: one table in the layout of DynamoDB, blobs beside it, and a meter, on two engines."""

from holdfast.storage.backups.backup import backup_store
from holdfast.storage.backups.copies import CopyReport
from holdfast.storage.backups.restore import restore_store
from holdfast.storage.blobs import BlobEntry, BlobPage, BlobRef, Blobs
from holdfast.storage.item import Item
from holdfast.storage.latency import Histogram
from holdfast.storage.layout import LAYOUT, Index, Key, Layout
from holdfast.storage.meter import Meter, MeterRow, Report, StoreFailure
from holdfast.storage.open import Store, cloudformation_template, open, terraform_definition
from holdfast.storage.operations import LATEST, Change, ChangePage, Page, Returning
from holdfast.storage.prices import PRICES, PRICES_2024_11, PRICES_BEFORE_2024_11, PriceList
from holdfast.storage.ranges import All, At, Between, From, Prefix, Range, UpTo
from holdfast.storage.table import Table
from holdfast.storage.units import Units
from holdfast.storage.writes import (
    Absent,
    AllOf,
    AnyOf,
    Check,
    Condition,
    Delete,
    Equals,
    Greater,
    Less,
    Present,
    Put,
    TransactionWrite,
    Update,
    Write,
)

__all__ = [
    "LATEST",
    "LAYOUT",
    "PRICES",
    "PRICES_2024_11",
    "PRICES_BEFORE_2024_11",
    "Absent",
    "All",
    "AllOf",
    "AnyOf",
    "At",
    "Between",
    "BlobEntry",
    "BlobPage",
    "BlobRef",
    "Blobs",
    "Change",
    "ChangePage",
    "Check",
    "Condition",
    "CopyReport",
    "Delete",
    "Equals",
    "From",
    "Greater",
    "Histogram",
    "Index",
    "Item",
    "Key",
    "Layout",
    "Less",
    "Meter",
    "MeterRow",
    "Page",
    "Prefix",
    "Present",
    "PriceList",
    "Put",
    "Range",
    "Report",
    "Returning",
    "Store",
    "StoreFailure",
    "Table",
    "TransactionWrite",
    "Units",
    "UpTo",
    "Update",
    "Write",
    "backup_store",
    "cloudformation_template",
    "open",
    "restore_store",
    "terraform_definition",
]
