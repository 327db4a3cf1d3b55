"""The folder that jobs of all files here read from."""

from pathlib import Path

import pytest
from tests.jobs.command_line import write_job_files


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A configuration for 2 stages and 2 replicas, and its dataset; nothing is written here."""
    path = tmp_path_factory.mktemp("job")
    write_job_files(path)
    return path
