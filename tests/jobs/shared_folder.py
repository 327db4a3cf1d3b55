"""Large inputs beside the project, which tests use where they are there."""

from pathlib import Path

import pytest

SHARED = Path(__file__).parents[3] / "shared"


def shared_folder(name: str) -> Path:
    """A folder of shared inputs; without it, the test or fixture that asks is skipped."""
    folder = SHARED / name
    if not folder.is_dir():
        pytest.skip(f"needs the folder shared/{name} beside the project")
    return folder
