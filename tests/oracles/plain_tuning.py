"""Tuning of a model of `transformers` by a plain loop of torch, one sample after the other."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from tests.jobs.command_line import columns
from tests.jobs.tuning_files import N_IDS, N_STEPS
from tests.oracles.in_float64 import in_float64, their_losses
from tests.oracles.plain_run import PlainRun
from torch import Tensor

from dynapipe_hpc.cli.main import main


def plain_losses(module: str, model: Any, run: PlainRun) -> Iterator[float]:
    """Losses of training with the optimizer of torch, one sample after the other."""
    decaying: list[Tensor] = []
    rest: list[Tensor] = []
    for name, weight in model.named_parameters():
        (rest if any(n in name for n in ("bias", "norm", "ln_")) else decaying).append(weight)
    groups: list[dict[str, Any]] = [{"params": decaying}, {"params": rest, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1)
    for run.n_done in range(N_STEPS):
        batch = run.batch()
        n_targets = sum(len(sample.targets) for sample in batch)
        samples = ((each.inputs, each.targets) for each in batch)
        losses = [their_losses(module, model, *sides, run.start_id) for sides in samples]
        loss = torch.cat(losses).sum() / n_targets
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        yield loss.item()


PROMPT = [5, 17, 3, 29]


def check_tuned_model(model: Any, module: str, folder: Path, exported_to: Path) -> None:
    """Tunes a model of this module of `transformers`, and compares it with the run in a folder."""
    with in_float64(module):
        run = PlainRun(folder / "run", folder / "corpus.h5")
        expected = list(plain_losses(module, model, run))
    (found,) = columns(folder / "run", "loss")
    assert found == pytest.approx(expected, rel=1e-9)
    assert main(["export", str(folder / "run"), "-o", str(exported_to)]) == 0
    kind = transformers.AutoModelForCausalLM
    if model.config.is_encoder_decoder:
        kind = transformers.AutoModelForSeq2SeqLM
    with in_float64(module):
        exported = kind.from_pretrained(exported_to)
        if hasattr(model.config, "num_experts_per_tok"):
            exported.set_experts_implementation("eager")
        assert exported.dtype == torch.float64
        torch.testing.assert_close(exported.state_dict(), model.state_dict(), rtol=1e-8, atol=1e-8)
        # The dataset's targets end with its last token, so that the export stops there, too.
        ids = model.generation_config.eos_token_id
        ends = [*(ids if isinstance(ids, list) else [ids]), N_IDS - 1]
        assert exported.generation_config.eos_token_id == ends
        model.generation_config.eos_token_id = ends
        assert likeliest_tokens(exported) == likeliest_tokens(model)


def likeliest_tokens(model: Any) -> list[int]:
    """Ids after a prompt, the likeliest each time."""
    ids = torch.tensor([PROMPT])
    found = model.generate(ids, do_sample=False, max_new_tokens=12, use_cache=False)
    tokens: list[int] = found[0].tolist()
    return tokens
