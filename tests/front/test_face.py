"""Names that `import dynapipe_hpc` offers."""

import ast
import importlib
import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import dynapipe_hpc

SOURCE = ast.parse(Path(inspect.getfile(dynapipe_hpc)).read_text(encoding="utf-8"))


def typed_names() -> dict[str, object]:
    """Modules that type checkers find under TYPE_CHECKING, by name."""
    blocks = [node.body for node in SOURCE.body if isinstance(node, ast.If)]
    imports = [node for block in blocks for node in block if isinstance(node, ast.ImportFrom)]
    return {
        alias.asname or alias.name: getattr(importlib.import_module(str(node.module)), alias.name)
        for node in imports
        for alias in node.names
    }


@pytest.mark.parametrize("name", dynapipe_hpc.__all__)
def test_a_name_of_the_face_has_a_docstring(name: str) -> None:
    doc = inspect.getdoc(getattr(dynapipe_hpc, name))
    assert doc
    assert not doc.startswith(f"{name}(")  # dataclasses make such a text where there is none


def test_type_checkers_see_what_is_loaded() -> None:
    loaded = {name: getattr(dynapipe_hpc, name) for name in dynapipe_hpc.__all__}
    assert loaded == typed_names()


def test_the_import_alone_loads_not_even_numpy() -> None:
    program = "import sys, dynapipe_hpc; print({'numpy', 'pydantic'} & set(sys.modules))"
    command = [sys.executable, "-c", program]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert ended.stdout == "set()\n"
