"""The package as seen from outside: names, guides, and tests without optional packages."""

import ast
import importlib
import inspect
import re
import sys
from pathlib import Path

import pytest
from tests.jobs.command_line import run_command, run_python

import dynapipe_hpc
from dynapipe_hpc.architecture.model_shape import ModelShape

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
    assert run_python(program).stdout == "set()\n"


ROOT = Path(__file__).parents[2]
GUIDES = sorted((ROOT / "docs").glob("adding_a_*.md"))
SECTION = re.compile(r"^## (.*)\n((?:(?!^## ).*\n?)*)", re.MULTILINE)
NAMED = re.compile(r"`((?:src|tests|docs|cpp|configs)/[\w./]+)`")


@pytest.mark.parametrize("guide", GUIDES, ids=lambda guide: guide.stem)
def test_files_that_a_guide_names_exist(guide: Path) -> None:
    named = NAMED.findall(guide.read_text(encoding="utf-8"))
    assert len(named) > 5
    assert [name for name in named if not (ROOT / name).exists()] == []


@pytest.mark.parametrize("guide", GUIDES, ids=lambda guide: guide.stem)
def test_code_in_a_guide_is_in_the_file_of_its_heading(guide: Path) -> None:
    n_quoted = 0
    for heading, text in SECTION.findall(guide.read_text(encoding="utf-8")):
        for quoted in re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
            (name,) = NAMED.findall(heading)
            assert quoted in (ROOT / name).read_text(encoding="utf-8"), f"{heading}:\n{quoted}"
            n_quoted += 1
    assert n_quoted > 3


def test_the_guide_to_families_names_all_that_an_architecture_says() -> None:
    guide = (ROOT / "docs" / "adding_a_family.md").read_text(encoding="utf-8")
    says = {
        *ModelShape.__abstractmethods__,
        *("parts", "weights", "has_target_rows", "divisible_by_shards", "tied_head"),
    }
    assert {name for name in says if f"`{name}`" not in guide} == set()


OPTIONAL = "peft pyarrow zstandard tensorboard mlflow wandb"
COLLECT = ["-m", "pytest", "-p", "tests.front.without_packages", "--collect-only", "-q"]
COLLECT += ["-m", "slow or not slow"]


@pytest.mark.slow
def test_all_tests_are_collected_without_optional_packages() -> None:
    collected = run_command(
        *(sys.executable, *COLLECT), folder=ROOT, variables={"WITHOUT_PACKAGES": OPTIONAL}
    )
    assert collected.returncode == 0, collected.stdout[-2000:]


def test_no_test_is_imported_from_a_file_that_is_skipped_as_a_whole() -> None:
    skips = {
        f"tests.{path.relative_to(ROOT / 'tests').with_suffix('')}".replace("/", ".")
        for path in (ROOT / "tests").rglob("test_*.py")
        if "= pytest.importorskip(" in path.read_text()
    }
    assert skips
    for path in (ROOT / "tests").rglob("*.py"):
        lines = path.read_text().splitlines()
        imported = {line.split()[1] for line in lines if line.startswith("from tests.")}
        assert not imported & skips, path
