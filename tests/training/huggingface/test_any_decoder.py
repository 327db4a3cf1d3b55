"""Folders of decoders of `transformers`: what is read of them, and what is refused by name."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from tests.examples.any_decoders import DECODERS, origin_of, saved_decoder
from tests.examples.checkpoint_weights import different, write_weights
from tests.examples.small_models import set_in_config

from dynapipe_hpc.architecture.lora import Lora
from dynapipe_hpc.architecture.transformers import config_of
from dynapipe_hpc.data.errors import InputError
from dynapipe_hpc.models.transformers.stage import TransformersStage
from dynapipe_hpc.training.checkpoint.parts import StatePart, whole_parts
from dynapipe_hpc.training.flat_parameters import FlatParameters
from dynapipe_hpc.training.generate import logits_of
from dynapipe_hpc.training.huggingface import read_weights
from dynapipe_hpc.training.huggingface.import_export import export_model, import_model
from dynapipe_hpc.training.huggingface.origin import find_origin
from dynapipe_hpc.training.huggingface.read_weights import load_model
from dynapipe_hpc.training.huggingface.tensors import open_tensors
from dynapipe_hpc.training.small_files import CARRIED, copy_small_files

WEIGHTS = "model.safetensors"


@pytest.fixture
def theirs(tmp_path: Path) -> Path:
    saved_decoder("mixtral", tmp_path / "theirs")
    return tmp_path / "theirs"


def refusal(folder: Path) -> str:
    with pytest.raises(InputError) as refused:
        find_origin(folder, "transformers")
    return str(refused.value)


@pytest.mark.parametrize(
    ("setting", "value", "message"),
    [
        ("architectures", ["MixtralModel"], "'architectures' name a class"),
        ("is_encoder_decoder", True, "'is_encoder_decoder' is true"),
        ("text_config", {}, "has a 'text_config'"),
        ("output_router_logits", True, "'output_router_logits' is true"),
        ("alibi", True, "'alibi' is true"),
        ("is_causal", False, "its attention is not causal"),
        ("use_bidirectional_attention", True, "its attention is not causal"),
        ("rope_scaling", {"type": "xpos"}, "rotary positions of the type 'xpos'"),
        (
            "rope_scaling",
            {"type": "dynamic", "alpha": 1000.0},
            "of the type 'dynamic' with 'alpha'",
        ),
        ("rope_parameters", {"full": {"rope_type": "ntk"}}, "of the type 'ntk'"),
        ("quantization_config", {"bits": 4}, "'quantization_config'"),
        ("num_hidden_layers", 3, "16 of 12 tensors named"),
    ],
)
def test_a_setting_that_is_not_supported_is_named(
    theirs: Path, setting: str, value: object, message: str
) -> None:
    set_in_config(theirs, **{setting: value})
    with pytest.raises(InputError, match=message):
        find_origin(theirs, "transformers")


def add_tensors(folder: Path, **tensors: torch.Tensor) -> None:
    save_file(load_file(folder / WEIGHTS) | tensors, folder / WEIGHTS)


def test_layers_with_different_weights_are_refused(theirs: Path) -> None:
    add_tensors(theirs, **{"model.layers.1.input_layernorm.weight": torch.ones(3)})
    assert "layers differ in the shape of model.layers.*.input_layernorm.weight" in refusal(theirs)


def test_weights_that_the_class_does_not_have_are_named(theirs: Path) -> None:
    add_tensors(theirs, **{f"model.layers.{i}.extra.weight": torch.ones(3) for i in range(4)})
    shape = origin_of(theirs)[1]
    with pytest.raises(InputError, match=r"has other weights .*: model.layers.\*.extra.weight"):
        TransformersStage(shape, range(4), first=True, last=True)


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("GptOss", {"num_local_experts": 4, "head_dim": 8}, "asks attention for s_aux"),
        (
            "OPT",
            {"ffn_dim": 24, "word_embed_proj_dim": 16},
            "its decoder is not one list of layers",
        ),
        ("Llama4Text", {"head_dim": 4}, "its decoder is not where its class says"),
        (
            "Apertus",
            {"pad_token_id": 0},
            r"numbers .* that are not weights \(buffers\): model.layers.\*.mlp.act_fn.beta, ",
        ),
        # Heads of 6, of which a half is turned: 3, and angles come in pairs.
        (
            "Phi",
            {"hidden_size": 24, "num_key_value_heads": 4},
            "a phi with these settings does not run: RuntimeError: .*; choose another model",
        ),
    ],
)
def test_models_that_need_more_are_refused_before_their_weights_are_read(
    name: str, settings: dict[str, Any], message: str, tmp_path: Path
) -> None:
    sizes = {"vocab_size": 53, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64}
    config = getattr(transformers, f"{name}Config")(**sizes | heads | settings)
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    with pytest.raises(InputError, match=message):
        TransformersStage(origin_of(tmp_path)[1], range(2), first=True, last=True)


def test_a_soft_cap_that_settings_leave_out_is_that_of_the_class(tmp_path: Path) -> None:
    saved_decoder("gemma2", tmp_path)
    set_in_config(tmp_path, "attn_logit_softcapping")
    shape = origin_of(tmp_path)[1]
    assert "soft cap (attn_logit_softcapping is 50.0)" in shape.pairs_obstacle
    TransformersStage(shape, range(4), first=True, last=True)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "llama9"}, r"'llama9' is unknown to transformers \d"),
        ({"pad_token_id": 53}, r"'pad_token_id' in config.json is 53, which is not a row"),
    ],
)
def test_what_no_stage_can_be_made_of_is_named(
    tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    saved_decoder("gemma2", tmp_path)
    set_in_config(tmp_path, **change)
    with pytest.raises(InputError, match=message):
        TransformersStage(origin_of(tmp_path)[1], range(4), first=True, last=True)


def test_experts_are_imported_and_exported_one_by_one(theirs: Path, tmp_path: Path) -> None:
    import_model(theirs, tmp_path / "imported")
    export_model(tmp_path / "imported", tmp_path / "exported")
    assert not different(load_file(theirs / WEIGHTS), load_file(tmp_path / "exported" / WEIGHTS))
    origins = origin_of(theirs)[0], find_origin(tmp_path / "imported")
    logits = [logits_of(load_model(each), [3, 5, 7]) for each in origins]
    assert torch.equal(*logits)


def test_experts_are_as_they_were_beside_merged_adapters(theirs: Path, tmp_path: Path) -> None:
    shape = origin_of(theirs)[1].model_copy(update={"lora": Lora(rank=2)})
    stage = TransformersStage(shape, range(4), first=True, last=True)
    adapters = {n: w for n, w in stage.state_dict().items() if "lora" in n}  # which add 0
    write_weights(tmp_path / "tuned", shape, adapters)
    copy_small_files(theirs, tmp_path / "tuned" / CARRIED)
    export_model(tmp_path / "tuned", tmp_path / "merged", base=theirs)
    assert not different(load_file(theirs / WEIGHTS), load_file(tmp_path / "merged" / WEIGHTS))


def test_a_block_of_a_stack_is_read_from_within_its_experts(theirs: Path) -> None:
    origin, shape = origin_of(theirs)
    tensors, stored = open_tensors(theirs, origin.mapping, shape), load_file(theirs / WEIGHTS)
    name = "model.layers.1.mlp.experts.gate_up_proj"
    n, rows, columns = shape.tensors["model.layers.*.mlp.experts.gate_up_proj"]
    values = torch.empty(2, 9, 3, dtype=torch.float64)
    start = torch.Size([1, rows // 2 - 4, 2])  # the last rows of gates, and first of what they pass
    read_weights.read_part(tensors, StatePart(name, torch.Size([n, rows, columns]), start, values))
    for i in range(2):
        expert = f"model.layers.1.block_sparse_moe.experts.{1 + i}"
        whole = torch.cat([stored[f"{expert}.{each}.weight"] for each in ("w1", "w3")])
        assert torch.equal(values[i], whole[start[1] : start[1] + 9, 2:5])


@pytest.mark.parametrize("name", ["falcon", "gemma2", "starcoder2"])
def test_a_tied_head_may_be_all_that_files_have_of_the_embedding(name: str, tmp_path: Path) -> None:
    model = saved_decoder(name, tmp_path, tie_word_embeddings=True)
    tensors = load_file(tmp_path / WEIGHTS)
    embedding = origin_of(tmp_path)[1].embedding
    tensors["lm_head.weight"] = tensors.pop(embedding)
    save_file(tensors, tmp_path / WEIGHTS)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path)
    expected = model.get_input_embeddings().weight
    assert torch.equal(theirs.get_input_embeddings().weight, expected)
    found = {part.name: part.values for part in whole_parts(load_model(origin_of(tmp_path)[0]))}
    assert torch.equal(found[f"weight/{embedding}"], expected.float())


@pytest.mark.parametrize("name", ["falcon", "gemma2", "starcoder2"])
@pytest.mark.parametrize("left_out", ["x", "tie_word_embeddings"])
def test_a_tied_head_may_be_in_the_files_as_a_copy(
    name: str, left_out: str, tmp_path: Path
) -> None:
    """Also as version 4 of `transformers` wrote settings: without those of the class."""
    saved_decoder(name, tmp_path, tie_word_embeddings=True)
    tensors = load_file(tmp_path / WEIGHTS)
    ends = ("embed_tokens.weight", "word_embeddings.weight")
    (embedding,) = [name for name in tensors if name.endswith(ends)]
    add_tensors(tmp_path, **{"lm_head.weight": tensors[embedding].clone()})
    set_in_config(tmp_path, left_out)
    origin, shape = origin_of(tmp_path)
    assert shape.tied_head
    TransformersStage(shape, range(4), first=True, last=True)
    assert open_tensors(tmp_path, origin.mapping, shape).copies


@pytest.mark.parametrize("model_type", ["flex_olmo", "hunyuan_v1_moe", "mellum", "cohere2_moe"])
def test_experts_that_files_hold_apart_are_joined(model_type: str, tmp_path: Path) -> None:
    config = transformers.CONFIG_MAPPING[model_type]
    sizes = {"hidden_size": 16, "intermediate_size": 24, "vocab_size": 32, "head_dim": 4}
    sizes |= {"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
    experts = {"num_experts": 3, "num_experts_per_tok": 2, "moe_intermediate_size": 12}
    ids = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    kind = transformers.MODEL_FOR_CAUSAL_LM_MAPPING[config]
    model = kind(config(**sizes, **experts, **ids))
    model.save_pretrained(tmp_path)
    found = {
        part.name.removeprefix("weight/"): part.values
        for part in whole_parts(load_model(find_origin(tmp_path, "transformers")))
    }
    expected = {name: each for name, each in model.named_parameters() if name in found}
    assert sum(".experts." in name for name in found) == 4
    assert not different(found, expected)


def test_experts_of_other_types_are_refused(theirs: Path) -> None:
    set_in_config(theirs, model_type="llama")
    told = refusal(theirs)
    assert "holds the tensors of each expert apart, which is supported for these types only" in told


OLD_SETTINGS: Mapping[str, Mapping[str, Any]] = {
    "llama": {"rope_theta": 77.0, "rope_scaling": {"rope_type": "linear", "factor": 2.0}},
    "gemma3": {"rope_theta": 500.0, "rope_local_base_freq": 77.0, "sliding_window_pattern": 2},
    "phi3": {"rope_theta": 77.0, "rope_scaling": None},
    "falcon": {"rope_theta": 77.0, "max_position_embeddings": None},
}
"""Settings as version 4 of `transformers` wrote them, by type."""


@pytest.mark.parametrize("name", OLD_SETTINGS)
def test_settings_of_version_4_mean_what_they_mean_to_transformers(
    name: str, tmp_path: Path
) -> None:
    saved_decoder(name, tmp_path)
    absent = [key for key, value in OLD_SETTINGS[name].items() if value is None]
    left_out = ("rope_parameters", "layer_types", "dtype", *absent)
    set_in_config(tmp_path, *left_out, **OLD_SETTINGS[name], torch_dtype="float32")
    kind = transformers.AutoModelForCausalLM
    theirs = kind.from_pretrained(tmp_path, dtype=torch.float32).eval()
    tokens = [3, 5, 7, 9, 11, 2, 4, 6, 8]
    with torch.no_grad():
        expected = theirs(torch.tensor([tokens])).logits[0]
    found = logits_of(load_model(origin_of(tmp_path)[0]), tokens)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", DECODERS)
def test_the_weights_that_decay_are_those_of_the_trainer_of_transformers(
    name: str, tmp_path: Path
) -> None:
    model = saved_decoder(name, tmp_path)
    stage = TransformersStage(origin_of(tmp_path)[1], range(4), first=True, last=True)
    flat = FlatParameters(stage)
    found = {view.name for view in flat.views if view.start < flat.n_decaying}
    decaying = transformers.Trainer.get_decay_parameter_names(None, model)
    assert found == set(decaying) & {view.name for view in flat.views}


def test_infinite_numbers_of_settings_are_read_as_transformers_reads_them() -> None:
    values = {"model_type": "bamba", "time_step_limit": [0.0, {"__float__": "Infinity"}]}
    assert config_of(values).time_step_limit[1] == float("inf")


def test_a_setting_that_its_class_refuses_is_named_in_one_line() -> None:
    with pytest.raises(InputError, match=r"refuses config.json of a bamba: .*'time_step_limit':?$"):
        config_of({"model_type": "bamba", "time_step_limit": "long"})
