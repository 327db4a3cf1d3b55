"""The reference of configuration keys: complete, true, current, and with examples."""

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from pydantic import BaseModel
from tests.configuration_page import PAGE, config_page

from dynapipe_hpc.cli.main import main
from dynapipe_hpc.experiment.config_keys import key_tables
from dynapipe_hpc.experiment.load import load_config
from dynapipe_hpc.training.huggingface.demo_model import write_demo_model

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "docs" / "configuration_examples.md"
TOML = re.compile(r"^```toml\n(.*?)^```$", re.MULTILINE | re.DOTALL)
BLOCKS = TOML.findall(EXAMPLES.read_text())


def keys_of(table: object, path: str = "") -> Iterator[str]:
    for entry in table if isinstance(table, list) else [table]:
        for key, value in entry.items() if isinstance(entry, dict) else ():
            yield path + key
            yield from keys_of(value, f"{path}{key}.")


def declared(value: object, path: str = "") -> Iterator[str]:
    """Names of the keys of a configuration that has been read."""
    for entry in value if isinstance(value, tuple) else [value]:
        for key, inner in entry if isinstance(entry, BaseModel) else ():
            yield path + key
            yield from declared(inner, f"{path}{key}.")


def listed() -> set[str]:
    return {table.full_name(key) for table in key_tables() for key in table.keys}


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["config", *arguments]) == 0
    return capsys.readouterr().out


def test_all_keys_of_configurations_are_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    tables = {table.path for table in key_tables()}
    for path in ("tiny_cpu", "mixture", "tiny_cpu_lora", "studies/packing", "models/llama_3_8b"):
        tree = tomllib.loads((ROOT / "configs" / f"{path}.toml").read_text())
        found = {key for key in keys_of(tree) if not re.match(r"extends|study\.methods\.", key)}
        assert found <= listed() | tables
    assert set(declared(load_config(ROOT / "configs" / "tiny_cpu.toml"))) <= listed() | tables


def test_whole_configurations_of_the_documents_are_accepted(tmp_path: Path) -> None:
    write_demo_model(tmp_path / "model", ROOT / "configs" / "demo_finetune" / "tokenizer")
    settings = tmp_path / "model" / "config.json"
    settings.write_text(settings.read_text().replace("1024", "8192"))
    model = f'init_from = "{(tmp_path / "model").as_posix()}"'
    texts = [path.read_text() for path in (ROOT / "docs").glob("*.md")]
    blocks = [block for text in texts for block in TOML.findall(text)]
    whole = [block for block in blocks if "[data]" in block and "[model]" in block]
    assert len(whole) >= 2
    for block in whole:
        path = tmp_path / "config.toml"
        path.write_text(re.sub(r'init_from = "[^"]*"', model, block))
        load_config(path)


def test_descriptions_are_complete() -> None:
    texts = {table.full_name(key): key.text for table in key_tables() for key in table.keys}
    assert [name for name, text in texts.items() if len(text) < 12] == []
    assert texts["data.check_tokenizer"].endswith("names.")  # the last of the docstring
    assert texts["model.hidden_size"] == "Width of the residual stream."  # of a parent class


def test_the_page_is_current() -> None:
    assert PAGE.read_text(encoding="utf-8") == config_page(), "run make docs-reference"


def test_every_key_has_an_example() -> None:
    files = [path.read_text() for path in (ROOT / "configs").rglob("*.toml")]
    used = {key for text in (*files, *BLOCKS) for key in keys_of(tomllib.loads(text))}
    assert listed() - used == set(), f"show these keys in {EXAMPLES.name}"


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: block.splitlines()[0])
def test_examples_load(block: str, tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    base = (ROOT / "configs" / "tiny_cpu.toml").as_posix()
    if "init_from" in block:  # a checkpoint that only users have
        block = re.sub("^init_.*$", "", block, flags=re.MULTILINE)
    path.write_text(f'extends = "{base}"\n{block}')
    config = load_config(path).model_dump(mode="json")
    for key, value in tomllib.loads(block).get("training", {}).items():
        assert config["training"][key] == value or isinstance(value, dict)


def test_a_key_a_table_and_all_tables_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert "\nweight_decay = 0.1  # number ≥ 0\n    " in printed(capsys, "training.weight_decay")
    one = printed(capsys, "planner.search")
    assert one.startswith("[planner.search]\n# The [planner.search] table")
    assert one in printed(capsys)
    assert main(["config", "training.weight_deca"]) == 2
    assert "did you mean 'training.weight_decay'?; see config alone" in capsys.readouterr().err
