"""Checks names, parameters, and first lines of docstrings, see CONTRIBUTING.md.

    python tests/check_words.py

Prints each violation with its file and line, and exits with 1 if there is one.
"""

import ast
import re
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "dynapipe_hpc"
FOLDERS = (PACKAGE, ROOT / "benchmarks", ROOT / "reproduce", ROOT / "tests")
QUESTIONS = ("What ", "How ", "Where ", "When ", "That ", "Why ")
LIMITS = ("MOST_", "LEAST_", "LARGEST_", "SMALLEST_", "LONGEST_", "SHORTEST_")
BARE = frozenset(
    ["found", "told", "asked", "met", "seen", "its", "own", "beside", "wanted", "said"]
)
MAX_BARE = 40
MAX_POSITIONAL = 4
VALIDATORS = ("_check_", "_parse_", "_fill_")
VALIDATOR = "a validator is called _check_<rule>, or _parse_x or _fill_x if it changes the value"
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
            elif isinstance(node, ast.FunctionDef):
                if node.name.lstrip("_") in BARE:
                    yield f"{name}:{node.lineno}: {node.name}: add the noun"
                if is_ours and f"{name} {node.name}" not in EXCEPTIONS:
                    yield from (f"{name}:{line}" for line in _of_function(node))
            elif isinstance(node, ast.Call) and is_ours:
                yield from (f"{name}:{line}" for line in _misnamed_validators(node))
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


def _of_function(node: ast.FunctionDef) -> Iterator[str]:
    """Violations of a function: a name that does not say its kind, too many parameters."""
    decorators = [ast.unparse(decorator).partition("(")[0] for decorator in node.decorator_list]
    place = f"{node.lineno}: {node.name}"
    if "classmethod" in decorators and node.name == "of":
        yield f"{place}: a constructor is called from_x"
    if any(d.endswith("_validator") for d in decorators) and not node.name.startswith(VALIDATORS):
        yield f"{place}: {VALIDATOR}"
    result = ast.unparse(node.returns) if node.returns else ""
    if re.fullmatch(r"\w+Error( \| None)?", result) and not node.name.endswith("_error"):
        yield f"{place}: a function that makes an error is called x_error"
    positional = [each.arg for each in node.args.args if each.arg not in ("self", "cls")]
    is_autograd = node.name == "forward" and "staticmethod" in decorators  # torch calls it so
    if len(positional) > MAX_POSITIONAL and not is_autograd:
        yield f"{place}: make parameters beyond the first {MAX_POSITIONAL} keyword-only"


def _misnamed_validators(node: ast.Call) -> Iterator[str]:
    """Places of functions that pydantic calls on a value."""
    if ast.unparse(node.func) in ("AfterValidator", "BeforeValidator"):
        function = ast.unparse(node.args[0])
        if not function.startswith(VALIDATORS):
            yield f"{node.lineno}: {function}: {VALIDATOR}"


def _assigned(node: ast.Name | ast.arg) -> str:
    """Name that a node binds; empty if it binds none."""
    if isinstance(node, ast.arg):
        return node.arg
    return node.id if isinstance(node.ctx, ast.Store) else ""


if __name__ == "__main__":
    lines = list(violations())
    print("\n".join(lines) or "names, parameters and first lines: no violation")
    sys.exit(bool(lines))
