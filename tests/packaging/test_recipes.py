"""Recipes of Spack, conda and Apptainer, and the module, say what pyproject.toml says."""

import ast
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jinja2
import pytest
import yaml

import dynapipe_hpc

ROOT = Path(__file__).parents[2]
RECIPES = ROOT / "packaging"
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT = PYPROJECT["project"]
VERSION = PROJECT["version"]
# Extras that other people's environments are made of, not an MPI of our own or what tests need.
EXTRAS = ("hdf5", "text", "zstd", "parquet", "report", "train")
SETTINGS_OFF = "cmake.define.DYNAPIPE_OPEN_MPI_SETTINGS"


def bounds(requirements: list[str]) -> dict[str, str]:
    """Least versions, by package; other extras of this project are left out."""
    pairs = (each.partition(">=") for each in requirements if "dynapipe-hpc" not in each)
    return {name: least for name, _, least in pairs}


def pythons() -> tuple[int, int]:
    """Minor versions of the first Python and of the last one."""
    found = re.fullmatch(r">=3\.(\d+),<3\.(\d+)", PROJECT["requires-python"])
    assert found
    return int(found[1]), int(found[2]) - 1


def brought(extra: str) -> set[str]:
    inner = [
        re.fullmatch(r"dynapipe-hpc\[(.*)\]", r) for r in PROJECT["optional-dependencies"][extra]
    ]
    return {name for match in inner if match for name in match[1].split(",")}


def test_all_names_and_versions_are_the_same() -> None:
    assert dynapipe_hpc.__version__ == VERSION
    cmake = (ROOT / "CMakeLists.txt").read_text()
    assert re.search(rf"option\({SETTINGS_OFF.rpartition('.')[2]} ", cmake)


# Spack


SPACK = (
    RECIPES / "spack" / "spack_repo" / "dynapipe" / "packages" / "py_dynapipe_hpc" / "package.py"
)


def spack_class() -> ast.ClassDef:
    (found,) = [
        node for node in ast.parse(SPACK.read_text()).body if isinstance(node, ast.ClassDef)
    ]
    return found


def directives(name: str) -> list[tuple[str, Mapping[str, Any]]]:
    """First argument and keywords of the calls of a function in the class of the recipe."""
    calls = [node.value for node in spack_class().body if isinstance(node, ast.Expr)]
    return [
        (
            ast.literal_eval(call.args[0]),
            {str(word.arg): ast.literal_eval(word.value) for word in call.keywords},
        )
        for call in calls
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == name
    ]


def spack_bounds(when: str | None, kind: str) -> dict[str, str]:
    """Least versions of Python packages, by name, of one condition and one type of dependency."""
    specs = [
        spec
        for spec, options in directives("depends_on")
        if options.get("when") == when and kind in options["type"] and spec.startswith("py-")
    ]
    found = [re.fullmatch(r"py-([\w-]+)@([\d.]+):", spec) for spec in specs]
    assert all(found), specs
    return {match[1]: match[2] for match in found if match}


def test_spack_needs_what_pip_needs() -> None:
    build = bounds(PYPROJECT["build-system"]["requires"])
    assert spack_bounds(None, "run") == bounds(PROJECT["dependencies"])
    assert spack_bounds(None, "build") == build | bounds(PROJECT["dependencies"])
    specs = [spec for spec, _ in directives("depends_on")]
    least = PYPROJECT["tool"]["scikit-build"]["cmake"]["version"].removeprefix(">=")
    first, last = pythons()
    assert {f"cmake@{least}:", f"python@3.{first}:3.{last}", "cxx", "ninja"} < set(specs)


def test_variants_of_spack_are_the_extras_of_pip() -> None:
    assert tuple(name for name, _ in directives("variant")) == EXTRAS
    for extra in EXTRAS:
        wanted = bounds(PROJECT["optional-dependencies"][extra])
        assert spack_bounds(f"+{extra}", "run") == wanted, extra
    required = {options["when"][1:]: spec for spec, options in directives("requires")}
    assert {name: set(spec[1:].split("+")) for name, spec in required.items()} == {
        extra: brought(extra) for extra in EXTRAS if brought(extra)
    }


# conda


CONDA_NAMES = {"torch": "pytorch", "matplotlib": "matplotlib-base"}


@pytest.fixture(scope="module")
def conda() -> dict[str, Any]:
    """The recipe as conda-build reads it."""
    text = (RECIPES / "conda" / "meta.yaml").read_text()
    recipe = jinja2.Template(text, undefined=jinja2.StrictUndefined).render(
        PYTHON="python", compiler=lambda language: f"{language}_1", stdlib=lambda _: "sysroot_1"
    )
    loaded: dict[str, Any] = yaml.safe_load(recipe)
    return loaded


def conda_bounds(requirements: list[str]) -> dict[str, str]:
    """Least versions, by package; packages of any version are left out."""
    pairs = (each.partition(" >=") for each in requirements if " >=" in each)
    return {name: least for name, _, least in pairs}


def in_conda(least: Mapping[str, str]) -> dict[str, str]:
    return {CONDA_NAMES.get(name, name): version for name, version in least.items()}


def test_conda_needs_what_pip_needs(conda: dict[str, Any]) -> None:
    needs = conda["requirements"]
    assert conda_bounds(needs["run"]) == bounds(PROJECT["dependencies"])
    assert conda_bounds(needs["host"]) == bounds(PYPROJECT["build-system"]["requires"])
    least = PYPROJECT["tool"]["scikit-build"]["cmake"]["version"].removeprefix(">=")
    assert conda_bounds(needs["build"]) == {"cmake": least}
    assert "cxx_1" in needs["build"]
    of_extras: dict[str, str] = {}
    for extra in EXTRAS:
        of_extras |= bounds(PROJECT["optional-dependencies"][extra])
    assert conda_bounds(needs["run_constrained"]) == in_conda(of_extras)
    first, last = pythons()
    text = (RECIPES / "conda" / "meta.yaml").read_text()
    assert f"skip: true  # [not linux or py < 3{first} or py >= 3{last + 1}]" in text


# Apptainer


def sections(text: str) -> dict[str, str]:
    """The header, under an empty name, and the sections of a definition."""
    header, *rest = re.split(r"^%(\w+)\n", text, flags=re.MULTILINE)
    return {"": header, **dict(zip(rest[::2], rest[1::2], strict=True))}


@pytest.fixture(scope="module")
def definition() -> dict[str, str]:
    return sections((RECIPES / "apptainer" / "dynapipe-hpc.def").read_text())


def test_the_definition_installs_the_source_archive(definition: dict[str, str]) -> None:
    labels = dict(line.split(maxsplit=1) for line in definition["labels"].splitlines() if line)
    of_image = "org.opencontainers.image."
    assert labels == {
        f"{of_image}title": PROJECT["name"],
        f"{of_image}version": VERSION,
        f"{of_image}licenses": PROJECT["license"],
    }
    archive = f"{PROJECT['name'].replace('-', '_')}-{VERSION}.tar.gz"
    source, target = definition["files"].split()
    assert (source, target) == (f"dist/{archive}", f"/opt/{archive}")
    assert f'"{target}[train]"' in definition["post"]
    assert set(re.findall(r"\d+\.\d+\.\d+", "".join(definition.values()))) == {VERSION}


# Module


def test_the_module_is_complete() -> None:
    text = (RECIPES / "modulefile" / "dynapipe-hpc.tcl").read_text()
    assert text.startswith("#%Module\n")
    assert re.findall(r"^set version +(\S+)$", text, re.MULTILINE) == [VERSION]
    code = "\n".join(line for line in text.splitlines() if not line.startswith("#"))
    for opening, closing in ("{}", "[]"):
        assert code.count(opening) == code.count(closing)
    assert code.count('"') % 2 == 0
    known = {"set", "proc", "puts", "module-whatis", "conflict", "eval", "setenv", "prepend-path"}
    commands = re.findall(r"^ *([a-z]\S*)", code, re.MULTILINE)
    assert set(commands) == known
    named = set(re.findall(r"\$(\w+)", code))
    assert named == set(re.findall(r"^set (\w+)", code, re.MULTILINE))
    assert f"conflict {PROJECT['name']}\n" in code


# Everywhere that a recipe installs, another MPI may be.


def test_who_gives_packages_away_brings_no_settings_for_an_mpi(
    conda: dict[str, Any], definition: dict[str, str]
) -> None:
    assert PYPROJECT["tool"]["cibuildwheel"]["config-settings"] == {SETTINGS_OFF: "OFF"}
    assert f"--config-settings={SETTINGS_OFF}=OFF" in conda["build"]["script"]
    assert f"--config-settings={SETTINGS_OFF}=OFF" in definition["post"]
    (method,) = [node for node in spack_class().body if isinstance(node, ast.FunctionDef)]
    assert method.name == "config_settings"
    assert ast.unparse(method.body[-1]) == f"return {{'{SETTINGS_OFF}': 'OFF'}}"


def test_wheels_are_built_for_every_python_of_the_project() -> None:
    first, last = pythons()
    builds = [f"cp3{minor}-*" for minor in range(first, last + 1)]
    assert PYPROJECT["tool"]["cibuildwheel"]["build"] == builds
    command = PYPROJECT["tool"]["cibuildwheel"]["test-command"].split()
    assert (ROOT / command[1].removeprefix("{project}/")).is_file()


PAGES = ("CONTRIBUTING.md", "CODE_OF_CONDUCT.md", "SECURITY.md", "docs/releases.md")


def read(path: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load(path.read_text())
    return loaded


# Keys that version 1.2.0 of the schema requires, and all that this file may have.


def test_the_citation_has_the_keys_of_the_schema() -> None:
    citation = read(ROOT / "CITATION.cff")
    assert citation["cff-version"] == "1.2.0"
    assert citation.keys() >= {"authors", "cff-version", "message", "title"}
    assert citation.keys() <= {
        *("abstract", "authors", "cff-version", "commit", "contact", "date-released", "doi"),
        *("identifiers", "keywords", "license", "license-url", "message", "preferred-citation"),
        *("references", "repository", "repository-artifact", "repository-code", "title", "type"),
        *("url", "version"),
    }
    assert citation["type"] == "software"
    for reference in citation["references"]:
        assert reference.keys() >= {"authors", "title", "type"}
        for person in reference["authors"]:
            assert person.keys() == {"family-names", "given-names"}
        assert reference["conference"].keys() == {"name"}


def test_the_citation_is_of_this_project_and_its_paper() -> None:
    citation = read(ROOT / "CITATION.cff")
    same = ("version", "license")
    assert {key: citation[key] for key in same} == {key: PROJECT[key] for key in same}
    assert (citation["title"], citation["abstract"]) == (PROJECT["name"], PROJECT["description"])
    assert citation["authors"] == PROJECT["authors"]
    (paper,) = citation["references"]
    assert paper["doi"] == "10.1145/3627703.3629585"
    assert f"https://doi.org/{paper['doi']}" in (ROOT / "README.md").read_text()


@pytest.mark.parametrize("page", PAGES)
def test_a_page_is_linked_from_the_readme_and_names_nobody(page: str) -> None:
    text = (ROOT / page).read_text()
    assert text.startswith("# ")
    assert f"({page})" in (ROOT / "README.md").read_text()
    assert not re.search(r"[\w.]+@[\w-]+\.\w+", text)
