"""Adapters of a checkpoint, exported for `peft` or into the weights of a model."""

import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.examples.checkpoint_weights import load_weights, write_weights
from tests.examples.foreign_models import LONGEST, MODELS, N_IDS, foreign_logits, saved_model

from dynapipe_hpc.architecture.lora import Lora
from dynapipe_hpc.architecture.model_shape import ModelShape
from dynapipe_hpc.data.errors import InputError
from dynapipe_hpc.models.family import StageOfFamily, family_of
from dynapipe_hpc.training.checkpoint.folder import Description
from dynapipe_hpc.training.generate import Sampling, generate, logits_of
from dynapipe_hpc.training.huggingface.import_export import export_model, import_model
from dynapipe_hpc.training.huggingface.origin import HASH_FACT, find_origin, hash_of_weights
from dynapipe_hpc.training.small_files import CARRIED, add_end_ids, copy_small_files, read_end_ids

peft = pytest.importorskip("peft", reason="needs peft: pip install '.[reference]'")

TOKENS = [int(i) for i in torch.randint(N_IDS, (LONGEST // 2,), generator=torch.manual_seed(3))]
SOURCE = [int(i) for i in torch.randint(N_IDS, (LONGEST,), generator=torch.manual_seed(4))]


def trained(shape: ModelShape, base: Path, checkpoint: Path) -> StageOfFamily:
    """A model whose adapters have been trained, as it is in a checkpoint."""
    layers = range(shape.n_all_layers)
    stage = family_of(shape)(shape, layers, first=True, last=True, seed=3)
    stage.load_state_dict(load_weights(base), strict=False)
    adapters = {name: weight for name, weight in stage.state_dict().items() if "lora" in name}
    for seed, (name, weight) in enumerate(adapters.items()):
        if name.endswith("lora_b"):
            weight.normal_(std=0.3, generator=torch.manual_seed(seed))
    write_weights(checkpoint, shape, adapters)
    return stage


def trained_gpt2(folder: Path, lora: Lora, checkpoint: str = "tuned") -> StageOfFamily:
    """A GPT-2 in `theirs`, its import in `base`, and a checkpoint of adapters beside it."""
    saved_model("gpt2", folder / "theirs")
    origin = import_model(folder / "theirs", folder / "base")
    shape = origin.shape.model_copy(update={"lora": lora})
    return trained(shape, folder / "base", folder / checkpoint)


def with_adapters(model: Any, folder: Path) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # of what peft reads of transformers
        return peft.PeftModel.from_pretrained(model, folder).eval()


@pytest.mark.parametrize(
    ("name", "some"),
    [("gpt2", False), ("gpt2", True), ("t5", False), ("t5-1.1", True), ("llama", False)],
)
def test_logits_with_adapters_are_those_of_peft_and_of_the_merged_model(
    name: str, some: bool, tmp_path: Path
) -> None:
    model = saved_model(name, tmp_path / "theirs")
    origin = import_model(tmp_path / "theirs", tmp_path / "base")
    names = [each for layer in origin.shape.linear_layers.values() for each in layer]
    lora = Lora(rank=3, alpha=5.0, targets=tuple(names[1:3]) if some else None)
    shape = origin.shape.model_copy(update={"lora": lora})
    stage = trained(shape, tmp_path / "base", tmp_path / "tuned")
    source = SOURCE if shape.has_target_rows else None
    found = logits_of(stage, TOKENS, source)
    assert not torch.allclose(found, foreign_logits(model, TOKENS, source), atol=1e-2)

    for base in ("theirs", "base"):
        merged = tmp_path / f"merged into {base}"
        export_model(tmp_path / "tuned", merged, base=tmp_path / base)
        theirs = type(model).from_pretrained(merged)
        torch.testing.assert_close(
            foreign_logits(theirs, TOKENS, source), found, rtol=1e-4, atol=1e-4
        )
    export_model(tmp_path / "tuned", tmp_path / "adapters")
    files = sorted(path.name for path in (tmp_path / "adapters").iterdir())
    assert files == ["adapter_config.json", "adapter_model.safetensors"]
    adapted = with_adapters(model, tmp_path / "adapters")
    torch.testing.assert_close(foreign_logits(adapted, TOKENS, source), found, rtol=1e-4, atol=1e-4)
    with_a = [n for n, _ in adapted.named_parameters() if "lora_A" in n]
    assert len(with_a) == sum("lora_a" in n for n, _ in stage.named_parameters())


def test_peft_finds_the_model_that_an_adapter_names(tmp_path: Path) -> None:
    (tmp_path / "run/checkpoints").mkdir(parents=True)
    stage = trained_gpt2(tmp_path, Lora(rank=2), "run/checkpoints/000004")
    table = f'[model]\ninit_from = "{tmp_path / "theirs"}"\n'
    (tmp_path / "run/config.toml").write_text(table)
    export_model(tmp_path / "run", tmp_path / "adapter")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # of what peft reads of transformers
        model = peft.AutoPeftModelForCausalLM.from_pretrained(tmp_path / "adapter").eval()
    found = foreign_logits(model, TOKENS, None)
    torch.testing.assert_close(found, logits_of(stage, TOKENS, None), rtol=1e-4, atol=1e-4)


def test_a_merged_model_stops_where_the_adapters_do(tmp_path: Path) -> None:
    trained_gpt2(tmp_path, Lora(rank=2))
    copy_small_files(tmp_path / "theirs", tmp_path / "tuned" / CARRIED)
    add_end_ids(tmp_path / "tuned" / CARRIED, [3])
    export_model(tmp_path / "tuned", tmp_path / "merged", base=tmp_path / "theirs")
    theirs = read_end_ids(tmp_path / "theirs")
    assert read_end_ids(tmp_path / "merged") == [*theirs, 3]


def test_a_base_of_another_size_and_one_for_a_model_without_adapters_are_refused(
    tmp_path: Path,
) -> None:
    name = next(iter(MODELS))
    saved_model(name, tmp_path / "theirs")
    origin = import_model(tmp_path / "theirs", tmp_path / "base")
    wider = origin.shape.model_copy(update={"vocab_size": N_IDS + 1, "lora": Lora(rank=2)})
    stage = family_of(wider)(wider, range(0), first=False, last=False)
    assert not list(stage.parameters())
    write_weights(tmp_path / "tuned", wider, {"layers.0.lora_a": torch.zeros(2, 2)})
    with pytest.raises(InputError, match=r"theirs: is not the model of .*tuned: embedding"):
        export_model(tmp_path / "tuned", tmp_path / "out", base=tmp_path / "theirs")
    with pytest.raises(InputError, match="has no adapters to add to"):
        export_model(tmp_path / "base", tmp_path / "out", base=tmp_path / "theirs")
    assert not (tmp_path / "out").exists()


def test_adapters_go_with_the_weights_beside_which_they_were_trained(tmp_path: Path) -> None:
    trained_gpt2(tmp_path, Lora(rank=1, targets=("up",)))
    description = Description.read(tmp_path / "tuned")
    facts = {**description.facts, HASH_FACT: hash_of_weights(find_origin(tmp_path / "theirs"))}
    replace(description, facts=facts).write(tmp_path / "tuned")
    export_model(tmp_path / "tuned", tmp_path / "merged", base=tmp_path / "theirs")
    assert (tmp_path / "merged/model.safetensors").exists()
    with pytest.raises(InputError, match=r"base: these are not the weights that .*tuned were"):
        export_model(tmp_path / "tuned", tmp_path / "wrong", base=tmp_path / "base")
    assert not (tmp_path / "wrong").exists()
    with pytest.raises(InputError, match=r"tuned: holds adapters of another model; export them"):
        generate(tmp_path / "tuned", "text", 1, Sampling())
