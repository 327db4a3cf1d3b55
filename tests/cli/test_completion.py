"""Completion in a real shell."""

import shutil
import subprocess
from pathlib import Path

import pytest

from dynapipe_hpc.cli.main import main


@pytest.fixture
def script(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Path:
    pytest.importorskip("shtab")
    assert main(["completion", "bash"]) == 0
    path = tmp_path / "script.sh"
    path.write_text(capsys.readouterr().out)
    return path


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["pre"], {"preprocess"}),
        (["plan", "--expl"], {"--explain"}),
        (["completion", ""], {"bash", "zsh"}),
        (["doctor", "conf"], {"config.toml"}),  # a file
        (["plan", "x.toml", "--profile", "conf"], {"config.toml"}),  # a file after an option
    ],
    ids=lambda each: " ".join(each) if isinstance(each, list) else None,
)
def test_bash_completes(script: Path, words: list[str], expected: set[str]) -> None:
    (script.parent / "config.toml").touch()
    program = (
        f"source {script.name}; COMP_WORDS=(dynapipe-hpc {' '.join(words)}); "
        f"COMP_WORDS[{len(words)}]='{words[-1]}'; COMP_CWORD={len(words)}; "
        "function=$(complete -p dynapipe-hpc | sed 's/.*-F \\([^ ]*\\).*/\\1/'); "
        '"$function" >/dev/null; printf "%s\\n" "${COMPREPLY[@]}"'
    )
    bash = shutil.which("bash") or pytest.skip("no bash")
    ended = subprocess.run(
        [bash, "-c", program], cwd=script.parent, capture_output=True, text=True, check=True
    )
    assert {word.strip() for word in ended.stdout.splitlines()} - {"-h", "--help"} == expected


def test_another_shell_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["completion", "fish"])
    assert "choose from" in capsys.readouterr().err
