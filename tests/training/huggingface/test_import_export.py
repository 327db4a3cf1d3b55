"""Models of Hugging Face, imported and exported, and how their weights are read."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from tests.examples.foreign_models import LONGEST, MODELS, N_IDS, foreign_logits, saved_model
from tests.examples.small_models import LLAMA, T5, llama_tensors, t5_tensors, write_model

from dynapipe_hpc.architecture.lora import Lora
from dynapipe_hpc.data.errors import InputError
from dynapipe_hpc.models.family import StageOfFamily, family_of
from dynapipe_hpc.training.checkpoint.parts import whole_parts
from dynapipe_hpc.training.generate import Sampling, continued, logits_of
from dynapipe_hpc.training.huggingface.import_export import export_model, import_model
from dynapipe_hpc.training.huggingface.origin import Origin, find_origin
from dynapipe_hpc.training.huggingface.read_weights import load_model, open_weights
from dynapipe_hpc.training.small_files import write_token_ids

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
    """A folder with a Llama."""
    write_model(tmp_path / "theirs", LLAMA, llama_tensors())
    return tmp_path / "theirs"


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
