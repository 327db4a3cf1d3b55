"""Adapters added to the weights that they were trained on, a few rows at a time."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tests.examples.small_models import HEAD, INNER, LLAMA, WIDTH, llama_tensors, write_model
from torch import Tensor

from dynapipe_hpc.architecture.lora import Lora
from dynapipe_hpc.data.errors import InputError
from dynapipe_hpc.training.checkpoint.folder import Description
from dynapipe_hpc.training.checkpoint.parts import StatePart, write_parts
from dynapipe_hpc.training.huggingface import read_weights
from dynapipe_hpc.training.huggingface.import_export import NOTHING_DONE, export_model, import_model
from dynapipe_hpc.training.huggingface.origin import find_origin
from dynapipe_hpc.training.small_files import CARRIED, copy_small_files

LORA = Lora(rank=2, alpha=5.0, targets=("key", "gate", "up", "down"))
LAYER = "layers.0"
LLAMA3 = {"factor": 2.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
# Adapter, and the weight of Hugging Face that it adds to, with its outputs and inputs.
ADAPTERS = {
    f"{LAYER}.attention.key.adapters.key": ("self_attn.k_proj", HEAD, WIDTH),
    f"{LAYER}.feed_forward.inner.adapters.gate": ("mlp.gate_proj", INNER, WIDTH),
    f"{LAYER}.feed_forward.inner.adapters.up": ("mlp.up_proj", INNER, WIDTH),
    f"{LAYER}.feed_forward.output.adapters.down": ("mlp.down_proj", WIDTH, INNER),
}


def write_tuned(folder: Path, base: Path) -> dict[str, Tensor]:
    """Writes a checkpoint of adapters; returns what they add, by the name of the weight."""
    generator, parts, added = torch.Generator().manual_seed(2), [], {}
    for name, (layer, n_outputs, n_inputs) in ADAPTERS.items():
        a = torch.randn(LORA.rank, n_inputs, generator=generator)
        b = torch.randn(n_outputs, LORA.rank, generator=generator)
        for matrix, values in (("a", a), ("b", b)):
            key = f"weight/{name}.lora_{matrix}"
            parts.append(StatePart(key, values.shape, torch.Size([0, 0]), values))
        added[f"model.{LAYER}.{layer}.weight"] = 5.0 / 2 * (b @ a)
    shape = find_origin(base).shape.model_copy(update={"lora": LORA})
    facts = {f"model.{key}": value for key, value in shape.model_dump(mode="json").items()}
    folder.mkdir()
    Description(4, NOTHING_DONE, facts, (write_parts(folder, 0, parts),)).write(folder)
    return added


@pytest.mark.parametrize("n_rows", [1, 3, 5, 100])
def test_every_row_gets_what_its_adapter_adds(
    n_rows: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tensors = llama_tensors()
    base = write_model(tmp_path / "base", LLAMA, tensors)
    added = write_tuned(tmp_path / "tuned", base)
    monkeypatch.setattr(read_weights, "ROWS_BYTES", 4 * WIDTH * n_rows)
    export_model(tmp_path / "tuned", tmp_path / "merged", base=base)
    found = load_file(tmp_path / "merged/model.safetensors")
    assert found.keys() == tensors.keys()
    for name, weight in tensors.items():
        expected = weight + added[name] if name in added else weight
        torch.testing.assert_close(found[name], expected, rtol=1e-5, atol=1e-6)


def test_weights_without_adapters_keep_all_of_their_numbers(tmp_path: Path) -> None:
    tensors = {name: each.double() + 1e-9 for name, each in llama_tensors().items()}
    base = write_model(tmp_path / "base", {**LLAMA, "dtype": "float64"}, tensors)
    added = write_tuned(tmp_path / "tuned", base)
    export_model(tmp_path / "tuned", tmp_path / "merged", base=base)
    found = load_file(tmp_path / "merged/model.safetensors")
    for name, weight in tensors.items():
        expected = weight + added[name].double() if name in added else weight
        torch.testing.assert_close(found[name], expected, rtol=0, atol=1e-6 * (name in added))


def test_adapters_are_added_in_32_bits_to_weights_of_16(tmp_path: Path) -> None:
    tensors = {name: each.bfloat16() for name, each in llama_tensors().items()}
    base = write_model(tmp_path / "base", LLAMA, tensors)
    added = write_tuned(tmp_path / "tuned", base)
    export_model(tmp_path / "tuned", tmp_path / "merged", "float32", base=base)
    found = load_file(tmp_path / "merged/model.safetensors")
    for name, weight in tensors.items():
        torch.testing.assert_close(
            found[name], weight.float() + added.get(name, 0), rtol=1e-6, atol=1e-6
        )


@pytest.mark.parametrize(
    ("rope", "n_rows"),
    [
        (None, 48),
        ({"type": "linear", "factor": 2.0}, 48),
        ({"rope_type": "llama3", **LLAMA3, "original_max_position_embeddings": 8}, 48),
        ({"rope_type": "llama3", **LLAMA3}, 16),  # angles would be others
        ({"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 8}, 16),
    ],
)
@pytest.mark.parametrize("merged", [False, True])
def test_an_export_says_the_rows_that_a_run_had(
    rope: dict[str, float] | None, n_rows: int, merged: bool, tmp_path: Path
) -> None:
    base = write_model(tmp_path / "base", {**LLAMA, "rope_scaling": rope}, llama_tensors())
    if merged:
        write_tuned(tmp_path / "run", base)
    else:
        import_model(base, tmp_path / "run")
    description = Description.read(tmp_path / "run")
    facts = {**description.facts, "model.max_tokens": 48}
    replace(description, facts=facts).write(tmp_path / "run")
    export_model(tmp_path / "run", tmp_path / "new", base=base if merged else None)
    config = json.loads((tmp_path / "new/config.json").read_text())
    assert config["max_position_embeddings"] == n_rows
    facts["model.max_tokens"] = 9
    replace(description, facts=facts).write(tmp_path / "run")
    export_model(tmp_path / "run", tmp_path / "short", base=base if merged else None)
    config = json.loads((tmp_path / "short/config.json").read_text())
    assert config["max_position_embeddings"] == LLAMA["max_position_embeddings"]


@pytest.mark.parametrize(
    ("started_from", "name", "expected"),
    [
        ("base", "someone/model", "{folder}/base"),
        ("elsewhere", "", "{folder}/elsewhere"),  # on another machine
        ("elsewhere", "someone/model", "someone/model"),
        ("imported", "someone/model", "someone/model"),  # a checkpoint, which peft cannot load
        ("imported", "", None),
        (None, "", None),
    ],
)
def test_adapters_name_the_model_beside_which_they_were_trained(
    started_from: str | None, name: str, expected: str | None, tmp_path: Path
) -> None:
    base = write_model(tmp_path / "base", {**LLAMA, "_name_or_path": name}, llama_tensors())
    import_model(base, tmp_path / "imported")
    checkpoint = tmp_path / "run/checkpoints/000004"
    checkpoint.parent.mkdir(parents=True)
    write_tuned(checkpoint, base)
    copy_small_files(base, checkpoint / CARRIED)
    key = f'init_from = "{tmp_path / started_from}"' if started_from else ""
    (tmp_path / "run/config.toml").write_text(f"[model]\n{key}\n")
    export_model(tmp_path / "run", tmp_path / "adapter")
    config = json.loads((tmp_path / "adapter/adapter_config.json").read_text())
    found = config["base_model_name_or_path"]
    assert found == (expected and expected.format(folder=tmp_path))
    (tmp_path / "run/config.toml").write_text("[model")
    with pytest.raises(InputError, match=r"run/config.toml: is not the configuration of a run"):
        export_model(checkpoint, tmp_path / "again")
