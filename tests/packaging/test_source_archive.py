"""The source archive of a commit: complete, nothing else, the same bytes for everybody."""

import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterable
from pathlib import Path

import pytest
from tests.jobs.command_line import run_command

ROOT = Path(__file__).parents[2]
PROGRAM = ROOT / "packaging" / "source_archive.py"
PROJECT = """\
[build-system]
requires = ["scikit-build-core>=1.0"]
build-backend = "scikit_build_core.build"
[project]
name = "small-project"
version = "1.0"
"""
WHO = ("-c", "user.name=a", "-c", "user.email=a@example.org")
WHEN = "2001-02-03T04:05:06+00:00"
TIME_S = 981173106


def run(folder: Path, *words: object, **settings: str) -> "subprocess.CompletedProcess[str]":
    return run_command(*words, folder=folder, variables=settings)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A repository with a commit, and files beside it that are not in the commit."""
    folder = tmp_path / "checkout"
    (folder / "slurm").mkdir(parents=True)
    (folder / "pyproject.toml").write_text(PROJECT)
    (folder / ".gitignore").write_text("*.h5\n")
    (folder / "slurm" / "run.sh").write_text("#!/bin/sh\n")
    (folder / "slurm" / "run.sh").chmod(0o755)
    run(folder, "git", "init", "-q")
    run(folder, "git", "add", ".")
    dates = {"GIT_AUTHOR_DATE": WHEN, "GIT_COMMITTER_DATE": WHEN}
    made = run(folder, "git", *WHO, "commit", "-qm", "all", **dates)
    assert made.returncode == 0, made.stderr
    for name in ("ignored.h5", "untracked.txt", "slurm/notes.txt"):
        (folder / name).touch()
    return folder


def members(path: Path) -> Iterable[tarfile.TarInfo]:
    with tarfile.open(path) as archive:
        return archive.getmembers()


def test_an_archive_has_what_is_committed_with_the_time_of_the_commit(checkout: Path) -> None:
    done = run(checkout, sys.executable, PROGRAM, "dist")
    assert done.returncode == 0, done.stderr
    (path,) = (checkout / "dist").iterdir()
    files = {each.name.partition("/")[2]: each for each in members(path)}
    committed = {"pyproject.toml", ".gitignore", "slurm/run.sh"}
    assert files.keys() == committed | {"PKG-INFO"}
    assert {each.mtime for each in files.values()} == {TIME_S}
    assert {name for name, each in files.items() if each.mode & 0o111} == {"slurm/run.sh"}
    digest = run(checkout, "sha256sum", path).stdout.split()[0]
    commit = run(checkout, "git", "rev-parse", "HEAD").stdout.strip()
    assert done.stdout == f"dist/{path.name}: sha256 {digest}, commit {commit}\n"


def test_another_copy_of_a_commit_gives_the_same_bytes(checkout: Path, tmp_path: Path) -> None:
    clone = tmp_path / "clone"
    run(tmp_path, "git", "clone", "-q", checkout, clone)
    (clone / "slurm" / "run.sh").write_text("changed, not committed")
    for folder, time_s in ((checkout, "1"), (clone, "2000000000")):
        done = run(folder, sys.executable, PROGRAM, "dist", SOURCE_DATE_EPOCH=time_s)
        assert done.returncode == 0, done.stderr
    of_both = [folder / "dist" / "small_project-1.0.tar.gz" for folder in (checkout, clone)]
    assert of_both[0].read_bytes() == of_both[1].read_bytes()


def test_where_there_is_no_commit_nothing_is_written(checkout: Path) -> None:
    shutil.rmtree(checkout / ".git")
    above = str(checkout.parent)
    done = run(checkout, sys.executable, PROGRAM, "dist", GIT_CEILING_DIRECTORIES=above)
    assert done.returncode == 1
    assert done.stderr.startswith("git log: ")
    assert "run this in a git checkout" in done.stderr
    assert not (checkout / "dist").exists()
