"""Holdfast runs agent workflows that can stop at any moment and go on at the exact node.

The module `public` has the names. They are imported when the first one is used, so that commands
which need none of them, such as ``holdfast --help``, start quickly.
"""

# Before everything else: it mends the import path of python -m holdfast.
from holdfast import import_path as _import_path  # noqa: F401  # pyright: ignore[reportUnusedImport]

# isort: split
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from holdfast.public import *  # noqa: F403


def __getattr__(name: str) -> Any:
    import holdfast.public as public

    if name != "__all__" and name not in public.__all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(public, name)


def __dir__() -> list[str]:
    import holdfast.public as public

    return sorted({*globals(), *public.__all__})
