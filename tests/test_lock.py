"""requirements/lock.txt goes with constraints.txt and pyproject.toml."""

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
ENTRY = re.compile(r"(\S+)==(\S+)((?: \\\n    --hash=sha256:[0-9a-f]{64})+)\n")
REMEDY = "run `make lock`"


def name_of(requirement: str) -> str:
    return re.sub(r"[-_.]+", "-", re.split(r"[^\w.-]", requirement)[0]).lower()


def locked() -> dict[str, str]:
    text = (ROOT / "requirements" / "lock.txt").read_text().partition("\n")[2]
    entries = list(ENTRY.finditer(text))
    assert "".join(entry[0] for entry in entries) == text, "a line is no pin with hashes"
    return {entry[1]: entry[2] for entry in entries}


def test_versions_are_those_of_the_constraints() -> None:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = {name_of(name): version for name, _, version in (line.partition("==") for line in lines)}
    assert {name: pins.get(name) for name in locked()} == locked(), REMEDY


def test_all_that_setup_needs_has_hashes_but_torch() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    extras = project["project"]["optional-dependencies"]
    asked = project["build-system"]["requires"] + project["project"]["dependencies"]
    for extra in ("hdf5", "text", "report", "train", "local", "dev"):
        asked += [each for each in extras[extra] if name_of(each) != "dynapipe-hpc"]
    assert {name_of(each) for each in asked} - locked().keys() == {"torch"}, REMEDY
