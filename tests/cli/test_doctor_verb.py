from pathlib import Path

import pytest
from tests.jobs.command_line import BIN, run_command

pytestmark = pytest.mark.slow

DOCTOR = (BIN / "dynapipe-hpc", "doctor")


def test_a_machine_that_is_all_right_is_0(tmp_path: Path) -> None:
    asked = run_command(*DOCTOR, folder=tmp_path)
    assert asked.returncode == 0, asked.stdout + asked.stderr
    assert asked.stdout.startswith("launch\n  ranks  1 on 1 host\n")


@pytest.mark.parametrize("error", ["ImportError('none here')", "OSError('libtorch.so: damaged')"])
def test_a_torch_that_cannot_be_loaded_is_a_problem_among_others(
    tmp_path: Path, error: str
) -> None:
    (tmp_path / "torch.py").write_text(f"raise {error}")
    asked = run_command(
        *DOCTOR, "none.toml", folder=tmp_path, variables={"PYTHONPATH": str(tmp_path)}
    )
    assert asked.returncode == 2
    said = " ".join(asked.stdout.split())
    kind, text = error.split("('")[0], error.split("'")[1]
    assert f"torch PROBLEM: torch cannot be loaded ({kind}: {text}); reinstall it" in said
    assert "run PROBLEM: none.toml: cannot be read" in said
    assert "problems: 2, " in said
    assert "Traceback" not in asked.stderr
