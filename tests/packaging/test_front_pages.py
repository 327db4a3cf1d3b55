"""Files that a hosting site and a library read of the project: citation, issue forms, pages."""

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
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
