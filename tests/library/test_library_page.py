"""The page on the library shows what the code does, and names what it offers."""

import contextlib
import io
import re
from pathlib import Path

import dynapipe_hpc

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "library.md").read_text(encoding="utf-8")


def section(heading: str) -> str:
    return PAGE.split(f"\n## {heading}\n")[1].split("\n## ")[0]


def test_the_example_prints_what_is_below_it() -> None:
    blocks = re.findall(
        r"^```(?:python)?\n(.*?)^```$", section("Lengths to plans"), re.MULTILINE | re.DOTALL
    )
    example, shown = blocks
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(example, "library.md", "exec"), {})  # noqa: S102 - our own file
    assert printed.getvalue() == shown


def test_every_public_name_is_in_the_table_of_parts() -> None:
    first_cells = re.findall(r"^\| (`.*?) \|", section("Parts"), re.MULTILINE)
    assert sorted(re.findall(r"`(\w+)`", "".join(first_cells))) == sorted(dynapipe_hpc.__all__)


def test_every_example_is_described() -> None:
    described = re.findall(r"^\| `examples/(.*?)` \|", section("Examples"), re.MULTILINE)
    files = [path.name for path in (ROOT / "examples").iterdir() if path.is_file()]
    assert sorted(described) == sorted(files)
