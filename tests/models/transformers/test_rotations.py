"""Rotary positions that depend on the longest sample of a micro-batch, if it is long."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.examples.any_decoders import SAMPLES, TOKENS, origin_of, plain_losses, saved_decoder
from tests.examples.training_case import START_ID, packed, padded
from tests.oracles.in_float64 import in_float64

from dynapipe_hpc.data.errors import InputError
from dynapipe_hpc.data.microbatch import Recompute
from dynapipe_hpc.experiment.load import sizes_of_origin
from dynapipe_hpc.models.transformers.stage import TransformersStage
from dynapipe_hpc.training.checkpoint.parts import whole_parts
from dynapipe_hpc.training.huggingface.read_weights import open_weights

LONGEST = max(sample.tokens for sample in SAMPLES)


def long_rope(original: int) -> dict[str, Any]:
    rope = {"rope_type": "longrope", "rope_theta": 50.0, "long_factor": [2.0, 6.0]}
    return {
        "original_max_position_embeddings": original,
        "rope_parameters": {**rope, "short_factor": [1.0, 1.5]},
    }


DYNAMIC = {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 50.0, "factor": 4.0}}


@pytest.mark.parametrize(
    ("name", "settings"),
    [("phi3", long_rope(LONGEST)), ("llama", DYNAMIC)],
    ids=["longrope", "dynamic"],
)
def test_losses_are_those_of_a_plain_loop(
    name: str, settings: dict[str, Any], tmp_path: Path
) -> None:
    with in_float64(name):
        model = saved_decoder(name, tmp_path, **settings)
    origin, shape = origin_of(tmp_path)
    shape = shape.model_copy(update={"max_tokens": LONGEST})
    stage = TransformersStage(shape, range(4), first=True, last=True, dtype=torch.float64)
    open_weights(origin, shape).read(whole_parts(stage))
    together = packed(SAMPLES)
    found = stage.run(None, stage.collate(together, TOKENS), Recompute.NONE)[0]
    for sample, begin in zip(SAMPLES, together.offsets, strict=False):
        inputs, targets, *_ = TOKENS.read(sample)
        labels = [*inputs.tolist(), *targets.tolist()]
        expected = plain_losses(name, model, [START_ID, *labels[:-1]], labels)
        own = found[begin : begin + sample.tokens]
        torch.testing.assert_close(own, expected, rtol=1e-10, atol=1e-10)
        alone = stage.run(None, stage.collate(padded([sample]), TOKENS), Recompute.NONE)[0]
        torch.testing.assert_close(alone, expected, rtol=1e-10, atol=1e-10)


def test_longer_rows_than_short_factors_are_for_are_refused(tmp_path: Path) -> None:
    with in_float64("phi3"):
        saved_decoder("phi3", tmp_path, **long_rope(16))
    assert origin_of(tmp_path)[1].max_tokens == 16
    model = {"init_from": str(tmp_path), "family": "transformers", "max_tokens": 17}
    message = r"at most 16 \(original_max_position_embeddings\), as a longer .*longrope\), not 17"
    with pytest.raises(InputError, match=message):
        sizes_of_origin(model)
    assert sizes_of_origin({**model, "max_tokens": 16}) is not None


def test_the_default_of_a_class_is_read_where_the_file_has_none(tmp_path: Path) -> None:
    with in_float64("phi3"):
        saved_decoder("phi3", tmp_path, **long_rope(16), max_position_embeddings=8192)
    path = tmp_path / "config.json"
    values = json.loads(path.read_text())
    del values["original_max_position_embeddings"]
    path.write_text(json.dumps(values))
    _, shape = origin_of(tmp_path)
    TransformersStage(shape, range(1), first=True, last=False)  # as short as the table says
    longer = shape.model_copy(update={"max_tokens": 4097})
    with pytest.raises(InputError, match=r"up to 4096 tokens, and model.max_tokens is 4097; enter"):
        TransformersStage(longer, range(1), first=True, last=False)
