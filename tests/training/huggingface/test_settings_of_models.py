"""Settings in the folder of a model: what they mean, and what is refused."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from tests.examples.checkpoint_weights import load_weights
from tests.examples.small_models import (
    GATED_T5,
    LLAMA,
    N_IDS,
    T5,
    WIDTH,
    llama_tensors,
    t5_tensors,
    write_model,
)
from tests.examples.training_case import SHAPE
from torch import Tensor

from dynapipe_hpc.data.errors import InputError
from dynapipe_hpc.models.rotary import Angles
from dynapipe_hpc.training.huggingface.import_export import export_model, import_model
from dynapipe_hpc.training.huggingface.mapping import LONGEST
from dynapipe_hpc.training.huggingface.origin import find_origin, mapping_for
from dynapipe_hpc.training.small_files import add_end_ids, read_end_ids, write_token_ids

LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
OWN_HEAD, TIED = {"tied_head": False}, {"tied_head": True}
UNSCALED = {"tied_head": True, "scale_decoder_outputs": False}


def shape_of(folder: Path, settings: Mapping[str, Any]) -> Any:
    """The model of a folder that has no weights."""
    (folder / "config.json").write_text(json.dumps(dict(settings)))
    return find_origin(folder).shape


def imported(folder: Path) -> dict[str, Tensor]:
    import_model(folder, folder.parent / "ours")
    return load_weights(folder.parent / "ours")


def exported(folder: Path) -> dict[str, Any]:
    """The settings of a folder after import and export."""
    import_model(folder, folder.parent / "ours")
    export_model(folder.parent / "ours", folder.parent / "back")
    found: dict[str, Any] = json.loads((folder.parent / "back/config.json").read_text())
    return found


@pytest.mark.parametrize(
    ("settings", "has_head", "expected"),
    [
        ({}, False, TIED),
        ({}, True, TIED),  # a copy, as is checked when it is read
        ({"tie_word_embeddings": True, "scale_decoder_outputs": True}, False, TIED),
        ({"tie_word_embeddings": True, "scale_decoder_outputs": False}, False, UNSCALED),
        ({"tie_word_embeddings": True, "scale_decoder_outputs": False}, True, OWN_HEAD),
        ({"tie_word_embeddings": False, "scale_decoder_outputs": False}, True, OWN_HEAD),
        ({"tie_word_embeddings": False}, True, OWN_HEAD),
        ({"tie_word_embeddings": False}, False, UNSCALED),
        ({"model_type": "mt5", "tie_word_embeddings": False}, True, OWN_HEAD),
        ({"model_type": "mt5", "tie_word_embeddings": True}, True, OWN_HEAD),
        ({"model_type": "mt5", "tie_word_embeddings": True}, False, UNSCALED),
        ({"model_type": "mt5"}, False, UNSCALED),
    ],
)
def test_the_head_of_a_t5_is_that_of_its_settings_and_files(
    settings: dict[str, Any], has_head: bool, expected: dict[str, bool], tmp_path: Path
) -> None:
    write_model(tmp_path / "theirs", {**GATED_T5, **settings}, t5_tensors(head=has_head))
    shape = find_origin(tmp_path / "theirs").shape
    found = shape.model_dump(include={"tied_head", "scale_decoder_outputs"}, exclude_none=True)
    assert found == expected


@pytest.mark.parametrize(
    ("config", "tensors", "kept"),
    [
        ({**LLAMA, "tie_word_embeddings": True}, llama_tensors(tied=True), "lm_head.weight"),
        (T5, t5_tensors(gated=False, head=False), "decoder.embed_tokens.weight"),
        (T5, t5_tensors(gated=False, head=False), "encoder.embed_tokens.weight"),
        (T5, t5_tensors(gated=False, head=False), "lm_head.weight"),
        # MADLAD has a head of its own beside one of the embedding's other names.
        ({**GATED_T5, "tie_word_embeddings": False}, t5_tensors(), "decoder.embed_tokens.weight"),
    ],
)
def test_any_name_of_a_tied_tensor_is_enough(
    config: dict[str, Any], tensors: dict[str, Tensor], kept: str, tmp_path: Path
) -> None:
    name = "model.embed_tokens.weight" if config["model_type"] == "llama" else "shared.weight"
    embedding = tensors[name]
    others = {n: t for n, t in tensors.items() if n != name}
    write_model(tmp_path / "theirs", config, {**others, kept: embedding})
    found = imported(tmp_path / "theirs")
    ours = "embedding.tokens.weight" if config["model_type"] == "llama" else "embedding.weight"
    assert torch.equal(found[ours], embedding)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"rope_scaling": {**LLAMA3, "original_max_position_embeddings": 5}}, 5),
        ({"rope_scaling": LLAMA3, "original_max_position_embeddings": 6}, 6),
        (
            {
                "rope_parameters": {**LLAMA3, "original_max_position_embeddings": 5},
                "original_max_position_embeddings": 6,
            },
            6,
        ),
        ({"rope_parameters": LLAMA3}, 16),
    ],
)
def test_the_rows_of_the_pretraining_are_found(
    settings: dict[str, Any], expected: int, tmp_path: Path
) -> None:
    scaling = shape_of(tmp_path, {**LLAMA, **settings}).rope_scaling
    assert scaling is not None
    assert scaling.model_dump()["original_max_tokens"] == expected


YARN = {"rope_type": "yarn", "rope_theta": 50.0, "factor": 8.0}


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"factor": 1.0},
        {"original_max_position_embeddings": 16},
        {"beta_fast": 5.0, "beta_slow": 0.5},
        {"beta_fast": 5.0, "beta_slow": 0.5, "truncate": False},
        {"attention_factor": 1.7, "mscale": 0.5, "mscale_all_dim": 0.25},
        {"mscale": 0.5, "mscale_all_dim": 0.25},
        {"mscale": 0.5},
        {"original_max_position_embeddings": 4, "beta_fast": 2.0},  # no pair is fast, or slow
        {"original_max_position_embeddings": 400},  # the last pair would not be slow yet
        {"original_max_position_embeddings": 10**6},
    ],
    ids=str,
)
@pytest.mark.parametrize("head_dim", [6, 32])
def test_angles_of_yarn_are_those_of_transformers(
    changes: dict[str, Any], head_dim: int, tmp_path: Path
) -> None:
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    own = {"max_position_embeddings": 64, "head_dim": head_dim}
    settings = {**LLAMA, **own, "rope_parameters": {**YARN, **changes}}
    positions = torch.arange(64)
    theirs = LlamaRotaryEmbedding(LlamaConfig(**settings))(torch.empty(0), positions[None])
    ours = Angles.from_positions(shape_of(tmp_path, settings), positions, torch.float32)
    for found, expected in zip(ours, theirs, strict=True):
        torch.testing.assert_close(found[:, 0], expected[0, :, : head_dim // 2], rtol=0, atol=2e-5)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"factor": None}, "'factor' is 0.0, not a positive number"),
        ({"beta_fast": 0}, "'beta_fast' is 0, not a positive number"),
        ({"beta_fast": 0.5}, "beta_fast .0.5. must be greater than beta_slow"),
        ({"mscale": 0, "mscale_all_dim": 1.0}, "'mscale' is 0, not a positive number"),
        ({"truncate": 1}, "'truncate' is 1, not true or false"),
    ],
)
def test_settings_of_yarn_that_are_not_computed_are_refused(
    changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=message):
        shape_of(tmp_path, {**LLAMA, "rope_parameters": {**YARN, **changes}})


@pytest.mark.parametrize("model_type", ["llama", "qwen3"])
def test_maps_around_attention_have_biases_if_the_settings_say_so(
    model_type: str, tmp_path: Path
) -> None:
    for has_biases in (False, True):
        settings = {**LLAMA, "model_type": model_type, "attention_bias": has_biases}
        shape = shape_of(tmp_path, settings)
        assert (shape.qkv_bias, shape.output_bias) == (has_biases, has_biases)
        assert mapping_for(shape).model_type == model_type
        assert mapping_for(shape).config(shape).get("attention_bias", False) == has_biases


def test_no_class_has_biases_of_some_other_maps(tmp_path: Path) -> None:
    shape = shape_of(tmp_path, {**LLAMA, "attention_bias": True})
    for changes in (
        {"qkv_bias": False},
        {"output_bias": False, "qk_norm": True},
        {"n_heads": 3},  # a Mistral, which has no biases
    ):
        with pytest.raises(InputError, match="no Hugging Face model type is a llama"):
            mapping_for(shape.model_copy(update=changes))
    assert mapping_for(shape.model_copy(update={"output_bias": False})).model_type == "qwen2"


@pytest.mark.parametrize("name", ["rope_scaling", "rope_parameters"])
def test_scaling_that_is_no_object_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=f"'{name}' is 'linear', not a JSON object"):
        shape_of(tmp_path, {**LLAMA, name: "linear"})


CLASSES: Mapping[str, Mapping[str, int]] = {
    "llama": {"n_kv_heads": 32, "head_size": 128, "ffn_size": 11008, "vocab_size": 32000},
    "mistral": {"n_kv_heads": 8, "max_tokens": 4096, "ffn_size": 14336},
    "qwen2": {"n_kv_heads": 32, "max_tokens": 32768, "vocab_size": 151936},
    "qwen3": {"n_kv_heads": 32, "head_size": 128, "ffn_size": 22016},
    "mt5": {"n_layers": 8, "n_heads": 6, "ffn_size": 1024, "vocab_size": 250112, "gated": True},
    "t5": {"n_layers": 6, "n_heads": 8, "ffn_size": 2048, "vocab_size": 32128},
    "gpt2": {"n_layers": 12, "n_heads": 12, "vocab_size": 50257, "max_tokens": 1024},
}


@pytest.mark.parametrize("model_type", CLASSES)
def test_sizes_that_are_left_out_are_those_of_the_class(model_type: str, tmp_path: Path) -> None:
    shape = shape_of(tmp_path, {"model_type": model_type})
    expected = CLASSES[model_type]
    assert {name: getattr(shape, name) for name in expected} == expected
    theirs = transformers.AutoConfig.for_model(model_type)
    written_out = shape_of(tmp_path, json.loads(theirs.to_json_string(use_diff=False)))
    assert shape == written_out


QWEN = {"model_type": "qwen3", "use_sliding_window": True, "sliding_window": 4}


@pytest.mark.parametrize(
    ("settings", "longest"),
    [
        ({**QWEN, "max_window_layers": 0}, 4),
        ({**QWEN, "max_window_layers": 1}, LONGEST),
        (QWEN, LONGEST),  # the first 28 layers have none
        ({**QWEN, "layer_types": ["sliding_attention"]}, 4),
        ({**QWEN, "max_window_layers": 0, "layer_types": ["full_attention"]}, LONGEST),
        ({**QWEN, "max_window_layers": 0, "use_sliding_window": False}, LONGEST),
        ({"model_type": "mistral", "sliding_window": 4}, 4),
        # Keys that a Mistral does not read.
        ({"model_type": "mistral", "sliding_window": 4, "use_sliding_window": False}, 4),
        ({"model_type": "mistral", "sliding_window": 4, "layer_types": ["full_attention"]}, 4),
        ({"model_type": "llama", "sliding_window": 4}, LONGEST),
    ],
)
def test_rows_are_held_to_windows_that_layers_have(
    settings: dict[str, Any], longest: int, tmp_path: Path
) -> None:
    folder = write_model(tmp_path, {**LLAMA, **settings}, llama_tensors())
    origin = find_origin(folder)
    assert (origin.longest, origin.shape.max_tokens) == (longest, min(longest, 16))


@pytest.mark.parametrize(
    ("settings", "dtype", "written"),
    [
        ({"torch_dtype": "torch.bfloat16"}, "bfloat16", "torch_dtype"),
        ({"torch_dtype": "auto"}, "float32", "torch_dtype"),
        ({"dtype": "float16"}, "float16", "dtype"),
        ({}, "float32", "dtype"),
    ],
)
def test_the_type_of_weights_is_read_as_transformers_writes_it(
    settings: dict[str, str], dtype: str, written: str, tmp_path: Path
) -> None:
    write_model(tmp_path / "theirs", {**LLAMA, **settings}, llama_tensors())
    assert exported(tmp_path / "theirs")[written] == dtype


@pytest.mark.parametrize("dtype", ["int8", "float8_e4m3fn", 3])
def test_a_type_that_is_not_written_is_refused_before_training(dtype: Any, tmp_path: Path) -> None:
    told = rf"config.json: 'dtype' is {re.escape(repr(dtype))}, which is not supported; set it to"
    with pytest.raises(InputError, match=told):
        shape_of(tmp_path, {**LLAMA, "dtype": dtype})


ODD_WIDTH: Mapping[str, Any] = {**LLAMA, "num_attention_heads": 3, "head_dim": 4}


def odd_width_tensors() -> dict[str, Tensor]:
    tensors, layer = llama_tensors(), "model.layers.0.self_attn"
    inner = 3 * ODD_WIDTH["head_dim"]
    tensors[f"{layer}.q_proj.weight"] = torch.ones(inner, WIDTH)
    tensors[f"{layer}.o_proj.weight"] = torch.ones(WIDTH, inner)
    return tensors


def test_a_width_that_llama_refuses_names_the_class_that_takes_it(tmp_path: Path) -> None:
    write_model(tmp_path / "theirs", ODD_WIDTH, odd_width_tensors())
    import_model(tmp_path / "theirs", tmp_path / "ours")
    told = export_model(tmp_path / "ours", tmp_path / "back").remark
    assert "LlamaForCausalLM of transformers refuses a hidden_size (8)" in told
    assert 'MistralForCausalLM computes the same: set "model_type": "mistral"' in told


def test_a_model_of_our_own_gets_the_class_that_takes_it(tmp_path: Path) -> None:
    write_model(tmp_path / "theirs", ODD_WIDTH, odd_width_tensors())
    import_model(tmp_path / "theirs", tmp_path / "ours")
    (tmp_path / "ours/huggingface/config.json").unlink()
    found = export_model(tmp_path / "ours", tmp_path / "back")
    assert (found.origin.mapping.architecture, found.remark) == ("MistralForCausalLM", "")
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "back")
    assert model.config.sliding_window is None
    assert model(torch.arange(N_IDS)[None]).logits.isfinite().all()


BLOOM = {"model_type": "bloom", "architectures": ["BloomForCausalLM"], "n_layer": 2}
GEMMA = {"model_type": "gemma3", "architectures": ["Gemma3ForConditionalGeneration"]}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (BLOOM, "has no 'num_hidden_layers', without which no bloom is supported; choose another"),
        (
            {**GEMMA, "text_config": {"model_type": "gemma3_text"}},
            "has a 'text_config', as models of several media have; save its text model alone",
        ),
    ],
)
def test_what_a_model_type_lacks_is_named(
    settings: dict[str, Any], message: str, tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(settings))
    with pytest.raises(InputError, match=message):
        find_origin(tmp_path)


EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"
WIDER = torch.zeros(N_IDS + 1, WIDTH)


@pytest.mark.parametrize(
    ("tied", "changed", "message"),
    [
        (True, {EMBEDDING: WIDER, HEAD: None}, rf"{EMBEDDING} has the shape \[12, 8\]: by config"),
        (False, {EMBEDDING: WIDER}, rf"{EMBEDDING} has the shape \[12, 8\]: by config.json"),
        (False, {HEAD: WIDER}, rf"{HEAD} has the shape \[12, 8\]: by config.json .*: false\)"),
        (False, {HEAD: None}, rf"{HEAD} is not there: .* a tensor of the shape \[11, 8\] is"),
        (False, {EMBEDDING: None}, "the embedding is not there: by config.json"),
        (True, {EMBEDDING: None, HEAD: None}, "the embedding is not there: by config.json"),
    ],
)
def test_embedding_and_head_of_other_shapes_are_named_with_their_keys(
    tied: bool, changed: dict[str, Tensor | None], message: str, tmp_path: Path
) -> None:
    tensors = {**llama_tensors(), **changed}
    write_model(
        tmp_path,
        {**LLAMA, "tie_word_embeddings": tied},
        {name: each for name, each in tensors.items() if each is not None},
    )
    with pytest.raises(InputError, match=message):
        find_origin(tmp_path, "transformers")


def test_an_embedding_may_be_in_the_files_as_a_tied_head_only(tmp_path: Path) -> None:
    tensors = llama_tensors()
    del tensors[EMBEDDING]
    write_model(tmp_path, {**LLAMA, "tie_word_embeddings": True}, tensors)
    shape = find_origin(tmp_path, "transformers").shape
    assert shape.tied_head
    assert EMBEDDING in shape.tied


@pytest.mark.parametrize(
    ("settings", "longest"),
    [
        ({"rope_theta": 1e4}, LONGEST),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 1e4}}, LONGEST),
        ({"rope_scaling": {"type": "linear", "factor": 2.0}}, LONGEST),
        ({}, 16),
        ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, 16),
        ({"rope_scaling": {"type": "su"}, "original_max_position_embeddings": 12}, 12),
    ],
)
def test_rows_may_be_longer_where_positions_are_rotary_in_the_same_way(
    settings: dict[str, Any], longest: int, tmp_path: Path
) -> None:
    write_model(tmp_path, {**LLAMA, **settings}, llama_tensors())
    origin = find_origin(tmp_path, "transformers")
    assert origin.longest == longest
    assert origin.shape.max_tokens == min(longest, 16)


def written(folder: Path, **files: dict[str, Any]) -> Path:
    (folder / "huggingface").mkdir()
    for name, values in files.items():
        (folder / "huggingface" / f"{name}.json").write_text(json.dumps(values))
    return folder / "huggingface"


def values_in(folder: Path) -> Any:
    return json.loads((folder / "generation_config.json").read_text())


@pytest.mark.parametrize("ids", [96, [96]])
def test_tokens_that_end_turns_stand_beside_that_of_the_model(tmp_path: Path, ids: object) -> None:
    folder = written(tmp_path, config={}, generation_config={"eos_token_id": ids, "top_p": 0.9})
    write_token_ids(tmp_path, SHAPE, 1, [98])
    assert values_in(folder) == {"eos_token_id": [96, 98], "top_p": 0.9}
    assert read_end_ids(folder) == [96, 98]


def test_a_model_that_stops_there_keeps_its_file(tmp_path: Path) -> None:
    folder = written(tmp_path, config={}, generation_config={"eos_token_id": [98, 96]})
    before = (folder / "generation_config.json").read_bytes()
    write_token_ids(tmp_path, SHAPE, 1, [96, 98])
    assert (folder / "generation_config.json").read_bytes() == before


def test_without_a_file_the_ids_of_the_configuration_are_kept(tmp_path: Path) -> None:
    config = {"eos_token_id": 96, "bos_token_id": 1, "pad_token_id": None, "hidden_size": 8}
    folder = written(tmp_path, config=config)
    add_end_ids(folder, [96])
    assert not (folder / "generation_config.json").exists()
    add_end_ids(folder, [98])
    assert values_in(folder) == {"bos_token_id": 1, "eos_token_id": [96, 98]}
