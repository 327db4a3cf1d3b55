"""Modules that are loaded once for all mutants, and those that a change in one reaches."""

import ast
import sys
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from pathlib import Path

from tests.mutants.mutant import SOURCES

# MPI would be started, and a process in which it runs cannot be forked.
NOT_BEFORE_FORKS = "mpi4py"


def load_once() -> None:
    """Imports every module that does not start MPI."""
    for module in sorted(_imports().keys() - _that_import(NOT_BEFORE_FORKS)):
        import_module(module)


def forget(changed: str) -> None:
    """Lets a module be imported anew, and with it all modules that import it, and all tests."""
    for module in _that_import(changed) | {name for name in sys.modules if _is_test(name)}:
        sys.modules.pop(module, None)
        parent, _, name = module.rpartition(".")
        if parent in sys.modules:
            vars(sys.modules[parent]).pop(name, None)


def _is_test(module: str) -> bool:
    return module.partition(".")[0] == "tests"


def _that_import(changed: str) -> set[str]:
    """A module and those that import it, themselves or through others."""
    reached = {changed}
    while new := {name for name, names in _imports().items() if names & reached} - reached:
        reached |= new
    return reached


@cache
def _imports() -> dict[str, set[str]]:
    """The names that every module of the package imports, at any place in its source."""
    return {_name(path): set(_imported(path)) for path in SOURCES.rglob("*.py")}


def _name(path: Path) -> str:
    parts = path.relative_to(SOURCES.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _imported(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
