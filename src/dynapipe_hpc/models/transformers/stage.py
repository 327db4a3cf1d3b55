"""Decoders of `transformers` as torch modules: the layers of one pipeline stage."""

import json
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from dynapipe_hpc.architecture.blocks import LOGITS_AT_ONCE
from dynapipe_hpc.architecture.model_shape import ModelShape
from dynapipe_hpc.architecture.transformers import TransformersShape, first_line
from dynapipe_hpc.data.errors import InputError
from dynapipe_hpc.data.microbatch import Recompute
from dynapipe_hpc.models.batch import Batch
from dynapipe_hpc.models.family import StageOfFamily, UnsetWeights
from dynapipe_hpc.models.head import Vocabulary, linear_cross_entropy
from dynapipe_hpc.models.initialize import Deviation, gpt_deviation
from dynapipe_hpc.models.recompute import recomputed
from dynapipe_hpc.models.sharding.shards import Shards
from dynapipe_hpc.models.transformers.attention import (
    Attend,
    AttendInLayer,
    SdpaCalls,
    attend_within,
    attending_by,
    reached_attention,
)
from dynapipe_hpc.models.transformers.model import (
    LAYERS_KEY,
    META,
    BuiltModel,
    KeepFloat64,
    build_model,
    check_attention,
    head_alone,
    is_plain,
    lists_of_layers,
    materialize,
)


@dataclass(frozen=True, slots=True, eq=False)
class _Pass:
    """A forward pass."""

    activation: Tensor | None
    batch: Batch
    recompute: Recompute
    probed: TransformersShape | None = None


class TransformersStage(StageOfFamily):
    """Pipeline stage of a decoder of `transformers`, which computes everything but attention.

    Every stage calls the forward pass of the decoder, in which layers of other stages do nothing.
    So embeddings, positions and all other inputs of layers come from `transformers`, made once per
    micro-batch.
    """

    def build(self, shape: ModelShape, layers: range, shards: Shards) -> None:
        assert isinstance(shape, TransformersShape)  # noqa: S101 - types
        dtype = torch.empty(0).dtype
        self._keeping_float64: Callable[[], AbstractContextManager[Any]] = (
            KeepFloat64 if dtype == torch.float64 else nullcontext
        )
        with UnsetWeights(dtype, META), self._keeping_float64():
            model = build_model(shape, dtype)
        # Marker in place of a mask, for models that call torch's attention.
        self._mark = torch.empty(1, 1, 1, 1).zero_() if model.calls_sdpa else None
        self._attention: Callable[[], AbstractContextManager[Any]] = (
            nullcontext if self._mark is None else partial(SdpaCalls, self._mark)
        )
        self._layers = layers
        self.attend: AttendInLayer = attend_within
        self._current: _Pass | None = None
        # A tied head has a copy of the vectors of tokens.
        has_embedding = self.is_first or (self.is_last and shape.tied_head)
        model.hold(layers, embedding=has_embedding, head=self.is_last)
        materialize(model)
        for name, child in model.whole.named_children():
            self.add_module(name, child)
        held = {i: model.layers[i] for i in layers}
        calls = [partial(self._layer, i, held.get(i)) for i in range(len(model.layers))]
        model.replace_layers(calls)
        # In tuples, not as modules: the parts of these models already belong to the stage.
        self._model = (model,)
        try:
            self._head = (_Head(model, shape, shards),) if self.is_last else ()
            self._probe(shape)
        except InputError:
            raise
        except Exception as error:
            if torch.empty(0).is_meta:
                raise  # for estimates, whose message names another way
            raise InputError(
                f"a {shape.model_type} with these settings does not run: {type(error).__name__}: "
                f"{first_line(error)}; choose another model, or, if transformers alone cannot run "
                "it either, correct its config.json"
            ) from error

    @classmethod
    def layer_kinds(cls, shape: ModelShape) -> Sequence[tuple[ModelShape, float]]:
        assert isinstance(shape, TransformersShape)  # noqa: S101 - types
        values = json.loads(shape.settings)
        n, lists = values[LAYERS_KEY], lists_of_layers(shape.config.to_dict())
        # A layer's kind is the tuple of its entries in all settings that are lists over layers.
        kinds = Counter(zip(*lists.values(), strict=True))
        models = []
        for kind, count in kinds.items():
            one_kind = {key: [value] * n for key, value in zip(lists, kind, strict=True)}
            alike = shape.model_copy(update={"settings": json.dumps({**values, **one_kind})})
            models.append((alike, count / n))
        return models if len(kinds) > 1 else [(shape, 1.0)]

    def deviation(self, shape: ModelShape) -> Deviation:
        return gpt_deviation(shape.n_layers)

    def run(self, activation: Tensor | None, batch: Batch, recompute: Recompute) -> Tensor:
        current = _Pass(None if self.is_first else activation, batch, recompute)
        inputs = batch.tokens if activation is None else activation
        if inputs is None:
            raise ValueError("neither an activation was received nor tokens loaded")
        hidden = self._decoded(inputs, current)
        if not self._head:
            return hidden
        with self._keeping_float64():
            return self._head[0].losses(hidden, None if batch.labels is None else batch.labels.ids)

    @torch.no_grad()
    def _probe(self, shape: TransformersShape) -> None:
        """Refuses layers whose attention is not supported, before any weight is read."""
        ids = torch.zeros(1, 2, dtype=torch.int64, device=torch.empty(0).device)
        hidden = torch.empty(1, 2, shape.hidden_size).zero_()
        received = None if self.is_first else hidden
        current = _Pass(received, Batch((1, 2)), Recompute.NONE, probed=shape)
        self._decoded(ids if self.is_first else hidden, current)

    def _decoded(self, inputs: Tensor, current: _Pass) -> Tensor:
        positions = current.batch.positions
        if positions is None:
            positions = torch.arange(inputs.shape[1], device=inputs.device)
        name = "input_ids" if current.activation is None and self.is_first else "inputs_embeds"
        self._current = current
        try:
            with self._keeping_float64():
                output = self._model[0].decoder(
                    **{name: inputs},
                    position_ids=positions.unsqueeze(0),
                    attention_mask=self._mark,
                    use_cache=False,
                )
        except _StageEnd as end:
            return end.hidden
        finally:
            self._current = None
        hidden: Tensor = output.last_hidden_state
        return hidden

    def _layer(
        self, index: int, layer: nn.Module | None, hidden: Tensor, *args: Any, **kwargs: Any
    ) -> Tensor:
        """Hidden states after a layer; unchanged if another stage holds it."""
        current = self._current
        assert current is not None  # noqa: S101 - layers run inside `_decoded`
        if index == self._layers.start and current.activation is not None:
            hidden = current.activation  # the decoder may have changed its input
        if layer is not None:

            def run(attend: Attend, hidden: Tensor) -> Tensor:
                with self._keeping_float64(), self._attention(), attending_by(attend):
                    output = layer(hidden, *args, **kwargs)
                result: Tensor = output[0] if isinstance(output, tuple) else output
                return result

            if current.probed is None:
                alone = partial(run, partial(self.attend, current.batch, index))
                is_again = current.recompute is Recompute.FULL  # no other mode recomputes anything
                hidden = recomputed(alone, hidden) if is_again else alone(hidden)
            else:
                reached = reached_attention(partial(run, hidden=hidden))
                check_attention(self._model[0], index, reached, current.probed)
        is_end = index + 1 >= self._layers.stop and not self.is_last
        if is_end:
            raise _StageEnd(hidden)
        return hidden


class _StageEnd(Exception):  # noqa: N818 - no error
    """The last layer of a stage has run; what follows belongs to other stages."""

    def __init__(self, hidden: Tensor) -> None:
        super().__init__()
        self.hidden = hidden


class _Head:
    """Head of a model: logits as `transformers` computes them, and losses.

    Scaled or capped logits are computed for some tokens at a time, and recomputed in backward.
    """

    def __init__(self, model: BuiltModel, shape: TransformersShape, shards: Shards) -> None:
        self._alone = head_alone(model)
        self._vectors: nn.Linear = model.whole.lm_head
        self._vocabulary = Vocabulary(shape.vocab_size, shards)
        self._is_plain = self._vectors.bias is None and is_plain(self._alone)
        self._n_at_once = max(1, LOGITS_AT_ONCE // shape.vocab_size)

    def losses(self, hidden: Tensor, labels: Tensor | None) -> Tensor:
        """Cross entropies of predictions, of the shape of `labels`; logits without labels."""
        if labels is None:
            return self._logits(hidden)
        if self._is_plain:
            return linear_cross_entropy(hidden, self._vectors.weight, labels, self._vocabulary)
        flat, ids = hidden.flatten(0, -2), labels.flatten()
        chunks = zip(*(torch.split(each, self._n_at_once) for each in (ids, flat)), strict=True)
        losses = [recomputed(partial(self._losses, of_chunk), part) for of_chunk, part in chunks]
        return torch.cat(losses).view_as(labels)

    def _losses(self, ids: Tensor, hidden: Tensor) -> Tensor:
        logits = self._logits(hidden.unsqueeze(0)).squeeze(0)
        wide = torch.promote_types(logits.dtype, torch.float32)
        return functional.cross_entropy(logits.to(wide), ids, reduction="none")

    def _logits(self, hidden: Tensor) -> Tensor:
        logits: Tensor = self._alone(inputs_embeds=hidden, use_cache=False).logits
        return logits
