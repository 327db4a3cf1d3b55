import pytest

from dynapipe_hpc.cli.main import main


def test_an_empty_name_is_no_run_folder(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["run", "config.toml", "-o", ""])
    assert "-o/--output: is empty; name a folder" in capsys.readouterr().err
