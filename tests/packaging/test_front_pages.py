"""Files that a hosting site and a library read of the project: citation, issue forms, pages."""

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
FORMS = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"))
PAGES = ("CONTRIBUTING.md", "CODE_OF_CONDUCT.md", "SECURITY.md", "docs/releases.md")
ELEMENTS = {"markdown", "textarea", "input", "dropdown", "checkboxes"}


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


@pytest.mark.parametrize("form", [f for f in FORMS if f.stem != "config"], ids=lambda f: f.stem)
def test_an_issue_form_can_be_shown(form: Path) -> None:
    page = read(form)
    assert page.keys() == {"name", "description", "body"}
    assert {element["type"] for element in page["body"]} <= ELEMENTS
    asked = [element for element in page["body"] if element["type"] != "markdown"]
    names = [element["id"] for element in asked]
    assert len(set(names)) == len(names) > 0
    assert all(re.fullmatch(r"[\w-]+", name) for name in names)
    labels = [element["attributes"]["label"] for element in asked]
    assert len(set(labels)) == len(labels)
    for element in page["body"]:
        assert element.keys() <= {"type", "id", "attributes", "validations"}
        assert element["type"] != "markdown" or element["attributes"]["value"]
        assert element["type"] != "checkboxes" or element["attributes"]["options"]


def test_the_site_knows_the_forms() -> None:
    assert {form.stem for form in FORMS} == {"bug", "cluster", "wish", "config"}
    assert read(ROOT / ".github" / "ISSUE_TEMPLATE" / "config.yml") == {
        "blank_issues_enabled": True
    }


@pytest.mark.parametrize("page", PAGES)
def test_a_page_is_linked_from_the_readme_and_names_nobody(page: str) -> None:
    text = (ROOT / page).read_text()
    assert text.startswith("# ")
    assert f"({page})" in (ROOT / "README.md").read_text()
    assert not re.search(r"[\w.]+@[\w-]+\.\w+", text)
