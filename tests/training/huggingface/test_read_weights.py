"""Weights of a model on disk that a model in memory begins with."""

from pathlib import Path

import pytest
import torch
from tests.examples.small_models import LLAMA, T5, llama_tensors, t5_tensors, write_model

from dynapipe_hpc.architecture.lora import Lora
from dynapipe_hpc.data.errors import InputError
from dynapipe_hpc.models.family import family_of
from dynapipe_hpc.training.checkpoint.parts import whole_parts
from dynapipe_hpc.training.huggingface.import_export import import_model
from dynapipe_hpc.training.huggingface.origin import Origin, find_origin
from dynapipe_hpc.training.huggingface.read_weights import open_weights


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
