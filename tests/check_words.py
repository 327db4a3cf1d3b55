"""Checks names and first lines of docstrings, see CONTRIBUTING.md.

    python tests/check_words.py

Prints each violation with its file and line, and exits with 1 if there is one.
"""

import ast
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "dynapipe_hpc"
FOLDERS = (PACKAGE, ROOT / "benchmarks", ROOT / "reproduce")
QUESTIONS = ("What ", "How ", "Where ", "That ", "Why ")
LIMITS = ("MOST_", "LEAST_", "LARGEST_", "SMALLEST_", "LONGEST_", "SHORTEST_")
BARE = frozenset(
    ["found", "told", "asked", "met", "seen", "its", "own", "beside", "wanted", "said"]
)
MAX_BARE = 40
EXCEPTIONS = frozenset({"planner/make_plans.py of"})  # works on from 0.1, with a warning


def violations() -> Iterator[str]:
    """All violations, by file; those of bare names only where they are too many."""
    classes: dict[str, list[str]] = defaultdict(list)
    bare: list[str] = []
    for path in sorted(path for folder in FOLDERS for path in folder.rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        is_ours = path.is_relative_to(PACKAGE)
        name = str(path.relative_to(PACKAGE if is_ours else ROOT))
        yield from (f"{name}:{line}" for line in _questions(tree))
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef) and is_ours and not node.name.startswith("_"):
                classes[node.name].append(f"{name}:{node.lineno}")
            elif isinstance(node, ast.FunctionDef) and node.name == "of":
                if _is_constructor(node) and f"{name} {node.name}" not in EXCEPTIONS:
                    yield f"{name}:{node.lineno}: a constructor is called from_x, not of"
            elif isinstance(node, ast.Name | ast.arg) and (assigned := _assigned(node)):
                if assigned.lstrip("_").startswith(LIMITS):
                    yield f"{name}:{node.lineno}: {assigned}: a limit is called MAX_x or MIN_x"
                if is_ours and assigned in BARE:
                    bare.append(f"{name}:{node.lineno}: {assigned}: add the noun")
    for each, places in classes.items():
        if len(places) > 1:
            yield f"{each} is the name of {len(places)} classes: {', '.join(places)}"
    if len(bare) > MAX_BARE:
        yield from bare


def _questions(tree: ast.Module) -> Iterator[str]:
    """Places of docstrings, also of constants, that begin with a question."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            text = node.value.value
            if isinstance(text, str) and text.startswith(QUESTIONS):
                first = text.partition("\n")[0]
                yield f"{node.lineno}: '{first}' begins with a question; name the thing"


def _is_constructor(node: ast.FunctionDef) -> bool:
    return any(isinstance(d, ast.Name) and d.id == "classmethod" for d in node.decorator_list)


def _assigned(node: ast.Name | ast.arg) -> str:
    """Name that a node binds; empty if it binds none."""
    if isinstance(node, ast.arg):
        return node.arg
    return node.id if isinstance(node.ctx, ast.Store) else ""


if __name__ == "__main__":
    lines = list(violations())
    print("\n".join(lines) or "names and first lines: no violation")
    sys.exit(bool(lines))
