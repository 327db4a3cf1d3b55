"""Folders that are not quite models: what is said of them, and what is read all the same."""

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from tests.examples.checkpoint_weights import different, load_weights, write_weights
from tests.examples.foreign_models import saved_model
from tests.examples.small_models import (
    HEAD,
    INNER,
    LLAMA,
    WIDTH,
    llama_tensors,
    set_in_config,
    write_model,
)
from torch import Tensor

from dynapipe_hpc.architecture.lora import Lora
from dynapipe_hpc.data.errors import InputError, RunError
from dynapipe_hpc.training.checkpoint.folder import Description
from dynapipe_hpc.training.huggingface import read_weights
from dynapipe_hpc.training.huggingface.import_export import (
    export_model,
    import_model,
    write_tensors,
)
from dynapipe_hpc.training.huggingface.origin import find_origin
from dynapipe_hpc.training.huggingface.read_weights import read_rows
from dynapipe_hpc.training.huggingface.tensors import open_tensors
from dynapipe_hpc.training.small_files import CARRIED, copy_small_files

Tensors = dict[str, Tensor]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Function that returns the folder of a model, which is saved once and must not be changed."""

    @cache
    def folder_of(name: str) -> Path:
        folder = tmp_path_factory.mktemp(name)
        saved_model(name, folder)
        return folder

    return folder_of


@pytest.fixture
def copy_of(saved: Callable[[str], Path], tmp_path: Path) -> Callable[[str], Path]:
    """Function that copies the folder of a model to one that may be changed."""
    return lambda name: Path(shutil.copytree(saved(name), tmp_path / "theirs"))


@pytest.fixture
def theirs(copy_of: Callable[[str], Path]) -> Path:
    """A folder with a GPT-2 whose head is tied."""
    return copy_of("gpt2")


def rewrite(folder: Path, change: Callable[[Tensors], Tensors]) -> None:
    path = folder / "model.safetensors"
    changed = change(load_file(path))
    save_file({name: tensor.contiguous() for name, tensor in changed.items()}, path)


def contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def refusal(folder: Path) -> str:
    """The message that refuses an import, which leaves nothing behind."""
    before = sorted(folder.parent.iterdir())
    with pytest.raises(InputError) as caught:
        import_model(folder, folder.parent / "ours")
    assert sorted(folder.parent.iterdir()) == before
    return str(caught.value)


def test_every_wrong_tensor_is_named(theirs: Path) -> None:
    def change(tensors: Tensors) -> Tensors:
        del tensors["transformer.h.1.ln_1.bias"], tensors["transformer.ln_f.weight"]
        tensors["transformer.h.9.ln_1.bias"] = torch.zeros(16)
        tensors["transformer.wpe.weight"] = torch.zeros(3, 16)
        tensors["transformer.wte.weight"] = tensors["transformer.wte.weight"].to(torch.int8)
        return tensors

    rewrite(theirs, change)
    told = refusal(theirs)
    assert "lacks transformer.h.1.ln_1.bias, transformer.ln_f.weight;" in told
    assert "has them, transformer.h.9.ln_1.bias;" in told
    assert "transformer.wpe.weight has the shape [3, 16], not [64, 16]" in told
    assert "transformer.wte.weight has numbers of type I8, not F64, F32, F16, BF16" in told


def test_a_file_without_a_head_and_with_masks_is_read(theirs: Path, tmp_path: Path) -> None:
    def change(tensors: Tensors) -> Tensors:
        found = {name.removeprefix("transformer."): t for name, t in tensors.items()}
        masks = {f"h.{i}.attn.bias": torch.ones(1, 1, 64, 64) for i in range(4)}
        return found | masks | {"lm_head.weight": found["wte.weight"].clone()}

    import_model(theirs, tmp_path / "expected")
    rewrite(theirs, change)
    import_model(theirs, tmp_path / "found")
    assert not different(load_weights(tmp_path / "found"), load_weights(tmp_path / "expected"))


def test_a_head_that_only_claims_to_be_tied_is_refused(theirs: Path) -> None:
    rewrite(theirs, lambda t: t | {"lm_head.weight": t["transformer.wte.weight"] + 1})
    told = "lm_head.weight differs from transformer.wte.weight, although config.json ties them"
    assert told in refusal(theirs)


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("activation_function", "relu"),
        ("scale_attn_by_inverse_layer_idx", True),
        ("scale_attn_weights", False),
        ("add_cross_attention", True),
        ("model_type", "bert"),
        ("n_layer", "four"),
        ("n_embd", -16),
        ("layer_norm_epsilon", True),
        ("tie_word_embeddings", 1),
        ("resid_pdrop", 1),
        ("quantization_config", {"bits": 4}),
    ],
)
def test_a_setting_that_is_not_computed_is_named(theirs: Path, setting: str, value: Any) -> None:
    set_in_config(theirs, **{setting: value})
    assert re.search(f"config.json: .*'{setting}'", refusal(theirs))


@pytest.mark.parametrize(
    ("name", "rates"),
    [
        ("gpt2", {"resid_pdrop": 0.25, "embd_pdrop": 0.25, "attn_pdrop": 0.0}),
        ("t5", {"dropout_rate": 0.25}),
    ],
)
def test_dropout_is_that_of_the_model_and_goes_back_as_the_run_used_it(
    name: str, rates: dict[str, float], copy_of: Callable[[str], Path], tmp_path: Path
) -> None:
    set_in_config(copy_of(name), **rates)
    import_model(tmp_path / "theirs", tmp_path / "ours")
    description = Description.read(tmp_path / "ours")
    assert description.facts["model.dropout"] == 0.25
    export_model(tmp_path / "ours", tmp_path / "back")
    files = [tmp_path / folder / "config.json" for folder in ("theirs", "back")]
    assert files[0].read_bytes() == files[1].read_bytes()

    used = replace(description, facts={**description.facts, "model.dropout": 0.5})
    used.write(tmp_path / "ours")
    export_model(tmp_path / "ours", tmp_path / "tuned")
    found = json.loads((tmp_path / "tuned/config.json").read_text())
    expected = {key: rate and 0.5 for key, rate in rates.items()}
    assert found == json.loads(files[0].read_text()) | expected


def test_a_pickle_file_is_refused_with_the_way_out(theirs: Path) -> None:
    (theirs / "model.safetensors").rename(theirs / "pytorch_model.bin")
    assert re.search("pytorch_model.bin only, a pickle file.*save_pretrained", refusal(theirs))


def test_an_index_names_files_beside_it_only(theirs: Path) -> None:
    index = {"weight_map": {"transformer.wte.weight": "../theirs/model.safetensors"}}
    (theirs / "model.safetensors.index.json").write_text(json.dumps(index))
    assert "is not the name of a file there" in refusal(theirs)


def test_nothing_is_overwritten(theirs: Path, tmp_path: Path) -> None:
    import_model(theirs, tmp_path / "ours")
    before = contents(tmp_path / "ours")
    for verb, source in ((import_model, theirs), (export_model, tmp_path / "ours")):
        with pytest.raises(InputError, match="already exists"):
            verb(source, tmp_path / "ours")
    assert contents(tmp_path / "ours") == before
    with pytest.raises(InputError, match="is a Hugging Face model already"):
        export_model(theirs, tmp_path / "back")


def test_a_damaged_checkpoint_is_not_exported(theirs: Path, tmp_path: Path) -> None:
    import_model(theirs, tmp_path / "ours")
    data = bytearray((tmp_path / "ours/part-00000.bin").read_bytes())
    data[1000] ^= 1
    (tmp_path / "ours/part-00000.bin").write_bytes(data)
    with pytest.raises(InputError, match="its checksum differs"):
        export_model(tmp_path / "ours", tmp_path / "back")
    assert not list(tmp_path.glob("*back*"))


def test_large_models_are_shared_out_over_files(theirs: Path, tmp_path: Path) -> None:
    origin, tensors = find_origin(theirs), load_file(theirs / "model.safetensors")
    weights = open_tensors(theirs, origin.mapping, origin.shape)

    def read(name: str, start: int, stop: int) -> Tensor:
        return read_rows(weights, name, start, stop)

    (tmp_path / "shards").mkdir()
    (tmp_path / "shards/config.json").write_bytes((theirs / "config.json").read_bytes())
    maps = origin.mapping.tensors(origin.shape)
    write_tensors(tmp_path / "shards", maps, read, torch.float32, most_bytes=9000)
    files = sorted((tmp_path / "shards").glob("*.safetensors"))
    assert files[0].name == f"model-00001-of-{len(files):05d}.safetensors"
    found = [load_file(file) for file in files]
    sizes = [sum(tensor.nbytes for tensor in each.values()) for each in found]
    assert len(files) > 3
    assert max(sizes) <= 9000
    assert not different({k: v for each in found for k, v in each.items()}, tensors)
    total = json.loads((tmp_path / "shards/model.safetensors.index.json").read_text())["metadata"]
    assert total["total_size"] == sum(sizes)
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "shards")
    assert not different({n: t for n, t in model.state_dict().items() if n in tensors}, tensors)
    import_model(tmp_path / "shards", tmp_path / "ours")
    import_model(theirs, tmp_path / "expected")
    assert not different(load_weights(tmp_path / "ours"), load_weights(tmp_path / "expected"))


def test_a_full_disk_leaves_nothing(
    theirs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda _: type("Usage", (), {"free": 10}))
    with pytest.raises(RunError, match=r"needs [\d,]+ bytes, but only 10 are free"):
        import_model(theirs, tmp_path / "ours")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["theirs"]


@pytest.mark.parametrize(
    ("name", "values", "told"),
    [
        ("mistral", {"attention_bias": True}, "'attention_bias' is True"),
        ("llama", {"mlp_bias": True}, "'mlp_bias' is True"),
        ("llama", {"hidden_act": "gelu"}, "'hidden_act' is 'gelu'"),
        ("llama", {"rope_parameters": {"rope_type": "dynamic"}}, "'rope_type' is 'dynamic'"),
        ("llama", {"rope_parameters": None, "rope_scaling": {"type": "x"}}, "'rope_type' is 'x'"),
        ("llama", {"rope_parameters": {"partial_rotary_factor": 0.5}}, "'partial_rotary_factor'"),
        ("t5", {"feed_forward_proj": "gated-silu"}, "'feed_forward_proj' is 'gated-silu'"),
    ],
)
def test_other_families_name_what_they_do_not_compute(
    name: str, values: dict[str, Any], told: str, copy_of: Callable[[str], Path]
) -> None:
    theirs = copy_of(name)
    set_in_config(theirs, **values)
    assert told in (found := refusal(theirs))
    advice = 'or set model.family to "transformers", which may support it'
    assert found.endswith(advice) == (name != "t5")


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
    adapters: dict[str, Tensor] = {}
    generator, added = torch.Generator().manual_seed(2), {}
    for name, (layer, n_outputs, n_inputs) in ADAPTERS.items():
        a = torch.randn(LORA.rank, n_inputs, generator=generator)
        b = torch.randn(n_outputs, LORA.rank, generator=generator)
        adapters |= {f"{name}.lora_a": a, f"{name}.lora_b": b}
        added[f"model.{LAYER}.{layer}.weight"] = 5.0 / 2 * (b @ a)
    shape = find_origin(base).shape.model_copy(update={"lora": LORA})
    write_weights(folder, shape, adapters)
    return added


@pytest.mark.parametrize("n_rows", [1, 3, 5, 100])
@pytest.mark.parametrize(
    ("stored", "written"),
    [(torch.float32, None), (torch.float64, None), (torch.bfloat16, "float32")],
    ids=str,
)
def test_every_row_gets_what_its_adapter_adds_and_no_other_is_rounded(
    stored: torch.dtype,
    written: str | None,
    n_rows: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tensors = {name: each.to(stored) for name, each in llama_tensors().items()}
    if stored is torch.float64:
        tensors = {name: each + 1e-9 for name, each in tensors.items()}
    dtype = str(stored).removeprefix("torch.")
    base = write_model(tmp_path / "base", {**LLAMA, "dtype": dtype}, tensors)
    added = write_tuned(tmp_path / "tuned", base)
    monkeypatch.setattr(read_weights, "ROWS_BYTES", 4 * WIDTH * n_rows)
    export_model(tmp_path / "tuned", tmp_path / "merged", written, base=base)
    found = load_file(tmp_path / "merged/model.safetensors")
    assert found.keys() == tensors.keys()
    for name, weight in tensors.items():
        wide = torch.promote_types(stored, torch.float32)
        expected = weight.to(wide) + added.get(name, 0)
        torch.testing.assert_close(found[name], expected, rtol=0, atol=1e-6 * (name in added))


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
