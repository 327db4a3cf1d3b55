"""Completion in a real shell."""

import shutil
import subprocess
from pathlib import Path

import pytest

from dynapipe_hpc.cli.main import main

# An interactive shell that completes one line, and notes what it offers.
ZSH = r"""
zmodload zsh/zpty
zpty shell zsh -f -i
zpty -w shell 'PROMPT=; fpath=($PWD $fpath); autoload -U compinit; compinit -u -D'
zpty -w shell 'compadd () { local -a found; builtin compadd -A found "$@"
    print -rl -- $found >> found.txt; builtin compadd "$@" }'
zpty -w shell 'comppostfuncs=(exit)'
zpty -n -w shell "dynapipe-hpc $1"$'\t'
zpty -r shell output '*until the shell exits*'
"""

every_line = pytest.mark.parametrize(
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


@pytest.fixture
def script(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Path:
    pytest.importorskip("shtab")
    assert main(["completion", "bash"]) == 0
    path = tmp_path / "script.sh"
    path.write_text(capsys.readouterr().out)
    return path


@every_line
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


@every_line
def test_zsh_completes(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, words: list[str], expected: set[str]
) -> None:
    zsh = shutil.which("zsh") or pytest.skip("no zsh")
    pytest.importorskip("shtab")
    assert main(["completion", "zsh"]) == 0
    (tmp_path / "_dynapipe-hpc").write_text(capsys.readouterr().out)
    (tmp_path / "config.toml").touch()
    command = [zsh, "-f", "-c", ZSH, "zsh", " ".join(words)]
    subprocess.run(command, cwd=tmp_path, capture_output=True, timeout=30, check=False)
    assert {*(tmp_path / "found.txt").read_text().split()} == expected
