"""Where ``python -m holdfast`` looks for modules. It is imported before everything else.

Python puts the working folder first for ``-m``. That folder may hold whatever was put there, also a
file with the name of a module that we, a dependency or Python itself import.
"""

import os
import sys

__all__: list[str] = []


def _is_command() -> bool:
    """Return whether this process is ``python -m holdfast``, and not a program that imports us."""
    # Python writes -m there, in the place of the file, until it has found the module.
    if sys.argv[:1] != ["-m"]:
        return False
    module = sys.orig_argv[-len(sys.argv)]
    return module == "holdfast" or (module.startswith("-") and module.endswith("mholdfast"))


def _working_folder() -> str | None:
    try:
        return os.getcwd()
    except OSError:  # it was deleted, and Python did not put it there
        return None


if _is_command() and not sys.flags.safe_path and sys.path[:1] == [_working_folder()]:
    del sys.path[0]
