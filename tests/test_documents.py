"""The files, headings and modules that the documents name exist."""

import argparse
import re
from collections import Counter
from pathlib import Path

import pytest

import dynapipe_hpc
from dynapipe_hpc.cli.main import make_parser

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "dynapipe_hpc"
SOURCES = [PACKAGE, ROOT / "benchmarks", ROOT / "cpp", ROOT / "slurm", ROOT / "tests"]
DOCUMENTS = [
    *ROOT.glob("*.md"),
    *(ROOT / "docs").rglob("*.md"),
    ROOT / "slurm" / "README.md",
    ROOT / "data" / "README.md",
    ROOT / "packaging" / "README.md",
]
# Files that commands write or users have, some with placeholders in capitals.
OF_USERS = re.compile(
    r"[A-Z]|^\.|^(?:runs|data|build)/|config\.toml|config\.schema\.json|^finetune\.toml"
    r"|^(?:adapter_config|trace|machine|mixture|checkpoint|ended|inputs)\.json|^tracked\.txt"
    r"|^(?:tokenizer|tokenizer_config|special_tokens_map|added_tokens|config|generation_config)\.json"
)
LINK = re.compile(r"\[[^\]]*\]\((?!https?:)([^)#\s]*)(?:#([^)\s]+))?\)")
FILE = re.compile(r"`([\w./-]+\.(?:py|hpp|cpp|md|toml|sbatch|sh|json|txt))`")
FOLDER = re.compile(
    r"`((?:src|tests|docs|cpp|benchmarks|configs|slurm|requirements|packaging)/[\w./-]+)`"
)
# A command in a line or between backquotes, to its end, a pipe or a comment.
COMMAND = re.compile(
    r"(?:^\$ (?:.*? )?|`(?:(?:mpiexec|srun) [^`]*? )?)dynapipe-hpc ([\w-]+)([^`\n|#;&]*)",
    re.MULTILINE,
)
FORMATS = {"dataset", "checkpoint part", "cost table", "rounds of a profile"}
"""Names of file formats, which begin like commands."""
OPTION = re.compile(r"(?<=\s)--?[a-z][\w-]*")
MODULE = re.compile(r"`dynapipe_hpc\.([\w.]+)`")


def _name(document: Path) -> str:
    return str(document.relative_to(ROOT))


def _anchors(document: Path) -> set[str]:
    """Anchors of the headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", document.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def _exists(path: str, document: Path) -> bool:
    """A bare name may be anywhere in the sources, a path is relative to one of three folders."""
    if "/" in path:
        return any((home / path).exists() for home in (ROOT, PACKAGE, document.parent))
    at_hand = (ROOT / path, document.parent / path)
    return any(p.exists() for p in at_hand) or any(any(s.rglob(path)) for s in SOURCES)


def _is_in_the_package(name: str) -> bool:
    """Whether a dotted name is a module, a package, a part of one, or offered by the package."""
    path = PACKAGE.joinpath(*name.split("."))
    owner = path.parent.with_suffix(".py")
    return (
        path.is_dir()
        or path.with_suffix(".py").exists()
        or (owner.exists() and path.name in owner.read_text())
        or name in dynapipe_hpc.__all__
    )


@pytest.mark.parametrize("document", DOCUMENTS, ids=_name)
def test_links_lead_to_files_and_headings(document: Path) -> None:
    for path, anchor in LINK.findall(document.read_text()):
        target = document.parent / path if path else document
        assert target.exists(), path
        assert not anchor or anchor in _anchors(target), f"{path}#{anchor}"


# The change log may name what a later version no longer has.
@pytest.mark.parametrize("document", [d for d in DOCUMENTS if d.stem != "CHANGELOG"], ids=_name)
def test_named_files_and_modules_exist(document: Path) -> None:
    text = re.sub(r"^```.*?^```", "", document.read_text(), flags=re.DOTALL | re.MULTILINE)
    files = {
        name for name in (*FILE.findall(text), *FOLDER.findall(text)) if not OF_USERS.search(name)
    }
    assert [name for name in sorted(files) if not _exists(name, document)] == []
    assert [name for name in MODULE.findall(text) if not _is_in_the_package(name)] == []


# Options of launchers and of other programs in the same line are not looked at.
@pytest.mark.parametrize("document", [d for d in DOCUMENTS if d.stem != "CHANGELOG"], ids=_name)
def test_quoted_commands_and_options_exist(document: Path) -> None:
    (verbs,) = [a for a in make_parser()._actions if isinstance(a, argparse._SubParsersAction)]
    joined = document.read_text().replace("\\\n", " ")
    for verb, rest in COMMAND.findall(joined):
        if not verb.startswith("-") and f"{verb}{rest}" not in FORMATS:
            assert verb in verbs.choices, f"dynapipe-hpc {verb}"
            known = verbs.choices[verb]._option_string_actions
            unknown = [word for word in OPTION.findall(rest) if word not in known]
            assert unknown == [], f"dynapipe-hpc {verb}{rest}"


def test_messages_that_troubleshooting_names_are_in_the_sources() -> None:
    table = (ROOT / "docs" / "troubleshooting.md").read_text()
    named = [
        message
        for cell in re.findall(r"^\| (`[^|]*) \|", table, re.MULTILINE)
        for message in re.findall(r"`([^`]+)`", cell)
    ]
    literals = "".join(path.read_text() for path in sorted(PACKAGE.rglob("*.py")))
    joined = re.sub(r'"\s*\n\s*f?"', "", literals)
    assert len(named) > 15
    assert [message for message in named if message not in joined] == []


def test_every_page_is_in_the_navigation_of_the_site() -> None:
    named = re.findall(r": (\w+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    assert len(named) == len(set(named))
    pages = {path.name for path in (ROOT / "docs").glob("*.md")}
    of_the_project = {"start.md", "own_data.md", "slurm.md", "contributing.md", "changes.md"}
    assert set(named) == pages | of_the_project | {"command_line.md", "api.md"}


def test_every_page_is_reachable_from_the_index_in_one_step() -> None:
    linked = {path for path, _ in LINK.findall((ROOT / "docs" / "index.md").read_text())}
    pages = {path.name for path in (ROOT / "docs").glob("*.md")} - {"index.md"}
    others = {"../README.md", "../CONTRIBUTING.md", "../CHANGELOG.md", "../SECURITY.md"}
    folders = {"decisions", *(f"../{name}/README.md" for name in ("data", "slurm", "packaging"))}
    assert linked == pages | others | folders
    assert "](docs/index.md)" in (ROOT / "README.md").read_text()


def test_the_glossary_explains_every_word_once() -> None:
    words_only = (ROOT / "docs" / "glossary.md").read_text().partition("## Instructions")[0]
    rows = re.findall(r"^\| ([^|-][^|]*) \|", words_only, re.MULTILINE)
    entries = Counter(word for row in rows if row != "our word" for word in row.split(", "))
    assert len(entries) > 50
    assert [word for word, n in entries.items() if n > 1] == []
