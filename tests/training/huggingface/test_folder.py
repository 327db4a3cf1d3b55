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
from tests.examples.checkpoint_weights import different, load_weights
from tests.examples.foreign_models import saved_model
from torch import Tensor

from dynapipe_hpc.data.errors import InputError, RunError
from dynapipe_hpc.training.checkpoint.folder import Description
from dynapipe_hpc.training.huggingface.import_export import (
    export_model,
    import_model,
    write_tensors,
)
from dynapipe_hpc.training.huggingface.origin import find_origin
from dynapipe_hpc.training.huggingface.read_weights import read_rows
from dynapipe_hpc.training.huggingface.tensors import open_tensors

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
    """Changes the tensors of a folder."""
    path = folder / "model.safetensors"
    changed = change(load_file(path))
    save_file({name: tensor.contiguous() for name, tensor in changed.items()}, path)


def set_in_config(folder: Path, **values: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


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
