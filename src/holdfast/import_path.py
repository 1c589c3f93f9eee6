"""Removes the working folder from the import path of ``python -m holdfast``, before all imports.

Python puts the working folder first for ``-m``. That folder may contain anything, also a file with
the name of a module that Holdfast, a dependency or Python itself imports.
"""

import os
import sys

__all__: list[str] = []


def _is_command() -> bool:
    """Return whether this process is ``python -m holdfast``, not a program that imports it."""
    # Python sets argv[0] to -m until it has found the module.
    if sys.argv[:1] != ["-m"]:
        return False
    module = sys.orig_argv[-len(sys.argv)]
    return module == "holdfast" or (module.startswith("-") and module.endswith("mholdfast"))


def _working_folder() -> str | None:
    try:
        return os.getcwd()
    except OSError:  # the folder was deleted, and Python did not add it
        return None


if _is_command() and not sys.flags.safe_path and sys.path[:1] == [_working_folder()]:
    del sys.path[0]
