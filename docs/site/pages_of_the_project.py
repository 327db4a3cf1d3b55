"""Pages of the site that are not in docs/, and links that lead out of it.

mkdocs calls the functions that begin with `on_`. README files become pages; the command line and
the Python face are described by the package itself. Links to files that are no pages become
code, because a site does not have the sources.
"""

import os
import re
import subprocess
from pathlib import Path, PurePosixPath

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[2]
PAGES = {
    "README.md": "start.md",
    "data/README.md": "own_data.md",
    "slurm/README.md": "slurm.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changes.md",
}
"""Pages of the site, by the files in the project that they show."""
COMMAND = ROOT / os.environ.get("VENV", ".venv") / "bin" / "dynapipe-hpc"  # make sets VENV
LINK = re.compile(r"(!?)\[([^\]]*)\]\((?!https?:)([^)#\s]*)(#[^)\s]+)?\)")
FENCE = re.compile(r"^(```.*?^```$)", re.MULTILINE | re.DOTALL)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the pages that are not in docs/."""
    texts = {page: (ROOT / name).read_text(encoding="utf-8") for name, page in PAGES.items()}
    texts |= {"command_line.md": command_line(), "api.md": face()}
    for page, text in texts.items():
        files.append(File.generated(config, page, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, files: Files, **_: object) -> str:
    """Rewrites links, which are relative to the files in the project."""
    shown = page.file.src_uri
    source = {page: name for name, page in PAGES.items()}.get(shown, f"docs/{shown}")

    def rewritten(link: re.Match[str]) -> str:
        mark, text, path, anchor = link[1], link[2], link[3], link[4] or ""
        if not path:
            return link[0]
        target = os.path.normpath(PurePosixPath(source).parent / path)
        on_site = PAGES.get(target) or target.removeprefix("docs/")
        if target not in PAGES and not target.startswith("docs/"):
            return f"`{target}`" if text == target else text
        if target == "docs/decisions":
            on_site = "decisions/0001-plans-are-values.md"
        elif files.get_file_from_path(on_site) is None or on_site.endswith(".py"):
            return f"`{target}`"
        return f"{mark}[{text}]({os.path.relpath(on_site, PurePosixPath(shown).parent)}{anchor})"

    parts = FENCE.split(markdown)
    return "".join(p if p.startswith("```") else LINK.sub(rewritten, p) for p in parts)


def command_line() -> str:
    """The help of every verb."""
    overview = helped()
    verbs = re.findall(r"^    ([a-z-]+)  +\S|^    ([a-z-]+)$", overview, re.MULTILINE)
    lines = ["# Command line", "", "```text", overview.rstrip(), "```"]
    for verb in (first or second for first, second in verbs):
        lines += ["", f"## {verb}", "", "```text", helped(verb).rstrip(), "```"]
    return "\n".join([*lines, ""])


def helped(*verb: str) -> str:
    """What the command prints for --help."""
    environment = {**os.environ, "COLUMNS": "80"}
    command = [COMMAND, *verb, "--help"]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return ended.stdout


def face() -> str:
    """A page with the names that the package offers."""
    offered = (ROOT / "src" / "dynapipe_hpc" / "__init__.py").read_text(encoding="utf-8")
    names = re.findall(r"^    from (dynapipe_hpc\.\S+) import (\w+)", offered, re.MULTILINE)
    lines = [
        "# Python",
        "",
        "`import dynapipe_hpc` offers these names, loaded when first used.",
        "",
    ]
    return "\n".join([*lines, *(f"::: {module}.{name}\n" for module, name in names)])
