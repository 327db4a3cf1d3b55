"""Writes requirements/lock.txt: what `make setup` installs, with the hashes of all its wheels.

    make lock

pip resolves what pyproject.toml asks for, at the versions of constraints.txt, and then names the
wheel of each package for every Python and machine that the project supports. Nothing is
installed, and of large packages only the metadata is read.

torch and what only its CUDA build needs have versions in constraints.txt, but no hashes here: they
depend on the index that torch comes from, and a CPU index has builds of its own.
"""

import json
import os
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

ROOT = Path(__file__).parents[1]
CONSTRAINTS = ROOT / "constraints.txt"
LOCK = Path(__file__).with_name("lock.txt")
PYTHONS = ("3.11", "3.12", "3.13")
MACHINES = ("x86_64", "aarch64")
NEWEST_GLIBC = 28  # 2.28 is what torch asks for
BY_INDEX = ("torch", "triton", "nvidia-", "cuda-")
# Only PyPI: what else this machine's pip knows may have other builds.
OTHER_INDICES = ("PIP_FIND_LINKS", "PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_NO_INDEX")
HEADER = "# Written by `make lock` from constraints.txt and pyproject.toml; not to be edited.\n"


def main() -> None:
    """Replaces lock.txt."""
    pins = [line for line in resolved(requirements()) if not line.startswith(BY_INDEX)]
    hashes: dict[str, set[str]] = {pin: set() for pin in pins}
    for python in PYTHONS:
        for machine in MACHINES:
            for pin, sha256 in wheels(pins, python, machine):
                hashes[pin].add(sha256)
    LOCK.write_text(HEADER + "".join(map(entry, hashes, hashes.values())))


def requirements() -> list[str]:
    """What `make setup` needs: to build, to run and to test."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    table = project["project"]
    extras = table["optional-dependencies"]
    needed: list[str] = project["build-system"]["requires"] + table["dependencies"]
    return [*needed, *brought("local", extras), *extras["dev"]]


def brought(extra: str, extras: Mapping[str, list[str]]) -> Iterator[str]:
    """What an extra brings, and the extras of this project that it names."""
    for each in extras[extra]:
        if each.startswith("dynapipe-hpc["):
            for other in each.removeprefix("dynapipe-hpc[").removesuffix("]").split(","):
                yield from brought(other, extras)
        else:
            yield each


def resolved(asked: Iterable[str]) -> list[str]:
    """All packages that the requirements pull in, with a CUDA build of torch, as `name==version`.

    Raises:
        SystemExit: constraints.txt lacks the version of one.
    """
    found = report(*asked, "--constraint", str(CONSTRAINTS), *platform(PYTHONS[0], MACHINES[0]))
    pins = sorted(map(pin_of, found))
    pinned = {canonical(line) for line in CONSTRAINTS.read_text().splitlines()}
    missing = [pin for pin in pins if pin not in pinned]
    if missing:
        sys.exit("constraints.txt lacks\n" + "\n".join(missing))
    return pins


def wheels(pins: Iterable[str], python: str, machine: str) -> Iterator[tuple[str, str]]:
    """The SHA-256 of every package's wheel for one platform."""
    for package in report(*pins, "--no-deps", *platform(python, machine)):
        yield pin_of(package), package["download_info"]["archive_info"]["hashes"]["sha256"]


def report(*arguments: str) -> list[dict[str, Any]]:
    """What pip would install."""
    environment = {name: os.environ[name] for name in os.environ if name not in OTHER_INDICES}
    with TemporaryDirectory() as folder:
        written = Path(folder) / "report.json"
        options = ["--dry-run", "--ignore-installed", "--quiet", "--use-feature=fast-deps"]
        subprocess.run(
            [sys.executable, "-m", "pip", "install", *options, "--report", written, *arguments],
            env=environment | {"PIP_CONFIG_FILE": os.devnull},
            check=True,
        )
        packages: list[dict[str, Any]] = json.loads(written.read_text())["install"]
    return packages


def platform(python: str, machine: str) -> list[str]:
    """Options that make pip choose wheels for a machine of another kind."""
    tags = [f"manylinux_2_{minor}_{machine}" for minor in range(NEWEST_GLIBC, 4, -1)]
    tags += [f"manylinux{year}_{machine}" for year in (2014, 2010, 1)]
    options = [option for tag in tags for option in ("--platform", tag)]
    return [*options, "--python-version", python, "--only-binary=:all:", "--target=unused"]


def pin_of(package: dict[str, Any]) -> str:
    """`name==version` as this file spells it."""
    return canonical(f"{package['metadata']['name']}=={package['metadata']['version']}")


def canonical(pin: str) -> str:
    """A pin with the name as indices spell it."""
    name, equals, version = pin.partition("==")
    return f"{name.lower().replace('_', '-').replace('.', '-')}{equals}{version}"


def entry(pin: str, hashes: set[str]) -> str:
    """The lines of one package."""
    return " \\\n".join([pin, *(f"    --hash=sha256:{each}" for each in sorted(hashes))]) + "\n"


if __name__ == "__main__":
    main()
