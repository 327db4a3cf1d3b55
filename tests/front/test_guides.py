"""The pages on how to add something quote files as they are."""

import re
from pathlib import Path

import pytest

from dynapipe_hpc.architecture.model_shape import ModelShape

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
