"""Mistakes in decoders of `transformers`, which are trained by their own layers."""

from tests.mutants.mutant import Mutant

SHAPE = ("tests/architecture/test_transformers.py",)
ATTENTION = ("tests/models/test_foreign_attention.py",)
STAGE = ("tests/models/test_transformers_stage.py",)
KINDS = ("tests/experiment/profile/test_layer_kinds.py",)
PARTS = ("tests/training/huggingface/test_decoder_parts.py",)
WAITS = "test_split_passes_leave_the_work_that_is_estimated_and_no_more_than_was_kept"
CONFIG = ("tests/experiment/test_any_decoder_config.py",)
FOLDER = ("tests/training/huggingface/test_any_decoder.py",)

ANY_DECODER = (
    Mutant(
        "architecture/transformers.py",
        "head = ends + (embedding if self.tied_head else 0)",
        "head = ends",
        "a tied head without the embedding's weights",
        SHAPE,
    ),
    Mutant(
        "architecture/transformers.py",
        "sum(rank * sum(shape) for",
        "sum(rank * shape[0] for",
        "adapters without their second matrix",
        SHAPE,
    ),
    Mutant(
        "architecture/transformers.py",
        "not in ROUTERS",
        'not in ("x",)',
        "adapters of routers",
        SHAPE,
    ),
    Mutant(
        "architecture/transformers.py",
        "zlib.crc32(self.settings.encode())",
        "0",
        "costs of models with other settings",
        (f"{SHAPE[0]}::test_costs_depend_on_settings",),
    ),
    Mutant(
        "architecture/transformers.py",
        "isinstance(window, int) and window < self.max_tokens",
        "isinstance(window, int) and window <= self.max_tokens",
        "windows that no sample is longer than",
        (f"{SHAPE[0]}::test_samples_are_not_cut_where_slices_could_not_attend_as_layers_do",),
    ),
    Mutant(
        "architecture/transformers.py",
        'settings.get("use_sliding_window", True)',
        "True",
        "windows that are switched off",
        (f"{SHAPE[0]}::test_windows_are_those_of_some_layers",),
    ),
    Mutant(
        "architecture/transformers.py",
        "not isinstance(kinds, list) or SLIDING in kinds",
        "isinstance(kinds, list) and SLIDING in kinds",
        "slices in layers that all have windows",
        SHAPE,
    ),
    Mutant(
        "architecture/transformers.py",
        'if cap := settings.get("attn_logit_softcapping"):',
        "if cap := None:",
        "slices in layers with soft caps",
        (f"{SHAPE[0]}::test_samples_are_not_cut_where_slices_could_not_attend_as_layers_do",),
    ),
    Mutant(
        "architecture/transformers.py",
        "n_outputs.get(JOINED, self.attention_size) - self.attention_size",
        "n_outputs.get(JOINED, 0)",
        "queries that are kept with keys and values",
        (f"{SHAPE[0]}::test_keys_and_values_are_as_wide_as_their_heads",),
    ),
    Mutant(
        "architecture/transformers.py",
        "        return self.cache_width\n",
        "        return 0\n",
        "keys and values of slices counted twice",
        (f"{SHAPE[0]}::test_keys_and_values_are_as_wide_as_their_heads",),
    ),
    Mutant(
        "models/foreign_attention.py",
        "distances >= (n_tokens if",
        "distances > (n_tokens if",
        "a window one key too wide",
        ATTENTION,
    ),
    Mutant(
        "models/foreign_attention.py",
        "window is not None and window >= longest",
        "window is not None and window >= longest - 1",
        "a window left out too early",
        ATTENTION,
    ),
    Mutant(
        "models/foreign_attention.py",
        "(cap * scores.tanh() + bias)",
        "(scores.tanh() + bias)",
        "soft caps without their factor",
        ATTENTION,
    ),
    Mutant(
        "models/foreign_attention.py",
        "_CONTEXT.set(context)",
        "_CONTEXT.set(WHOLE_ROWS)",
        "attention across documents",
        STAGE,
    ),
    Mutant(
        "models/foreign_attention.py",
        "isinstance(value, Tensor) or value",
        "isinstance(value, int) and value",
        "options that are left out silently",
        ATTENTION,
    ),
    Mutant(
        "models/foreign_attention.py",
        "(scaled(query, scale), key, value))\n    return",
        "(query, key, value))\n    return",
        "slices without the model's factor of scores",
        (
            "tests/models/test_transformers_stage.py"
            "::test_stages_compute_the_loss_and_gradients_of_a_plain_loop[granite]",
        ),
    ),
    Mutant(
        "models/transformers.py",
        "context = current.context.in_layer(index - self._layers.start)",
        "context = current.context",
        "layers that share the keys and values of slices",
        STAGE,
    ),
    Mutant(
        "models/transformers.py",
        "positions = current.context.positions",
        "positions = (d := current.context.documents) and d.positions",
        "rotary positions that begin anew in every slice",
        STAGE,
    ),
    Mutant(
        "models/transformers.py",
        "shape.max_tokens if self.has_kv_cache else 0",
        "0",
        "slices in layers with soft caps that settings leave out",
        (f"{FOLDER[0]}::test_a_soft_cap_that_settings_leave_out_is_refused",),
    ),
    Mutant(
        "models/foreign_model.py",
        "reached.window < max_sliced",
        "reached.window <= max_sliced",
        "windows refused that no sample is longer than",
        ("tests/models/test_foreign_model.py",),
    ),
    Mutant(
        "models/foreign_model.py",
        "if max_sliced and reached.cap is not None:",
        "if False:",
        "slices in layers with caps",
        ("tests/models/test_foreign_model.py",),
    ),
    Mutant(
        "models/transformers.py",
        "            hidden = current.activation  #",
        "            pass  #",
        "hidden states scaled once more on every stage",
        (
            "tests/models/test_transformers_stage.py"
            "::test_stages_compute_the_loss_and_gradients_of_a_plain_loop[granite]",
        ),
    ),
    Mutant(
        "models/transformers.py",
        "is_end = index + 1 >= self._layers.stop and not self.is_last",
        "is_end = False",
        "a norm that is not there",
        STAGE,
    ),
    Mutant(
        "models/transformers.py",
        "return recomputed(function, hidden)",
        "return function(hidden)",
        "nothing recomputed",
        (
            "tests/models/test_transformers_stage.py"
            "::test_gradients_of_all_linear_maps_wait_and_no_others",
        ),
    ),
    Mutant(
        "models/transformers.py",
        "self._vectors.bias is None and is_plain(self._alone)",
        "True",
        "logits without their cap or scale",
        STAGE,
    ),
    Mutant(
        "models/transformers.py",
        "        self._probe(shape)\n",
        "",
        "attention that is only refused in the first pass",
        (f"{FOLDER[0]}::test_models_that_need_more_are_refused_before_their_weights_are_read",),
    ),
    Mutant(
        "models/foreign_model.py",
        "return args[0].double()",
        "return func(*args)",
        "float64 rounded to float32",
        STAGE,
    ),
    Mutant(
        "models/foreign_model.py",
        "    _check_weights(found, shape)\n",
        "",
        "weights that the files do not have",
        (f"{FOLDER[0]}::test_weights_that_the_class_does_not_have_are_named",),
    ),
    Mutant(
        "models/foreign_model.py",
        "for i in kept}",
        "for i in range(len(self.layers))}",
        "layers of other stages",
        STAGE,
    ),
    Mutant(
        "training/huggingface/any_decoder.py",
        '("w1", "w3")',
        '("w3", "w1")',
        "gates of experts in place of values",
        (
            "tests/models/test_transformers_stage.py"
            "::test_stages_compute_the_loss_and_gradients_of_a_plain_loop[mixtral]",
        ),
    ),
    Mutant(
        "training/huggingface/read_rows.py",
        "i * n_rows + row",
        "i * n_rows",
        "experts read from their first row",
        (f"{FOLDER[0]}::test_a_block_of_a_stack_is_read_from_within_its_experts",),
    ),
    Mutant(
        "training/huggingface/write_tensors.py",
        "read(name, i, i + 1)[0, row :",
        "read(name, i, i + 1)[0, 0 :",
        "the first rows of every expert",
        (f"{FOLDER[0]}::test_experts_are_imported_and_exported_one_by_one",),
    ),
    Mutant(
        "training/huggingface/any_decoder.py",
        "or settings.flag(",
        "and settings.flag(",
        "tied heads",
        (f"{FOLDER[0]}::test_a_tied_head_may_be_in_the_files_as_a_copy",),
    ),
    Mutant(
        "training/huggingface/describe_model.py",
        "                    _check_layers(origin.shape)\n",
        "                    pass\n",
        "a model whose layers were not looked at",
        ("tests/cli/test_inspect_verb.py::test_layers_are_built_to_see_what_they_need",),
    ),
    Mutant(
        "training/huggingface/describe_model.py",
        "    n -= sum(",
        "    sum(",
        "tied weights counted twice",
        ("tests/cli/test_inspect_verb.py",),
    ),
    Mutant(
        "models/foreign_model.py",
        "own = {key: [value] * n for",
        "own = {key: lists[key] for",
        "layers of all kinds in every profile",
        KINDS,
    ),
    Mutant(
        "models/foreign_model.py",
        '        and not key.endswith("token_id")\n',
        "",
        "ids of tokens taken for kinds of layers",
        KINDS,
    ),
    Mutant(
        "experiment/profile/separate_layers.py",
        "share * costs[:n] for",
        "costs[:n] / len(kinds) for",
        "kinds of layers that count alike",
        KINDS,
    ),
    Mutant(
        "experiment/profile/separate_layers.py",
        "    mean[..., TRANSIENT] = np.max",
        "    mean[..., TRANSIENT] = np.mean",
        "transient memory of a mean layer",
        KINDS,
    ),
    Mutant(
        "models/foreign_attention.py",
        "mask is not self._mark or drops",
        "drops",
        "masks of models that are left out",
        ATTENTION,
    ),
    Mutant(
        "models/foreign_model.py",
        "if reached.window != window:",
        "if False:",
        "a window that only a mask has",
        ("tests/models/test_foreign_model.py",),
    ),
    Mutant(
        "models/foreign_model.py",
        "(output, None) if self._returns_tuples else output",
        "output",
        "layers that return no tuples",
        (
            "tests/models/test_transformers_stage.py"
            "::test_stages_compute_the_loss_and_gradients_of_a_plain_loop[falcon]",
        ),
    ),
    Mutant(
        "models/transformers.py",
        "nullcontext if self._mark is None else partial(SdpaCalls, self._mark)",
        "nullcontext",
        "attention of torch that is not replaced",
        (
            "tests/models/test_transformers_stage.py"
            "::test_stages_compute_the_loss_and_gradients_of_a_plain_loop[falcon]",
        ),
    ),
    Mutant(
        "experiment/checks.py",
        "if not config.model.has_own_layers and find_spec(config.model.family) is None:",
        "if False:",
        "a missing package that every rank finds out on its own",
        ("tests/experiment/test_any_decoder_config.py::test_a_missing_package_is_named",),
    ),
    Mutant(
        "experiment/config.py",
        "        if self.model.has_own_layers:\n            return self\n        family",
        "        return self\n        family",
        "keys that layers of a library do not follow",
        CONFIG,
    ),
    Mutant(
        "training/huggingface/any_decoder.py",
        '{"falcon": {"max_position_embeddings": 2048}}',
        "{}",
        "settings that files leave out",
        (f"{FOLDER[0]}::test_settings_of_version_4_mean_what_they_mean_to_transformers",),
    ),
    Mutant(
        "training/huggingface/decoder_parts.py",
        "mixed = torch.empty_like(query)",
        "mixed = query.new_empty(query.shape)",
        "attention whose result is copied",
        PARTS,
    ),
    Mutant(
        "training/huggingface/decoder_parts.py",
        "inputs if weight.requires_grad else weight",
        "inputs",
        "inputs of frozen experts that are kept",
        (
            "tests/training/huggingface/test_decoder_parts.py"
            "::test_layers_keep_what_is_estimated[qwen3_moe-adapters]",
        ),
    ),
    Mutant(
        "training/huggingface/decoder_parts.py",
        "+ calls.expert_flops",
        "",
        "operations of experts",
        (
            "tests/training/huggingface/test_decoder_parts.py"
            "::test_experts_compute_for_the_tokens_that_choose_them",
        ),
    ),
    Mutant(
        "planner/cost/tokens.py",
        "np.where(lengths > window, square, 0)",
        "square",
        "masks of rows that fit into windows",
        ("tests/planner/cost/test_tokens.py",),
    ),
    Mutant(
        "planner/cost/tokens.py",
        "np.maximum(lengths - window, 0) ** 2",
        "np.maximum(lengths - window, 0)",
        "pairs that a window keeps apart",
        ("tests/planner/cost/test_tokens.py",),
    ),
    Mutant(
        "architecture/transformers.py",
        '            and "norm" not in module\n',
        "",
        "norms of heads taken for linear maps",
        (f"{SHAPE[0]}::test_weights_are_counted_by_hand",),
    ),
    Mutant(
        "architecture/transformers.py",
        "        if self.lora:\n            return self._adapter_numbers()\n        return sum(",
        "        return sum(",
        "gradients of frozen weights that wait",
        (f"{SHAPE[0]}::test_gradients_of_linear_maps_or_their_adapters_may_wait",),
    ),
    Mutant(
        "architecture/transformers.py",
        "{LAYER} if recompute is Recompute.NONE else ()",
        "{LAYER}",
        "gradients of recomputed layers that wait",
        (f"{SHAPE[0]}::test_gradients_of_linear_maps_or_their_adapters_may_wait",),
    ),
    Mutant(
        "models/foreign_model.py",
        "setattr(module, name, ours)",
        "pass",
        "linear maps whose gradients never wait",
        (f"{STAGE[0]}::test_gradients_of_all_linear_maps_wait_and_no_others",),
    ),
    Mutant(
        "training/huggingface/decoder_parts.py",
        "deferrable=Amount(2 * shape",
        "deferrable=Amount(shape",
        "half of the work that waits",
        (f"{PARTS[0]}::{WAITS}",),
    ),
    Mutant(
        "planner/cost/layer_estimates.py",
        "(deferred.per_own + deferred.per_source) // 2",
        "deferred.per_own // 2",
        "gradients of keys and values of the other side",
        ("tests/planner/cost/test_analytic.py",),
    ),
    Mutant(
        "planner/make_plans.py",
        "        check_halves(costs, config, shape, cluster.n_shards)\n",
        "",
        "halves of backward passes that take no time",
        CONFIG,
    ),
    Mutant(
        "experiment/config.py",
        "if splits and isinstance(model, TransformersShape) and model.has_relu:",
        "if False:",
        "more that waits than was kept",
        CONFIG,
    ),
    Mutant(
        "models/initialize.py",
        "len(values) - GROUP), step)",
        "len(values)), step)",
        "blocks of random numbers that torch draws in another way",
        (
            "tests/models/test_initialize.py"
            "::test_no_block_is_shorter_than_what_torch_draws_in_one_step",
        ),
    ),
)
