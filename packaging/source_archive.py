"""Makes the source archive of the last commit twice, and compares the two.

    python packaging/source_archive.py FOLDER

What is not committed is not in it. Its times are that of the commit (SOURCE_DATE_EPOCH), so that
anybody with the commit, the same scikit-build-core and the same zlib makes the same bytes.
"""

import argparse
import hashlib
import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

BUILD = "import sys; from scikit_build_core.build import build_sdist; build_sdist(sys.argv[1])"


def main(folder: Path) -> None:
    """Writes the archive to a folder, and prints its name, SHA-256 and commit."""
    commit, time_s = git("log", "-1", "--format=%H %ct").decode().split()
    committed = git("archive", "--format=tar", commit)
    with TemporaryDirectory() as work:
        # Two machines could differ in this much.
        name, first = archive(committed, Path(work) / "a", time_s, umask=0o022)
        _, second = archive(committed, Path(work) / "elsewhere", time_s, umask=0o077)
    if first != second:
        sys.exit(f"{name}: two archives of commit {commit} differ; nothing was written")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(first)
    print(f"{folder / name}: sha256 {hashlib.sha256(first).hexdigest()}, commit {commit}")


def git(*arguments: str) -> bytes:
    """Output of a git command in the current folder, which must be the repository's."""
    done = subprocess.run(["git", *arguments], capture_output=True, check=False)
    if done.returncode:
        sys.exit(f"git {arguments[0]}: {done.stderr.decode().strip()}; run this in a git checkout")
    return done.stdout


def archive(committed: bytes, work: Path, time_s: str, umask: int) -> tuple[str, bytes]:
    """Name and bytes of the archive that scikit-build-core makes of a tar file of sources."""
    source, built = work / "source", work / "built"
    source.mkdir(parents=True)
    subprocess.run(["tar", "-xm", "-C", source], input=committed, umask=umask, check=True)
    subprocess.run(
        [sys.executable, "-c", BUILD, built],
        cwd=source,
        env={**os.environ, "SOURCE_DATE_EPOCH": time_s},
        umask=umask,
        stdout=subprocess.DEVNULL,
        check=True,
    )
    (path,) = built.iterdir()
    return path.name, path.read_bytes()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, metavar="FOLDER")
    main(parser.parse_args().folder)
