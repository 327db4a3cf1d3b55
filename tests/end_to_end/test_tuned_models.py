"""Models of `transformers`, tuned by real runs and by a plain loop of torch, and compared."""

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from tests.examples.foreign_models import saved_model
from tests.jobs.command_line import call_all, columns
from tests.jobs.tuning_files import N_IDS, write_tuning_files
from tests.oracles.in_float64 import in_float64
from tests.oracles.plain_run import PlainRun
from tests.oracles.plain_tuning import plain_losses

from dynapipe_hpc.cli.main import main

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

TUNED = (
    *("gpt2", "t5", "t5-1.1", "t5-1.1-v5-tied", "mt5"),
    *("llama", "llama-yarn", "mistral", "qwen2", "qwen3"),
)
PROMPT = [5, 17, 3, 29]


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder per model with what it was before, and a run that tuned it; one job for all."""
    folder = tmp_path_factory.mktemp("tuned")
    for name in TUNED:
        (folder / name).mkdir()
        theirs_of(name, folder)
        write_tuning_files(folder / name, f"{name}/")
    runs = [("run", f"{name}/config.toml", "-o", f"{name}/run") for name in TUNED]
    told = call_all(folder, 4, *runs)
    for name in TUNED:
        assert f"{name}/run: begins with the weights of {name}/theirs (" in told
    return folder


def theirs_of(name: str, folder: Path) -> Any:
    """A model of `transformers` that computes in float64, as it is in its folder."""
    with in_float64(name.partition("-")[0]):
        return saved_model(name, folder / name / "theirs", torch.float64)


@pytest.mark.parametrize("name", TUNED)
def test_tuning_gives_the_losses_and_the_model_of_a_plain_loop(
    name: str, tuned: Path, tmp_path: Path
) -> None:
    model, folder = theirs_of(name, tmp_path), tuned / name
    with in_float64(model.config.model_type):
        expected = list(plain_losses(model, PlainRun(folder / "run", folder / "corpus.h5")))
    (found,) = columns(folder / "run", "loss")
    assert found == pytest.approx(expected, rel=1e-9)

    assert main(["export", str(folder / "run"), "-o", str(folder / "tuned")]) == 0
    kind = transformers.AutoModelForCausalLM
    if model.config.is_encoder_decoder:
        kind = transformers.AutoModelForSeq2SeqLM
    with in_float64(model.config.model_type):
        exported = kind.from_pretrained(folder / "tuned")
        assert exported.dtype == torch.float64
        torch.testing.assert_close(exported.state_dict(), model.state_dict(), rtol=1e-8, atol=1e-8)
        # The dataset's targets end with its last token, so that the export stops there, too.
        end_ids = exported.generation_config.eos_token_id
        assert end_ids == [*ends_of(model), N_IDS - 1]
        model.generation_config.eos_token_id = end_ids
        assert generated(exported) == generated(model)


def ends_of(model: Any) -> list[int]:
    """Ids after which a model of `transformers` writes nothing."""
    ids = model.generation_config.eos_token_id
    return ids if isinstance(ids, list) else [ids]


def generated(model: Any) -> list[int]:
    """Ids after a prompt, the likeliest each time."""
    ids = torch.tensor([PROMPT])
    found = model.generate(ids, do_sample=False, max_new_tokens=12, use_cache=False)
    tokens: list[int] = found[0].tolist()
    return tokens
