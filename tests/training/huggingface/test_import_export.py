"""Models of Hugging Face, imported and exported; which files are read, and which are refused."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from tests.examples.checkpoint_weights import load_weights
from tests.examples.foreign_models import LONGEST, MODELS, N_IDS, foreign_logits, saved_model
from tests.examples.small_models import (
    LLAMA,
    T5,
    WIDTH,
    llama_tensors,
    t5_tensors,
    write_model,
    write_tensors,
)
from torch import Tensor

from dynapipe_hpc.architecture.lora import Lora
from dynapipe_hpc.data.errors import InputError
from dynapipe_hpc.models.family import StageOfFamily, family_of
from dynapipe_hpc.training.checkpoint.parts import whole_parts
from dynapipe_hpc.training.generate import Sampling, continued, logits_of
from dynapipe_hpc.training.huggingface.describe_model import describe_model
from dynapipe_hpc.training.huggingface.import_export import export_model, import_model
from dynapipe_hpc.training.huggingface.origin import Origin, find_origin, hash_of_weights
from dynapipe_hpc.training.huggingface.read_weights import load_model, open_weights
from dynapipe_hpc.training.small_files import copy_small_files, write_token_ids

each_model = pytest.mark.parametrize("name", MODELS)
TOKENS = [int(i) for i in torch.randint(N_IDS, (LONGEST // 2,), generator=torch.manual_seed(3))]
SOURCE = [int(i) for i in torch.randint(N_IDS, (LONGEST,), generator=torch.manual_seed(4))]


def likeliest(stage: StageOfFamily, model: Any, source: list[int] | None) -> list[int]:
    """Tokens that the model here writes, to be compared with those of `transformers`."""
    start = TOKENS[:4] if source is None else [0]
    end_ids = [model.config.eos_token_id]
    written = continued(stage, start, source, Sampling().chooser(), end_ids=end_ids)
    return [*start, *(token for _, token in zip(range(12), written, strict=False))]


def their_likeliest(model: Any, source: list[int] | None) -> list[int]:
    """The same by `transformers`, whose cache holds no decoder longer than its encoder."""
    ids = torch.tensor([TOKENS[:4] if source is None else source])
    found: list[int]
    found = model.generate(ids, do_sample=False, max_new_tokens=12, use_cache=False)[0].tolist()
    return found[:-1] if found[-1] == model.config.eos_token_id else found


@each_model
def test_logits_are_those_of_transformers_before_and_after(name: str, tmp_path: Path) -> None:
    model = saved_model(name, tmp_path / "theirs")
    origin = import_model(tmp_path / "theirs", tmp_path / "ours")
    source = SOURCE if origin.shape.has_target_rows else None
    expected = foreign_logits(model, TOKENS, source)
    stage = load_model(find_origin(tmp_path / "ours"))
    found = logits_of(stage, TOKENS, source)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    assert likeliest(stage, model, source) == their_likeliest(model, source)

    export_model(tmp_path / "ours", tmp_path / "back")
    names = sorted(path.name for path in (tmp_path / "theirs").iterdir())
    assert sorted(path.name for path in (tmp_path / "back").iterdir()) == names
    back = type(model).from_pretrained(tmp_path / "back")
    torch.testing.assert_close(foreign_logits(back, TOKENS, source), expected, rtol=0, atol=0)
    assert transformers.AutoModel.from_pretrained(tmp_path / "back") is not None

    # A model that never was one of theirs has no config.json yet; its run knows its tokens.
    shutil.rmtree(tmp_path / "ours/huggingface")
    start, end = (0 if source else 1), model.config.eos_token_id
    write_token_ids(tmp_path / "ours", origin.shape, start, [end])
    export_model(tmp_path / "ours", tmp_path / "new")
    kind = transformers.AutoModelForSeq2SeqLM if source else transformers.AutoModelForCausalLM
    new = kind.from_pretrained(tmp_path / "new")
    torch.testing.assert_close(foreign_logits(new, TOKENS, source), expected, rtol=0, atol=1e-6)
    assert their_likeliest(new, source) == their_likeliest(model, source)
    first = new.config.decoder_start_token_id if source else new.config.bos_token_id
    assert (first, new.config.eos_token_id) == (start, end)


@pytest.fixture
def theirs(tmp_path: Path) -> Path:
    return write_model(tmp_path / "theirs", LLAMA, llama_tensors())


@pytest.fixture(params=["folder", "checkpoint"])
def origin(request: pytest.FixtureRequest, theirs: Path, tmp_path: Path) -> Origin:
    """The same model in its folder and as a checkpoint."""
    if request.param == "folder":
        return find_origin(theirs)
    import_model(theirs, tmp_path / "ours")
    return find_origin(tmp_path / "ours")


def test_adapters_beside_weights_that_have_none_keep_their_values(origin: Origin) -> None:
    shape = origin.shape.model_copy(update={"lora": Lora(rank=2)})
    stage = family_of(shape)(shape, range(shape.n_all_layers), first=True, last=True)
    before = {name: tensor.clone() for name, tensor in stage.state_dict().items()}
    open_weights(origin, shape).read(whole_parts(stage))
    changed = {n for n, tensor in stage.state_dict().items() if not torch.equal(tensor, before[n])}
    assert "embedding.tokens.weight" in changed
    assert not [name for name in changed if ".adapters." in name]
    assert [name for name in before if ".adapters." in name]


@pytest.mark.parametrize("name", ["shared.weight", "encoder.embed_tokens.weight"])
def test_copies_that_differ_are_refused_where_they_are_compared(name: str, tmp_path: Path) -> None:
    tensors = t5_tensors(gated=False, head=False)
    tensors["decoder.embed_tokens.weight"] = tensors["shared.weight"] + 1
    tensors[name] = tensors.pop("shared.weight")
    write_model(tmp_path, T5, tensors)
    origin = find_origin(tmp_path)
    with pytest.raises(InputError, match=r"decoder\.embed_tokens\.weight differs from shared"):
        open_weights(origin, origin.shape)
    assert open_weights(origin, origin.shape, compares_copies=False).has("weight/embedding.weight")


INDEX = "model.safetensors.index.json"
POINTER = f"version https://git-lfs.github.com/spec/v1\noid sha256:{'4d' * 32}\nsize 988097824\n"
EMBEDDING = "model.embed_tokens.weight"


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


VALUE_HEAD = {"v_head.summary.weight": torch.zeros(1, WIDTH), "v_head.summary.bias": torch.zeros(1)}


@pytest.mark.parametrize(
    ("prefix", "others", "told"),
    [
        ("_orig_mod.", {}, r"12 of 12 names .* '_orig_mod.' .* compiled .*model._orig_mod.save"),
        ("base_model.model.", {}, "'base_model.model.' .* adapters of peft; merge"),
        ("module.", {}, r"'module.' .* DistributedDataParallel; .*model.module.save"),
        ("", VALUE_HEAD, r"2 of 14 .*'v_head.' .*pretrained_model.save_pretrained"),
    ],
    ids=["compiled", "peft", "ddp", "value head"],
)
def test_names_of_a_model_inside_another_object_name_it(
    theirs: Path, prefix: str, others: dict[str, Tensor], told: str
) -> None:
    write_model(theirs, LLAMA, {prefix + n: t for n, t in llama_tensors().items()} | others)
    with pytest.raises(InputError, match=told):
        import_model(theirs, theirs.parent / "ours")


@pytest.mark.parametrize("name", ["model.rotary_emb.inv_freq", "rotary_emb.inv_freq"])
def test_a_buffer_of_rotary_positions_is_passed_over(theirs: Path, name: str) -> None:
    tensors = llama_tensors(tied=True)
    if not name.startswith("model."):
        tensors = {n.removeprefix("model."): t for n, t in tensors.items()}
    tied = {**LLAMA, "tie_word_embeddings": True}
    write_model(theirs, tied, tensors | {name: torch.ones(2)})
    assert name not in imported(theirs)


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
