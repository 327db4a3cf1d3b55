"""Files in the folder of a model: which are read, and which folders are refused."""

import json
from pathlib import Path

import pytest
import torch
from tests.examples.checkpoint_weights import load_weights
from tests.examples.small_models import LLAMA, WIDTH, llama_tensors, write_model, write_tensors
from torch import Tensor

from dynapipe_hpc.data.errors import InputError
from dynapipe_hpc.training.huggingface.describe_model import describe_model
from dynapipe_hpc.training.huggingface.import_export import import_model
from dynapipe_hpc.training.huggingface.origin import find_origin, hash_of_weights
from dynapipe_hpc.training.huggingface.read_weights import load_model
from dynapipe_hpc.training.small_files import copy_small_files

INDEX = "model.safetensors.index.json"
POINTER = f"version https://git-lfs.github.com/spec/v1\noid sha256:{'4d' * 32}\nsize 988097824\n"
EMBEDDING = "model.embed_tokens.weight"


@pytest.fixture
def theirs(tmp_path: Path) -> Path:
    """A folder with a Llama."""
    return write_model(tmp_path / "theirs", LLAMA, llama_tensors())


def write_shards(folder: Path, tensors: dict[str, Tensor]) -> list[Path]:
    """Writes tensors into two files with an index."""
    names = sorted(tensors)
    files = {name: f"model-0000{1 + (i > 4)}-of-00002.safetensors" for i, name in enumerate(names)}
    for file in set(files.values()):
        write_tensors(folder / file, {n: t for n, t in tensors.items() if files[n] == file})
    (folder / INDEX).write_text(json.dumps({"weight_map": files}))
    return [folder / file for file in sorted(set(files.values()))]


def imported(folder: Path) -> dict[str, Tensor]:
    import_model(folder, folder.parent / "ours")
    return load_weights(folder.parent / "ours")


def test_an_index_whose_shards_are_gone_does_not_count(theirs: Path) -> None:
    first, second = write_shards(theirs, {n: t + 1 for n, t in llama_tensors().items()})
    before = hash_of_weights(find_origin(write_model(theirs.parent / "x", LLAMA, llama_tensors())))
    second.unlink()
    assert hash_of_weights(find_origin(theirs)) == before
    assert torch.equal(imported(theirs)["embedding.tokens.weight"], llama_tensors()[EMBEDDING])
    assert first.exists()


def test_two_sets_of_weights_are_refused_by_the_names_of_both(theirs: Path) -> None:
    write_shards(theirs, llama_tensors())
    with pytest.raises(InputError, match=rf"twice, in model.safetensors and .* {INDEX} names"):
        import_model(theirs, theirs.parent / "ours")


def test_an_index_of_the_single_file_is_no_second_set(theirs: Path) -> None:
    names = dict.fromkeys(llama_tensors(), "model.safetensors")
    (theirs / INDEX).write_text(json.dumps({"weight_map": names}))
    assert torch.equal(imported(theirs)["embedding.tokens.weight"], llama_tensors()[EMBEDDING])


@pytest.mark.parametrize(
    ("has_model", "base", "told"),
    [
        (True, "their/base", r"a model and an adapter of peft \(adapter_config.*merge_and"),
        (False, "their/base", "is not a model but an adapter of peft, for the model 'their/base'"),
        (False, None, "an adapter of peft, for the model that it was trained on"),
    ],
)
def test_an_adapter_is_refused(has_model: bool, base: str | None, told: str, theirs: Path) -> None:
    (theirs / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": base}))
    if not has_model:
        (theirs / "config.json").unlink()
    with pytest.raises(InputError, match=told):
        find_origin(theirs)


@pytest.mark.parametrize("number", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("name", ["lm_head.weight", "model.layers.0.mlp.up_proj.weight"])
def test_numbers_that_are_not_finite_are_refused(theirs: Path, name: str, number: float) -> None:
    tensors = llama_tensors()
    tensors[name][3, 2] = number
    write_model(theirs, LLAMA, tensors)
    told = f"model.safetensors: {name} has numbers that are NaN or infinite"
    with pytest.raises(InputError, match=told):
        import_model(theirs, theirs.parent / "ours")
    with pytest.raises(InputError, match=told):
        load_model(find_origin(theirs))
    assert not (theirs.parent / "ours").exists()


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "spiece.model"])
def test_a_pointer_of_git_lfs_is_refused_with_the_way_out(theirs: Path, name: str) -> None:
    (theirs / name).write_text(POINTER)
    with pytest.raises(InputError, match=rf"{name}: .*pointer of Git LFS.*git lfs pull"):
        import_model(theirs, theirs.parent / "ours")
    assert not (theirs.parent / "ours").exists()


@pytest.mark.parametrize(
    ("prefix", "told"),
    [
        ("_orig_mod.", r"12 of 12 names .* '_orig_mod.' .* compiled model; .*model._orig_mod.save"),
        ("base_model.model.", "'base_model.model.' .* adapters of peft; merge"),
        ("module.", r"'module.' .* DistributedDataParallel; .*model.module.save"),
    ],
)
def test_names_of_a_model_inside_another_object_name_it(
    theirs: Path, prefix: str, told: str
) -> None:
    write_model(theirs, LLAMA, {prefix + name: t for name, t in llama_tensors().items()})
    with pytest.raises(InputError, match=told):
        import_model(theirs, theirs.parent / "ours")


def test_a_value_head_is_named(theirs: Path) -> None:
    head = {"v_head.summary.weight": torch.zeros(1, WIDTH), "v_head.summary.bias": torch.zeros(1)}
    write_model(theirs, LLAMA, llama_tensors() | head)
    with pytest.raises(InputError, match=r"2 of 14 .*'v_head.' .*pretrained_model.save_pretrained"):
        import_model(theirs, theirs.parent / "ours")


@pytest.mark.parametrize("name", ["model.rotary_emb.inv_freq", "rotary_emb.inv_freq"])
def test_a_buffer_of_rotary_positions_is_passed_over(theirs: Path, name: str) -> None:
    tensors = llama_tensors(tied=True)
    if not name.startswith("model."):
        tensors = {n.removeprefix("model."): t for n, t in tensors.items()}
    tied = {**LLAMA, "tie_word_embeddings": True}
    write_model(theirs, tied, tensors | {name: torch.ones(2)})
    assert name not in imported(theirs)


def test_a_name_of_the_hub_says_how_to_download(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"hf download Qwen/Qwen2\.5-0\.5B --local-dir FOLDER"):
        find_origin(Path("Qwen/Qwen2.5-0.5B"))
    with pytest.raises(InputError) as caught:
        find_origin(tmp_path / "nowhere")
    assert "hf download" not in str(caught.value)


def test_a_description_refuses_files_that_are_not_as_long_as_they_say(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "model", LLAMA, llama_tensors())
    assert 'family = "llama"' in describe_model(folder)
    file = folder / "model.safetensors"
    content = file.read_bytes()
    for other in (content[:-100], content + b"0", content[:50]):
        file.write_bytes(other)
        message = (
            rf"is not a complete safetensors file \({len(other):,} bytes: .*\); fetch it again"
        )
        with pytest.raises(InputError, match=f"model.safetensors: {message}"):
            describe_model(folder)


def test_templates_that_have_names_go_with_the_others(tmp_path: Path) -> None:
    names = ("chat_template.jinja", "additional_chat_templates/tool_use.jinja")
    for name in (*names, "additional_chat_templates/notes.txt", "model.safetensors"):
        (tmp_path / "a" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "a" / name).write_text(name)
    for target in ("b", "b", "c"):
        copy_small_files(tmp_path / "a", tmp_path / target)
    for target in ("b", "c"):
        files = [path for path in (tmp_path / target).rglob("*") if path.is_file()]
        assert {str(path.relative_to(tmp_path / target)) for path in files} == set(names)
