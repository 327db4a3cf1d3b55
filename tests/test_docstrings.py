"""Docstrings say what a thing is before they say what it belongs to."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

SOURCES = Path(__file__).parents[1] / "src"

NO_NOUN = re.compile(
    r"(After|As|At|Before|Beside|Between|By|For|From|In(?!:)|Its|Like|Of|On|Over|Than|Their|"
    r"Those|Through|To|Under|With|Without)\b"
)
ENTRY = re.compile(r"^ +[a-z]\w*(?:, \w+)*: (.*)$", re.MULTILINE)


def _texts(path: Path) -> Iterator[str]:
    """Docstrings, those of constants among them, and texts of their arguments and attributes."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        match node:
            case ast.Expr(value=ast.Constant(value=str(text))):
                yield text
                yield from ENTRY.findall(text)


def test_texts_begin_with_what_a_thing_is() -> None:
    others = [
        f"{path.relative_to(SOURCES)}: {text.splitlines()[0]}"
        for path in sorted(SOURCES.rglob("*.py"))
        for text in _texts(path)
        if NO_NOUN.match(text)
    ]
    assert others == []
