"""Generates the blocking API from the async one: ``python -m checks.blocking [--write]``.

That is ``holdfast.sync`` and ``holdfast.client.sync``.

Each public method of an async class becomes a method of a class of the same name that blocks: with
the same parameters and docstring, and a body that hands the call to the event loop of a `Portal`.
Without ``--write`` it prints how the files differ from what it would write, and exits with 1 where
they do: ``make check`` runs it so.
"""

from __future__ import annotations

import ast
import builtins
import difflib
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TypeAlias

from checks.twins import TWINS, Twin

__all__ = ["differences", "generate"]

Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef

ROOT = Path(__file__).resolve().parent.parent
HEADER = '''\
# Generated from {source} by checks/blocking.py; do not edit.
# To write it anew: python -m checks.blocking --write
"""The blocking `{name}`; the async one is `{module}.{name}`."""

from __future__ import annotations

'''


class Source:
    """A class of the async API: where it is defined, and what its module imports."""

    def __init__(self, root: Path, name: str, package: str) -> None:
        named = "public.py" if package == "holdfast" else "__init__.py"
        exports = ast.parse((root / _folder(package) / named).read_text())
        self.name = name
        self.module = next(
            str(each.module)
            for each in exports.body
            if isinstance(each, ast.ImportFrom) and name in {alias.name for alias in each.names}
        )
        self.path = f"src/{self.module.replace('.', '/')}.py"
        self._tree = ast.parse((root / self.path).read_text())
        self.definition = _class_of(self._tree, name)
        for base in list(self.definition.bases):
            self._adopt(root, base)

    def _adopt(self, root: Path, base: ast.expr) -> None:
        """Treat what a class inherits from another class of Holdfast as its own."""
        found = re.fullmatch(
            r"from (holdfast\.\S+) import (\w+)", self.import_of(ast.unparse(base)) or ""
        )
        if found is None:
            return
        inherited = ast.parse((root / f"src/{found[1].replace('.', '/')}.py").read_text())
        members = [
            each
            for each in _class_of(inherited, found[2]).body
            if isinstance(each, Function) and each.name != "__init__"
        ]
        self.definition.body += members
        self.definition.bases.remove(base)
        self._tree.body += inherited.body

    @property
    def parameters(self) -> str:
        """The type parameters of the class, as they are written after its name."""
        generic = [ast.unparse(each) for each in self.definition.bases]
        return "".join(each.removeprefix("Generic") for each in generic if "Generic[" in each)

    def import_of(self, name: str) -> str | None:
        """Return the import that gives the module a name, if one does."""
        for each in self._tree.body:
            if not isinstance(each, ast.Import | ast.ImportFrom):
                continue
            for alias in each.names:
                if (alias.asname or alias.name) == name:
                    renamed = f" as {alias.asname}" if alias.asname else ""
                    if isinstance(each, ast.Import):
                        return f"import {alias.name}{renamed}"
                    return f"from {each.module} import {alias.name}{renamed}"
        return None

    def constant(self, name: str) -> ast.Assign | None:
        """Return the assignment of a constant of the module."""
        for each in self._tree.body:
            if isinstance(each, ast.Assign) and ast.unparse(each.targets[0]) == name:
                return each
        return None


def _class_of(tree: ast.Module, name: str) -> ast.ClassDef:
    return next(each for each in tree.body if isinstance(each, ast.ClassDef) and each.name == name)


def generate(root: Path) -> dict[str, str]:
    """Return the text of each file of the blocking API, from the async API of a checkout."""
    files = {twin: f"{_folder(twin.package)}/sync/{twin.file}" for twin in TWINS}
    return {
        file: _formatted(_module(twin, Source(root, twin.name, twin.package)), file)
        for twin, file in files.items()
    }


def _folder(package: str) -> str:
    return f"src/{package.replace('.', '/')}"


def differences(root: Path) -> Iterator[str]:
    """Yield the lines of a diff from the files of a checkout to those that would be written."""
    for name, text in generate(root).items():
        path = root / name
        there = path.read_text() if path.exists() else ""
        yield from difflib.unified_diff(
            there.splitlines(), text.splitlines(), name, f"{name} (generated)", lineterm=""
        )


# --- a module -------------------------------------------------------------------------------------


def _module(twin: Twin, source: Source) -> str:
    members = [ast.parse(code).body[0] for code in twin.attributes.values()]
    members += [each for each in source.definition.body if _is_offered(each, twin)]
    functions = sorted((each for each in members if isinstance(each, Function)), key=_position)
    body = "\n".join([*twin.attributes.values(), *_methods(twin, functions)])
    docstring = _paragraphs(_docstring(source.definition).split("\n\n")[0], twin.details)
    constructor = _constructor(twin, functions, source)
    imports, constants = _names_used(twin, source, functions)
    bases = ", ".join(map(ast.unparse, source.definition.bases))
    return (
        HEADER.format(source=source.path, name=twin.name, module=source.module)
        + "\n".join([*imports, "", f'__all__ = ["{twin.name}"]', "", *constants, ""])
        + f"\nclass {twin.name}{f'({bases})' if bases else ''}:\n"
        + _indented(f'"""{_ended(_filled(docstring))}"""\n\n{constructor}\n{body}')
    )


def _position(function: Function) -> int:
    """Return where a method stands: after the properties, and before the special ones."""
    if function.name.startswith("__"):
        return 2
    return 0 if _is_property(function) else 1


def _is_property(function: Function) -> bool:
    return any(ast.unparse(each) == "property" for each in function.decorator_list)


def _is_offered(member: ast.stmt, twin: Twin) -> bool:
    if not isinstance(member, Function) or member.name in twin.left_out:
        return False
    if twin.methods is not None:
        return member.name in twin.methods or member.name in ("__aenter__", "__aexit__")
    public = not member.name.startswith("_")
    return public or member.name in ("__init__", "__aenter__", "__aexit__", "__repr__")


def _names_used(
    twin: Twin, source: Source, functions: list[Function]
) -> tuple[list[str], list[str]]:
    """Return the imports and the constants that signatures and decorators need."""
    imports = {
        f"from {source.module} import {twin.name} as Async{twin.name}",
        "from holdfast.portal import Portal",
    }
    if any(_is_overload(each) for each in functions):
        imports |= {"from typing import Any", "from typing import cast"}
    constants: dict[str, str] = {}
    pending = [
        name for each in functions if _has_own_signature(each, twin) for name in _names(each)
    ]
    bases = [each for base in source.definition.bases for each in ast.walk(base)]
    pending += [each.id for each in bases if isinstance(each, ast.Name)]
    while pending:
        name = pending.pop()
        constant = source.constant(name)
        if name in _MODULES:
            if name != twin.name:
                imports.add(f"from {_MODULES[name]} import {name}")
        elif name == "AsyncGenerator":
            imports.add("from collections.abc import Generator")
        elif name == "RunStream":
            imports.add("from holdfast.portal import BlockingStream")
        elif constant is not None and name not in constants:
            constants[name] = ast.unparse(constant)
            pending += [each.id for each in ast.walk(constant.value) if isinstance(each, ast.Name)]
        elif constant is None:
            found = source.import_of(name)
            if found is None and not hasattr(builtins, name):
                raise LookupError(f"{source.path} defines {name} in a way that cannot be copied")
            imports |= set() if found is None else {found}
    return sorted(imports), [constants[name] for name in sorted(constants)]


_MODULES = {twin.name: f"{twin.package}.sync.{twin.file.removesuffix('.py')}" for twin in TWINS}


def _has_own_signature(function: Function, twin: Twin) -> bool:
    return function.name != "__init__" or twin.opens


def _names(function: Function) -> Iterator[str]:
    for part in (*function.decorator_list, function.args, *filter(None, [function.returns])):
        for each in ast.walk(part):
            if isinstance(each, ast.Name):
                yield each.id


# --- its methods ----------------------------------------------------------------------------------


def _constructor(twin: Twin, functions: list[Function], source: Source) -> str:
    if twin.opens:
        made = next(each for each in functions if each.name == "__init__")
        body = f"self.{twin.inner} = Async{twin.name}({_passed(made)})\nself._portal = Portal()"
        return _function(made, body, twin)
    parameter = twin.inner.removeprefix("_")
    return (
        f"def __init__(self, portal: Portal, {parameter}: Async{twin.name}{source.parameters})"
        " -> None:\n"
        f"    self._portal = portal\n    self.{twin.inner} = {parameter}\n"
    )


def _methods(twin: Twin, functions: list[Function]) -> Iterator[str]:
    for each in functions:
        if each.name == "__aenter__":
            begin = "self.start()\n" if twin.name == "Worker" else ""
            yield f"def __enter__(self) -> {twin.name}:\n" + _indented(f"{begin}return self")
        elif each.name == "__aexit__":
            end = "stop" if twin.name == "Worker" else "close"
            yield f"def __exit__({ast.unparse(each.args)}) -> None:\n    self.{end}()\n"
        elif each.name == "__repr__":
            yield f"def __repr__(self) -> str:\n    return repr(self.{twin.inner})\n"
        elif _is_overload(each):
            yield f"{_signature(each)} ...\n"
        elif each.name not in ("__init__", *twin.attributes):
            overloaded = any(_is_overload(one) for one in functions if one.name == each.name)
            yield _function(each, _body(twin, each, overloaded=overloaded), twin)


def _body(twin: Twin, function: Function, *, overloaded: bool) -> str:
    name, inner = function.name, f"self.{twin.inner}.{function.name}"
    # Its parameters are those of all overloads together, which no overload takes.
    inner = f"cast(Any, {inner})" if overloaded else inner
    returned = "" if function.returns is None else ast.unparse(function.returns)
    twin_returned = returned.partition("[")[0]
    arguments = ", ".join(filter(None, [inner, _passed(function)]))
    if _is_property(function):
        is_twin = twin_returned in _MODULES
        return f"return {twin_returned}(self._portal, {inner})" if is_twin else f"return {inner}"
    if name == "close":
        return f"self._portal.close({inner})"
    if isinstance(function, ast.AsyncFunctionDef):
        call = f"self._portal.call({arguments})"
        if twin_returned in _MODULES:
            call = f"{twin_returned}(self._portal, {call})"
        call = call if returned == "None" else f"return {call}"
        if name == "stop":  # closing stops the workers, and a fork does not copy them
            call = f"if not self._portal.is_closed:\n    {call}"
        return call
    if returned.startswith("AsyncGenerator["):
        return f"return self._portal.iterate({arguments})"
    if returned.startswith("RunStream["):
        return f"return self._portal.open_stream({arguments})"
    made = f"{inner}({_passed(function)})"
    return f"self._portal.check()\nreturn {twin_returned}(self._portal, {made})"


def _is_overload(function: Function) -> bool:
    return any(ast.unparse(each) == "overload" for each in function.decorator_list)


def _signature(function: Function) -> str:
    returned = "None" if function.returns is None else ast.unparse(function.returns)
    returned = re.sub(r"^AsyncGenerator\[(.+), None\]$", r"Generator[\1, None, None]", returned)
    returned = re.sub(r"^RunStream\[", "BlockingStream[", returned)
    decorators = "".join(f"@{ast.unparse(each)}\n" for each in function.decorator_list)
    return f"{decorators}def {function.name}({ast.unparse(function.args)}) -> {returned}:"


def _function(function: Function, body: str, twin: Twin) -> str:
    first, _, rest = _docstring(function).partition("\n\n")
    note = _filled(twin.notes.get(function.name, ""), width=92)
    docstring = _ended(_paragraphs(first, note, rest))
    return f"{_signature(function)}\n" + _indented(f'"""{docstring}"""\n{body}')


def _passed(function: Function) -> str:
    """Return the arguments with which a function of the same parameters is called."""
    given = function.args
    passed = [each.arg for each in (*given.posonlyargs, *given.args)][1:]
    if given.vararg is not None:
        passed.append(f"*{given.vararg.arg}")
    passed += [f"{each.arg}={each.arg}" for each in given.kwonlyargs]
    if given.kwarg is not None:
        passed.append(f"**{given.kwarg.arg}")
    return ", ".join(passed)


# --- text -----------------------------------------------------------------------------------------


def _docstring(of: ast.ClassDef | Function) -> str:
    """Return a docstring as it is true of a blocking call."""
    text = ast.get_docstring(of)
    if text is None:
        raise LookupError(f"{of.name} has no docstring")
    return re.sub(r"\bawait |\basync (?=with|for)", "", text)


def _paragraphs(*parts: str) -> str:
    return "\n\n".join(filter(None, parts))


def _filled(text: str, *, width: int = 96) -> str:
    """Return text with no line longer than a width; paragraphs stay apart."""
    lines: list[str] = []
    for paragraph in text.split("\n\n"):
        line = ""
        for word in paragraph.split():
            if line and len(line) + 1 + len(word) > width:
                lines.append(line)
                line = ""
            line = f"{line} {word}" if line else word
        lines += [line, ""]
    return "\n".join(lines).rstrip("\n")


def _ended(docstring: str) -> str:
    return f"{docstring}\n" if "\n" in docstring else docstring


def _indented(text: str) -> str:
    return "".join(f"    {line}\n" if line else "\n" for line in text.splitlines())


def _formatted(text: str, file: str) -> str:
    """Sort the imports and lay out the code as the rest of the source."""
    for command in (["check", "--quiet", "--fix", "--select", "I"], ["format", "--quiet"]):
        done = subprocess.run(
            [sys.executable, "-m", "ruff", *command, "--no-cache", "--stdin-filename",
             file, "-"],
            cwd=ROOT, input=text, capture_output=True, text=True, check=True,
        )  # fmt: skip
        text = done.stdout
    return text


def main() -> None:
    """Write the files, or print how they differ and exit with 1."""
    if sys.argv[1:] == ["--write"]:
        for name, text in generate(ROOT).items():
            (ROOT / name).write_text(text)
        return
    found = list(differences(ROOT))
    for line in found:
        print(line)
    if found:
        sys.exit("holdfast.sync is out of date: run python -m checks.blocking --write")


if __name__ == "__main__":
    main()
