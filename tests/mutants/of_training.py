"""Mistakes in losses, optimizers, checkpoints, profiles and the memory that is counted."""

from tests.mutants.mutant import Mutant
from tests.mutants.pipelines import PIPELINE, T5_PIPELINE

RATE = ("tests/training/test_learning_rate.py",)
SCHEDULES = ("tests/training/test_schedules.py",)
LOSS = ("tests/training/test_loss.py",)
RUN_FIRST = ("tests/experiment/run/test_largest_first.py",)
ADAFACTOR = ("tests/training/test_adafactor.py",)
UPDATE_RULES = ("tests/contract/test_update_rules.py",)
OPTIMIZER = ("tests/training/test_optimizer.py",)
ADAMW = ("tests/training/test_adamw.py",)
FLAT = ("tests/training/test_flat_parameters.py",)
STAGE = ("tests/training/test_module_stage.py",)
SPLIT = ("tests/training/test_split_backward_stage.py",)
WAITS = (f"{SPLIT[0]}::test_what_waits_is_no_more_than_what_the_forward_pass_kept",)
SUMS = ("tests/training/test_overlapped_reduce.py",)
CHECKPOINT = ("tests/training/test_checkpoint.py",)
FLOAT16 = "::test_a_narrower_type_trains_alike[whole-gpt-torch.float16]"
PRECISION = (f"tests/end_to_end/test_precision.py{FLOAT16}",)
PROFILE = ("tests/experiment/profile/test_profile.py",)
FREED = ("tests/job/test_freed_memory.py",)
HALVES = ("tests/experiment/profile/test_halves.py",)
SPLIT_PASSES = ("tests/experiment/test_split_passes.py",)
PROFILE_FILE = ("tests/planner/cost/table/test_profile_file.py",)

LORA_FACTS = ("tests/experiment/run/test_facts_of_adapters.py",)
MERGED = ("tests/training/huggingface/test_merged_blocks.py",)
LORA_EXPORT = ("tests/training/huggingface/test_export_adapters.py",)

TRAINING = (
    # loss
    Mutant("training/loss.py", "1 / (len(samples) * counts[s.sample_id])", "1 / len(samples)",
           "long targets count more", LOSS),
    Mutant("training/loss.py", "1 / (len(totals) * totals[s.task_id])", "1 / totals[s.task_id]",
           "the loss grows with the number of tasks", LOSS),
    Mutant("training/loss.py", "total = sum(counts[s.sample_id] for s in samples)",
           "total = sum(s.tokens for s in samples)", "inputs count", LOSS),
    # optimizer
    Mutant("training/learning_rate.py", "(step + 1) / config.warmup", "step / config.warmup",
           "the first step has no rate", OPTIMIZER),
    Mutant("training/learning_rate.py", "config.decay_iterations or config.n_iterations",
           "config.n_iterations", "the decay is as long as training", RATE),
    Mutant("training/learning_rate.py", "(min(1.0, done / length))", "(done / length)",
           "the rate rises again after its decay", RATE),
    Mutant("training/learning_rate.py", "lowest + (1 - lowest) * DECAYS", "lowest + DECAYS",
           "more than the highest rate", OPTIMIZER),
    Mutant("training/learning_rate.py", "max(0, step + 1 - (end - length))",
           "max(0, step + 1 - config.warmup_iterations)", "no plateau before the decay", SCHEDULES),
    Mutant("training/learning_rate.py", "lambda progress: 1 - progress",
           "lambda progress: 1 - progress**2", "a linear decay is a parabola", SCHEDULES),
    Mutant("training/optimizer.py", ".clamp(max=1)", "", "small gradients grow", OPTIMIZER),
    Mutant("training/optimizer.py", "self._config.clip_norm or math.inf", "self._config.clip_norm",
           "no limit is a limit of 0", OPTIMIZER),
    Mutant("training/adamw.py", "= self._config.betas", "= self._config.betas[::-1]",
           "averages swapped", OPTIMIZER),
    Mutant("training/adamw.py", "EPSILON = 1e-8", "EPSILON = 1e-6",
           "another epsilon", OPTIMIZER),
    Mutant("training/adamw.py", 'decay if self._config.decay == "all" else 0.0', "decay",
           "norms decay", OPTIMIZER),
    Mutant("training/adamw.py", 'decay if self._config.decay == "all" else 0.0', "0.0",
           "norms never decay", OPTIMIZER),
    Mutant("training/flat_parameters.py", ' and "bias" not in name', "",
           "relative biases decay", OPTIMIZER),
    Mutant("training/optimizer.py", "self.parameters.gradients.zero_()", "pass",
           "gradients stay", OPTIMIZER),
    Mutant("training/optimizer.py", "self._copies.clear_gradients()", "pass",
           "gradients of copies stay", T5_PIPELINE),
    Mutant("training/optimizer.py", "        self._copies.collect_gradients()\n", "",
           "gradients of copies are lost", T5_PIPELINE),
    Mutant("training/optimizer.py", "        self._copies.spread_weights()\n", "",
           "copies keep their weights", T5_PIPELINE),
    Mutant("training/optimizer.py", "self._n_steps += 1", "pass", "the rate stays", OPTIMIZER),
    Mutant("training/gradient_norm.py", "if shard == 0:", "if True:",
           "the norm counts what all shards hold on each", PIPELINE),
    Mutant("training/gradient_norm.py", "    collectives.sum_within_replica(total)\n", "",
           "every stage has its own norm", PIPELINE),
    Mutant("training/optimizer.py", "        norm /= self.loss_scale.value\n", "",
           "the norm is scaled", OPTIMIZER),
    Mutant("training/optimizer.py", "(max=1) / self.loss_scale.value", "(max=1)",
           "gradients stay scaled", OPTIMIZER),
    Mutant("training/optimizer.py", "(~norm.isfinite())", "norm.isnan()",
           "an overflow does not skip the step", OPTIMIZER),
    Mutant("training/adamw.py", "[second],", "[first],", "one moment is both", ADAMW),
    Mutant("training/adamw.py", "found_inf=skips", "found_inf=None", "no update is skipped", ADAMW),
    Mutant("training/optimizer.py", "self._rule.n_updates = counters.n_updates", "pass",
           "averages are corrected as at the start", CHECKPOINT),
    Mutant("training/optimizer.py", "self._n_steps = counters.n_steps", "pass",
           "the schedule starts again", CHECKPOINT),
    Mutant("training/flat_parameters.py", "wide = torch.promote_types(first.dtype, torch.float32)",
           "wide = first.dtype", "gradients are added up in 16 bits", FLAT),
    Mutant("training/loss_scale.py", "self.value /= FACTOR", "pass", "the scale stays", OPTIMIZER),
    Mutant("training/module_stage.py", "self._optimizer.loss_scale.value)", "1.0)",
           "losses are not scaled", PRECISION),
    Mutant("training/module_stage.py", "self._loss.zero_()", "pass", "the loss adds up", STAGE),
    Mutant("training/overlapped_reduce.py", "self._collectives = collectives",
           "self._collectives, self._own = collectives, own_parameters",
           "hooks and parameters keep each other", SUMS),
    Mutant("training/tied_copies.py", "copy.gradient.copy_(room)", "pass",
           "gradients of small copies are lost", T5_PIPELINE),
    Mutant("training/tied_copies.py", "self._buffer[collectives.shard]", "self._buffer[0]",
           "shards share room", T5_PIPELINE),
    Mutant("training/tied_copies.py",
           "weights to all copies.\"\"\"\n        self._buffer.zero_()\n", "weights.\"\"\"\n",
           "of tied copies the sum of gradients is spread with the weights",
           ("tests/training/test_tied_copies.py",)),
    Mutant("training/overlapped_reduce.py", "lambda bucket: not bucket.missing", "lambda _: True",
           "sums start before gradients are there", SUMS),
    Mutant("training/overlapped_reduce.py", "if any(parameter is other for other in tied):",
           "if False:",
           "a tied weight is summed before other stages have added", SUMS),
    Mutant("training/checkpoint/shard_boxes.py", "(split.n_shards - 1) + split.shard * width",
           "(split.n_shards - 1) + width", "shards lie on each other", CHECKPOINT),
    Mutant("training/checkpoint/boxes.py", "min(a + n, b + m) - start", "min(n, m)",
           "what boxes have in common is too large", CHECKPOINT),
    Mutant("training/checkpoint/read_parts.py", "start - offsets[dimension]", "start",
           "a block is read from the start of its tensor", CHECKPOINT),
    Mutant("training/checkpoint/write_parts.py", "values.shape), start])", "values.shape), 0])",
           "all blocks are said to begin a file", CHECKPOINT),
    # split backward passes
    Mutant("training/overlapped_reduce.py", "bucket.matrices)\n        self._start_complete()",
           "bucket.matrices)", "sums wait for gradients that do not come", SUMS),
    Mutant("training/module_stage.py", " if deferred is None else deferred.weights", "",
           "sums wait for the first half of a split pass",
           ("tests/training/test_split_backward_stage.py"
            "::test_sums_over_replicas_start_as_soon_as_no_gradient_is_missing",)),
    Mutant("training/module_stage.py", "for tensor in self._deferred[index].kept:",
           "for tensor in ():", "what waits is not counted", WAITS),
    Mutant("training/module_stage.py", "self._deferred.pop(index).accumulate()",
           "self._deferred.pop(next(iter(self._deferred))).accumulate()",
           "W is always of the micro-batch that has waited longest",
           ("tests/training/test_split_backward_stage.py"
            "::test_every_second_half_adds_what_its_own_micro_batch_has_left",)),
    Mutant("training/module_stage.py", "self._deferred.pop(index).accumulate()",
           "self._deferred.pop(index)", "W does nothing", SPLIT),
    Mutant("training/module_stage.py",
           "self._deferred.pop(index).accumulate()\n        self._memory.release(index)",
           "self._deferred.pop(index).accumulate()", "what W has used still counts", WAITS),
    # memory that is counted
    Mutant("training/activation_memory.py", "if address in kept or address in self._weights:",
           "if address in self._weights:", "a storage counts twice", STAGE),
    Mutant("training/activation_memory.py", "if address in kept or address in self._weights:",
           "if address in kept:", "weights count", STAGE),
    Mutant("training/activation_memory.py", "self.live_bytes -= sum(", "sum(",
           "nothing is freed", STAGE),
    # profiles of packed rows
    Mutant("experiment/profile/grid.py", "tuple(n_before + i for", "tuple(i for",
           "packed pairs are those of padded rows, which are a token shorter",
           ("tests/experiment/profile/test_profile_t5.py",)),
    Mutant("experiment/profile/bench.py", "is_packed = layout is Layout.PACKED",
           "is_packed = False",
           "what is measured as packed rows is padded", PROFILE),
    Mutant("experiment/profile/layer_profiles.py", "kind, mode.layout.text)", "kind)",
           "packed rows replace padded ones in a table", PROFILE),
    Mutant("planner/cost/table/checksum.py", "if key.layout == PADDED:", "if False:",
           "tables without layouts have another checksum", PROFILE_FILE),
    Mutant("planner/cost/table/profile_file.py", '{"layout": PADDED, **_plain(group)}',
           "_plain(group)", "tables without layouts cannot be read", PROFILE_FILE),
    # profiles of split backward passes
    Mutant("job/freed_memory.py", "set_parameter(_MMAP_MAX, 0)", "set_parameter(_MMAP_MAX, 9)",
           "large tensors are mapped anew in every pass", FREED),
    Mutant("job/freed_memory.py", "and set_parameter(_TRIM_THRESHOLD, _NEVER)", "",
           "what is free at the end of the heap is returned in every pass", FREED),
    Mutant("experiment/profile/stack.py", "if not self._shape.n_layers:", "if False:",
           "embedding and head are run twice",
           ("tests/experiment/profile/test_halves.py"
            "::test_only_stacks_with_layers_run_twice_and_only_where_something_is_deferred",)),
    Mutant("experiment/profile/stack.py", "received[i][0], split_backward=split_backward",
           "received[i][0], split_backward=False and split_backward",
           "the first half is a whole pass", HALVES),
    Mutant("experiment/profile/stack.py", "CPU_IN_FLIGHT if self._device == CPU else 1", "1",
           "caches hold all of the micro-batch that is measured", HALVES),
    Mutant("experiment/profile/stack.py", "took_s / len(in_flight)", "took_s",
           "two passes are taken for one", HALVES),
    Mutant("experiment/profile/rounds.py",
           "        halves[..., :1] += by_rank[..., 2:3] - by_rank[..., :1]\n", "",
           "what splitting adds to forward passes is lost", HALVES),
    Mutant("experiment/profile/rounds.py", "np.median(times_ms, axis=0)",
           "np.min(times_ms, axis=0)", "a profile is of the quietest round",
           ("tests/experiment/profile/test_profile.py"
            "::test_the_typical_time_is_the_median_of_rounds_and_ranks",)),
    Mutant("experiment/profile/rounds.py", "repetition_s / len(measures)", "repetition_s",
           "a profile of halves takes twice as long",
           ("tests/experiment/profile/test_halves.py"
            "::test_halves_leave_time_for_half_as_many_rounds",)),
    Mutant("experiment/profile/rounds_file.py", "n_most, n_fields = n, times_ms.shape[3:]",
           "n_most = n", "rounds with halves and rounds without are mixed",
           ("tests/experiment/profile/test_halves.py::test_rounds_of_halves_are_kept",)),
    Mutant("experiment/profile/bench.py", "{group.kind}{halves}", "{group.kind}",
           "rounds of whole passes are continued with halves",
           ("tests/experiment/profile/test_halves.py"
            "::test_rounds_of_whole_passes_are_not_continued_with_halves",)),
    Mutant("experiment/profile/bench.py",
           "SPLIT if kinds_with_halves(self.config, mode.recompute) else WHOLE", "SPLIT",
           "halves are measured that no plan has",
           ("tests/experiment/profile/test_halves.py"
            "::test_only_stacks_with_layers_run_twice_and_only_where_something_is_deferred",)),
    Mutant("experiment/profile/begun_table.py",
           " and not (needs_halves and known[key].input_ms is None)", "",
           "a table never gets the halves that it lacks",
           ("tests/experiment/profile/test_halves.py"
            "::test_a_table_without_halves_gets_them_where_plans_may_split",)),
    Mutant("experiment/profile/layer_profiles.py", "MEASURED if kind in with_halves else QUANT",
           "MEASURED if with_halves else QUANT",
           "embedding and head have halves",
           ("tests/experiment/profile/test_halves.py"
            "::test_both_halves_are_measured_of_every_layer_mode_and_layout_that_defers",)),
    Mutant("experiment/split_passes.py", "{*deferring, STAGE} if", "deferring if",
           "what a stage takes besides has no halves",
           ("tests/experiment/profile/test_halves.py"
            "::test_both_halves_are_measured_of_every_layer_mode_and_layout_that_defers",)),
    Mutant("planner/cost/table/profile_table.py", '("stack_peak_bytes", *HALVES)',
           '("stack_peak_bytes", "weight_ms")', "the first half is not written", PROFILE_FILE),
    Mutant("planner/cost/table/check_table.py", '("backward_ms", *HALVES)', '("backward_ms",)',
           "a half may be missing", PROFILE_FILE),
    Mutant("experiment/split_passes.py", "if layer.input_ms is None\n        and ", "if ",
           "halves that were measured are said to be estimated", SPLIT_PASSES),
    Mutant("experiment/split_passes.py", "key.recompute == mode.text and ", "",
           "modes that plans do not use are said to be estimated", SPLIT_PASSES),
    Mutant("experiment/split_passes.py", "(key.layout == PADDED or config.planner.may_pack)",
           "True",
           "layouts that plans do not use are said to be estimated", SPLIT_PASSES),
    # Adafactor
    Mutant("training/adafactor.py", "w.sums[COLUMNS] / n_rows",
           "w.sums[COLUMNS] / w.weight.shape[0]",
           "columns are averaged over the rows of a shard", ADAFACTOR),
    Mutant("training/adafactor.py", "        self._add_over_shards(\"update\")\n", "",
           "every shard clips its own part of an update", ADAFACTOR),
    Mutant("training/adafactor.py", "        self._add_over_shards(\"rows\")\n", "",
           "every shard has a mean of its own rows",
           ("tests/training/test_adafactor.py::test_every_layout_gives_the_unsplit_weights",)),
    Mutant("training/adafactor.py", ".clamp(min=1))\n", ")\n", "small updates grow",
           ("tests/training/test_adafactor.py::test_updates_are_those_of_transformers",)),
    Mutant("training/adafactor.py", '.rms("weight").clamp(min=MIN_SCALE)', '.rms("weight")',
           "a weight of zeros stays what it is", ADAFACTOR),
    Mutant("training/adafactor.py", "torch.where(keeps, average, moved)", "moved",
           "a skipped update leaves averages that are no numbers", UPDATE_RULES),
    Mutant("training/checkpoint/state.py", "if self._is_first_replica else []", "",
           "every replica writes the averages",
           ("tests/training/test_checkpoint.py"
            "::test_every_layout_reads_averages_of_rows_and_columns",)),
    # adapters
    Mutant("experiment/run/resume.py", "if draws else {}", "if False else {}",
           "adapters go on beside other weights", LORA_FACTS),
    Mutant("experiment/run/resume.py", ", **_frozen_in(config)}", "}",
           "adapters go on beside another model", LORA_FACTS),
    Mutant("training/huggingface/hash_of_weights.py", "range(0, n_bytes, step)", "range(1)",
           "models differ in their headers only", LORA_FACTS),
    Mutant("training/huggingface/adapters.py", "lora.scale * (rows @ a)", "(rows @ a)",
           "merged adapters are not scaled", LORA_EXPORT),
    Mutant("training/huggingface/adapters.py", "+= lora.scale * (rows @ a)",
           "+= (lora.scale if len(rows) == each.n_rows else 1.0) * (rows @ a)",
           "alpha is lost where a merge goes block by block", MERGED),
    Mutant("training/huggingface/adapters.py", "b[first - each.start : last - each.start]",
           "b[: last - first]", "every block of a merge gets the first rows", MERGED),
    Mutant("training/huggingface/adapters.py", "                start += n_rows\n", "",
           "all adapters of a joined weight are merged into its first rows",
           ("tests/training/huggingface/test_export_adapters.py"
            "::test_logits_with_adapters_are_those_of_peft_and_of_the_merged_model",)),
    Mutant("training/huggingface/adapters.py", "last not in others", "True",
           "peft adapts layers that have no adapter here",
           ("tests/training/huggingface/test_export_adapters.py"
            "::test_logits_with_adapters_are_those_of_peft_and_of_the_merged_model",)),
    # the largest micro-batches first
    Mutant("training/module_stage.py", "        self._optimizer.clear_gradients()\n", "",
           "their gradients are in the first update", RUN_FIRST),
    Mutant("experiment/run/largest_first.py", "reverse=True", "reverse=False",
           "the smallest are run", RUN_FIRST),
    Mutant("experiment/run/largest_first.py", "    rank.feed.serve(each.taken)\n", "",
           "tokens are those of another iteration", RUN_FIRST),
    Mutant("training/module_stage.py", "raise MemoryError(str(error)) from error", "raise",
           "a GPU without memory names nothing", RUN_FIRST),
    Mutant("experiment/run/largest_first.py", 'choice == "auto" and on_gpus', "False",
           "GPUs do not begin with them", RUN_FIRST),
    Mutant("experiment/run/plan_feed.py", "        self.serve(taken)\n        return taken\n",
           "        return taken\n",
           "after them, the first iteration has the tokens of another", RUN_FIRST),
)  # fmt: skip
