"""Small random decoders of `transformers` for the family that runs its layers."""

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import torch
import transformers
from tests.examples.foreign_models import N_IDS
from tests.examples.training_case import START_ID, RandomTokens, run_stage
from tests.oracles.in_float64 import their_losses
from torch import Tensor, nn

from dynapipe_hpc.architecture.model_shape import ModelShape
from dynapipe_hpc.architecture.placement import Placement
from dynapipe_hpc.architecture.transformers import TransformersShape
from dynapipe_hpc.data.microbatch import MicroBatch, Recompute
from dynapipe_hpc.data.sample import Sample
from dynapipe_hpc.models.batch import IterationTokens
from dynapipe_hpc.models.deferred_weights import DeferredWeights, deferring
from dynapipe_hpc.models.family import StageOfFamily, family_of
from dynapipe_hpc.training.checkpoint.parts import whole_parts
from dynapipe_hpc.training.huggingface.origin import Origin, find_origin
from dynapipe_hpc.training.huggingface.read_weights import open_weights
from dynapipe_hpc.training.module_stage import SlicedSamples

WINDOW = 6
"""Tokens that layers with a window see, far fewer than samples have."""
_SIZES = {
    "vocab_size": N_IDS,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_ROPE = {"rope_type": "default", "rope_theta": 50.0}


class Decoder(NamedTuple):
    name: str
    settings: Mapping[str, Any]
    model_type: str | None = None
    config: str | None = None

    @property
    def module(self) -> str:
        return self.model_type or self.name.lower()


DECODERS: Mapping[str, Decoder] = {
    "llama": Decoder("Llama", {"rope_parameters": _ROPE}),
    # Windows in every second layer, and soft caps of scores and logits.
    "gemma2": Decoder(
        "Gemma2",
        {
            "head_dim": 6,
            "sliding_window": WINDOW,
            "query_pre_attn_scalar": 12,
            "attn_logit_softcapping": 2.0,
            "final_logit_softcapping": 3.0,
        },
    ),
    "gemma3": Decoder(
        "Gemma3",
        {
            "head_dim": 6,
            "sliding_window": WINDOW,
            "layer_types": ["sliding_attention"] * 2 + ["full_attention", "sliding_attention"],
        },
        config="Gemma3TextConfig",
    ),
    "phi3": Decoder("Phi3", {"rope_parameters": _ROPE}),
    "olmo2": Decoder("Olmo2", {"rope_parameters": _ROPE}),
    "granite": Decoder(
        "Granite",
        {
            "embedding_multiplier": 3.0,
            "logits_scaling": 2.0,
            "residual_multiplier": 0.5,
            "attention_multiplier": 0.3,
            "rope_parameters": _ROPE,
        },
    ),
    # Every second layer has no positions.
    "smollm3": Decoder("SmolLM3", {"no_rope_layers": [1, 0, 1, 0], "rope_parameters": _ROPE}),
    "qwen3_moe": Decoder(
        "Qwen3Moe",
        {
            "head_dim": 6,
            "num_experts": 5,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 12,
            "norm_topk_prob": True,
        },
        model_type="qwen3_moe",
    ),
    "mixtral": Decoder("Mixtral", {"num_local_experts": 4, "num_experts_per_tok": 2}),
    # Calls torch's attention itself, and its layers return tuples.
    "falcon": Decoder(
        "Falcon", {"new_decoder_architecture": True, "num_kv_heads": 2, "rope_parameters": _ROPE}
    ),
    "starcoder2": Decoder("Starcoder2", {"sliding_window": WINDOW, "rope_parameters": _ROPE}),
    # Norms with an axis of heads.
    "cohere": Decoder("Cohere", {"use_qk_norm": True, "rope_parameters": _ROPE}),
    # The head has a bias, half of each head is turned, and settings name rates of dropout.
    "phi": Decoder(
        "Phi",
        {"resid_pdrop": 0.5, "embd_pdrop": 0.5, "attention_dropout": 0.5, "rope_parameters": _ROPE},
    ),
}
"""Types of models, by name."""


def random_decoder(name: str, **settings: Any) -> Any:
    """A model of a type with weights far from initial ones, in float64 throughout."""
    kind = DECODERS[name]
    values = deepcopy({**_SIZES, **kind.settings, **settings})  # classes change their arguments
    config = getattr(transformers, kind.config or f"{kind.name}Config")(**values)
    model = getattr(transformers, f"{kind.name}ForCausalLM")(config).double().eval()
    if hasattr(config, "num_experts_per_tok"):
        model.set_experts_implementation("eager")  # that of float64
    draw_weights(model)
    return model


def draw_weights(model: nn.Module) -> None:
    """Draws weights far from initial ones."""
    generator = torch.Generator().manual_seed(5)
    for weight in dict.fromkeys(model.parameters()):
        nn.init.normal_(weight, std=0.3, generator=generator)


def saved_decoder(name: str, folder: Path, **settings: Any) -> Any:
    model = random_decoder(name, **settings)
    model.save_pretrained(folder)
    return model


def origin_of(folder: Path) -> tuple[Origin, TransformersShape]:
    """The model of a folder, for the family that runs layers of `transformers`."""
    origin = find_origin(folder, "transformers")
    assert isinstance(origin.shape, TransformersShape)
    return origin, origin.shape


def plain_losses(module: str, model: Any, labels: list[int]) -> Tensor:
    """Losses of the tokens of a row that a model, of this module of theirs, reads alone."""
    return their_losses(module, model, [], labels, START_ID)


def plain_loss(module: str, model: Any) -> float:
    """Loss of `SAMPLES`, each alone in a row; weights get its gradients."""
    loss = torch.zeros((), dtype=torch.float64)
    for sample in SAMPLES:
        inputs, targets, *_ = TOKENS.read(sample)
        losses = their_losses(module, model, inputs.tolist(), targets.tolist(), START_ID)
        loss = loss + WEIGHTS[sample.sample_id] * losses.sum()
    torch.autograd.backward(loss)
    return loss.item()


def loaded_stages(
    origin: Origin, n_stages: int, dtype: torch.dtype = torch.float64
) -> list[StageOfFamily]:
    """The stages of a model, each with its own part of the weights."""
    shape, stages = origin.shape, []
    for i, layers in enumerate(Placement.equal_shares(shape.n_all_layers, n_stages).layers):
        last = i == n_stages - 1
        stage = family_of(shape)(shape, layers, first=i == 0, last=last, dtype=dtype)
        open_weights(origin, shape).read(whole_parts(stage))
        stages.append(stage)
    return stages


def gradients(pipeline: Sequence[StageOfFamily]) -> dict[str, Tensor]:
    """Gradients by name; those of copies of a tied weight are added up."""
    found: dict[str, Tensor] = {}
    for stage in pipeline:
        for name, weight in stage.named_parameters():
            gradient = torch.zeros_like(weight) if weight.grad is None else weight.grad
            found[name] = found[name] + gradient if name in found else gradient
    return found


def outcome(
    pipeline: Sequence[StageOfFamily],
    microbatches: Sequence[MicroBatch],
    mode: Recompute = Recompute.NONE,
    *,
    splits: bool = False,
) -> tuple[float, dict[str, Tensor]]:
    """Loss and gradients of micro-batches, whose activations cross stages as numbers."""
    queue = DeferredWeights() if splits else None
    loss, waiting = 0.0, []
    caches = [SlicedSamples() for _ in pipeline]
    for index, microbatch in enumerate(microbatches):
        passed: list[tuple[Tensor | None, Tensor]] = []
        activation = None
        for stage, sliced in zip(pipeline, caches, strict=True):
            if activation is not None:
                activation = activation.detach().requires_grad_()
            kv_cache = sliced.load(index, microbatch)
            batch = replace(stage.collate(microbatch, TOKENS), kv_cache=kv_cache)
            with deferring(queue):
                passed.append((activation, run_stage(stage, activation, batch, mode)))
            activation = passed[-1][1]
        loss += passed[-1][1].item()
        if microbatch.slice:
            waiting.append(passed)
        else:
            _go_back(passed)
    while waiting:
        _go_back(waiting.pop())
    if queue is not None:
        queue.accumulate()
    return loss, gradients(pipeline)


def _go_back(passed: list[tuple[Tensor | None, Tensor]]) -> None:
    """Runs the backward passes of what each stage has received and sent."""
    gradient = None
    for received, sent in reversed(passed):
        sent.backward(gradient)  # type: ignore[no-untyped-call]
        gradient = None if received is None else received.grad


WIDTH, HEAD_SIZE, WIDE_WINDOW = 128, 16, 48
WIDE = {
    "hidden_size": WIDTH,
    "intermediate_size": 256,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "max_position_embeddings": 1024,
}
"""Sizes at which the few numbers that norms and scores keep per token do not matter."""


def wide_decoder(name: str, folder: Path, **settings: Any) -> TransformersShape:
    """A model of a type, of these sizes; its folder is written."""
    known = DECODERS[name].settings
    own = {"head_dim": HEAD_SIZE, "sliding_window": WIDE_WINDOW, "moe_intermediate_size": 64}
    more = {key: value for key, value in own.items() if key in known}
    saved_decoder(name, folder, **{**WIDE, **more, **settings})
    return origin_of(folder)[1]


StageT = TypeVar("StageT", bound=StageOfFamily)

SAMPLES = [Sample(1, 9, 4), Sample(2, 0, 1), Sample(3, 0, 20), Sample(4, 3, 10), Sample(5, 2, 3)]
WEIGHTS = {1: 0.5, 2: 2.0, 3: 0.125, 4: 0.25, 5: 1.0}
TOKENS = IterationTokens({s.sample_id: s for s in SAMPLES}, WEIGHTS, RandomTokens(), START_ID)


def stages_of(
    kind: type[StageT], shape: ModelShape, n_stages: int, dtype: torch.dtype = torch.float64
) -> list[StageT]:
    """A model whose weights, drawn in float64, are large enough to show every mistake."""
    pipeline = []
    for i, layers in enumerate(Placement.equal_shares(shape.n_all_layers, n_stages).layers):
        last = i == n_stages - 1
        stage = kind(shape, layers, first=i == 0, last=last, dtype=torch.float64)
        for name, weight in stage.named_parameters():
            seed = sum(name.encode())
            torch.nn.init.normal_(weight, std=0.5, generator=torch.manual_seed(seed))
        pipeline.append(stage.to(dtype))
    return pipeline


def run(
    pipeline: Sequence[StageOfFamily],
    microbatch: MicroBatch,
    mode: Recompute = Recompute.NONE,
    tokens: IterationTokens = TOKENS,
) -> Tensor:
    """The loss, or the activation if the last stage is missing."""
    activation = None
    for stage in pipeline:
        activation = run_stage(stage, activation, stage.collate(microbatch, tokens), mode)
    assert activation is not None
    return activation
