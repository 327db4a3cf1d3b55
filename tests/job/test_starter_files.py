"""Scripts and configurations to start from: complete copies, and nothing overwritten."""

import os
from pathlib import Path

import pytest

from dynapipe_hpc.data.errors import InputError, RunError
from dynapipe_hpc.job import starter_files
from dynapipe_hpc.job.starter_files import FOLDERS, copy_starter_files

ROOT = Path(__file__).parents[2]


def below(folder: Path) -> set[str]:
    return {str(p.relative_to(folder)) for p in folder.rglob("*") if not p.is_dir()}


def in_checkout() -> set[str]:
    """Names of the files that a copy has, as they are in the checkout."""
    names = {f"{each}/{name}" for each in FOLDERS for name in below(ROOT / each)}
    return {name for name in names if not name.endswith(".pyc")}


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An installed package with three files, read-only as a site installs them."""
    share = tmp_path / "installed" / "share"
    for name, text in (("slurm/a.sh", "#!"), ("configs/deep/b.toml", "b"), ("configs/b.toml", "b")):
        (share / name).parent.mkdir(parents=True, exist_ok=True)
        (share / name).write_text(text)
        (share / name).chmod(0o444)
    for name in ("benchmarks/cluster/c.py", "benchmarks/cluster/__pycache__/c.pyc"):
        (share / name).parent.mkdir(parents=True)
        (share / name).touch()
    monkeypatch.setattr(starter_files, "_IN_WHEEL", share)
    return share


@pytest.mark.parametrize("exists", [False, True])
def test_a_checkout_gives_its_files(tmp_path: Path, exists: bool) -> None:
    job = tmp_path / "job"
    if exists:
        (job / "data").mkdir(parents=True)
    names = copy_starter_files(job)
    assert names == ["slurm", "configs", "benchmarks"]
    assert below(job) == in_checkout()
    for name in in_checkout():
        assert (job / name).read_bytes() == (ROOT / name).read_bytes()
        assert os.access(job / name, os.X_OK) == os.access(ROOT / name, os.X_OK)


def test_an_installed_package_gives_its_own_files(home: Path, tmp_path: Path) -> None:
    copy_starter_files(tmp_path)
    copied = below(tmp_path) - {f"installed/share/{name}" for name in below(home)}
    assert copied == {
        "slurm/a.sh",
        "configs/deep/b.toml",
        "configs/b.toml",
        "benchmarks/cluster/c.py",
    }


def test_copies_of_read_only_files_may_be_changed_and_scripts_started(
    home: Path, tmp_path: Path
) -> None:
    umask = os.umask(0o027)
    try:
        copy_starter_files(tmp_path)
    finally:
        os.umask(umask)
    assert (home / "slurm" / "a.sh").stat().st_mode & 0o777 == 0o444
    assert (tmp_path / "slurm" / "a.sh").stat().st_mode & 0o777 == 0o750
    assert (tmp_path / "configs" / "b.toml").stat().st_mode & 0o777 == 0o640


@pytest.mark.parametrize("taken", ["slurm", "configs", "benchmarks"])
@pytest.mark.usefixtures("home")
def test_nothing_is_overwritten_and_nothing_else_written(tmp_path: Path, taken: str) -> None:
    job = tmp_path / "job"
    job.mkdir()
    (job / taken).write_text("mine")
    with pytest.raises(InputError, match=rf"job/{taken}: already exists; .*remove it first"):
        copy_starter_files(job)
    assert below(job) == {taken}
    assert (job / taken).read_text() == "mine"


def test_what_is_no_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "job").touch()
    with pytest.raises(InputError, match="job: is not a folder"):
        copy_starter_files(tmp_path / "job")
    with pytest.raises(InputError, match=r"its folder '.*none' does not exist; create it first"):
        copy_starter_files(tmp_path / "none" / "job")


@pytest.mark.parametrize("exists", [False, True])
@pytest.mark.usefixtures("home")
def test_a_full_disk_leaves_no_part_of_a_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, exists: bool
) -> None:
    job = tmp_path / "jobs" / "job"
    (job if exists else job.parent).mkdir(parents=True)

    def fail(source: Path, target: Path) -> None:
        if source.name == "c.py":
            raise OSError(28, f"no space for {target}")
        target.write_bytes(source.read_bytes())

    monkeypatch.setattr(starter_files, "copyfile", fail)
    with pytest.raises(RunError, match="cannot be written: No space left"):
        copy_starter_files(job)
    assert list((tmp_path / "jobs").rglob("*")) == ([job] if exists else [])
