"""Mistakes in samplers, losses, optimizers and the memory that is counted."""

from tests.mutants.mutant import Mutant
from tests.mutants.pipelines import PIPELINE, T5_PIPELINE

SAMPLER = ("tests/data/dataset/test_sampler.py",)
LONG = ("tests/data/dataset/test_long_samples.py",)
DATASET = ("tests/data/dataset/test_dataset_file.py",)
RANK = ("tests/experiment/rank/test_assemble.py",)
RATE = ("tests/training/test_learning_rate.py",)
LOSS = ("tests/training/test_loss.py",)
OPTIMIZER = ("tests/training/test_optimizer.py",)
ADAMW = ("tests/training/test_adamw.py",)
FLAT = ("tests/training/test_flat_parameters.py",)
STAGE = ("tests/training/test_module_stage.py",)
SPLIT = ("tests/training/test_split_backward_stage.py",)
SUMS = ("tests/training/test_early_sums.py",)
CHECKPOINT = ("tests/training/test_checkpoint.py",)
FLOAT16 = "::test_a_narrower_type_trains_alike[whole-gpt-torch.float16]"
PRECISION = (f"tests/end_to_end/test_precision.py{FLOAT16}",)
PROFILE = ("tests/experiment/profile/test_profile.py",)
PROFILE_FILE = ("tests/planner/cost/table/test_profile_file.py",)

TRAINING = (
    # which samples, which tokens
    Mutant("data/dataset/sampler.py", "[seed % 2**32, epoch, seed // 2**32]", "[seed, epoch]",
           "large seeds share orders", SAMPLER),
    Mutant("data/dataset/sampler.py", "[seed % 2**32, epoch, seed // 2**32]", "[seed]",
           "every epoch has one order", SAMPLER),
    Mutant("data/dataset/sampler.py", "ends[starts[-1]] + budget", "ends[starts[-1]] + budget + 1",
           "a batch has a token too many", SAMPLER),
    Mutant("data/dataset/sampler.py", "if last_is_full or len(starts) == 2", "if len(starts) == 2",
           "a last batch that is full is left out", SAMPLER),
    Mutant("data/dataset/sampler.py", "if last_is_full or len(starts) == 2 else starts[:-1]", "",
           "an epoch's last batch is short", SAMPLER),
    Mutant("data/dataset/long_samples.py", "np.minimum(target_lengths, config.max_tokens)",
           "np.minimum(target_lengths, config.max_tokens - np.minimum(input_lengths, 1))",
           "targets give way to inputs", LONG),
    Mutant("data/dataset/long_samples.py", "fits = target_lengths <= config.max_tokens",
           "fits = np.ones(len(targets), np.bool_)", "targets lose their end", LONG),
    Mutant("data/dataset/long_samples.py", "return inputs[length - input_tokens :], targets",
           "return inputs[:input_tokens], targets", "the wrong end of inputs is kept", LONG),
    Mutant("data/dataset/long_samples.py", "return InputEnds(dataset) if", "return dataset if",
           "the start of inputs is always kept", LONG),
    Mutant("experiment/rank/assemble.py", "dataset.eos_id, weighting", "0, weighting",
           "start token 0", RANK),
    Mutant("experiment/rank/assemble.py", "config.training.loss_weighting", '"token"',
           "loss_weighting ignored", RANK),
    Mutant("experiment/rank/assemble.py", "seed=config.training.seed", "seed=0", "seed ignored",
           RANK),
    Mutant("training/token_loader.py", "token_weights(samples, self._weighting)",
           'token_weights(samples, "token")', "loss_weighting ignored", RANK),
    # loss
    Mutant("training/loss.py", "1 / (len(samples) * s.target_tokens)", "1 / len(samples)",
           "long targets count more", LOSS),
    Mutant("training/loss.py", "1 / (len(totals) * totals[s.task_id])", "1 / totals[s.task_id]",
           "the loss grows with the number of tasks", LOSS),
    Mutant("training/loss.py", "total = sum(s.target_tokens for s in samples)",
           "total = sum(s.tokens for s in samples)", "inputs count", LOSS),
    # optimizer
    Mutant("training/learning_rate.py", "(step + 1) / config.warmup", "step / config.warmup",
           "the first step has no rate", OPTIMIZER),
    Mutant("training/learning_rate.py", "config.decay_iterations or config.iterations",
           "config.iterations", "the decay is as long as training", RATE),
    Mutant("training/learning_rate.py", "min(1.0, done /", "(done /",
           "the rate rises again after its decay", RATE),
    Mutant("training/learning_rate.py", "(1 - lowest) * (1 + math.cos", "(1 + math.cos",
           "more than the highest rate", OPTIMIZER),
    Mutant("training/optimizer.py", ".clamp(max=1)", "", "small gradients grow", OPTIMIZER),
    Mutant("training/optimizer.py", "self._config.clip_norm or math.inf", "self._config.clip_norm",
           "no limit is a limit of 0", OPTIMIZER),
    Mutant("training/adamw.py", "= self._config.betas", "= self._config.betas[::-1]",
           "averages swapped", OPTIMIZER),
    Mutant("training/adamw.py", "EPSILON = 1e-8", "EPSILON = 1e-6",
           "another epsilon", OPTIMIZER),
    Mutant("training/adamw.py", "(self._config.weight_decay, 0.0)",
           "(self._config.weight_decay, self._config.weight_decay)", "norms decay", OPTIMIZER),
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
    Mutant("training/optimizer.py", "self._adamw.n_updates = counters.n_updates", "pass",
           "averages are corrected as at the start", CHECKPOINT),
    Mutant("training/optimizer.py", "self._n_steps = counters.n_steps", "pass",
           "the schedule starts again", CHECKPOINT),
    Mutant("training/flat_parameters.py", "wide = torch.promote_types(first.dtype, torch.float32)",
           "wide = first.dtype", "gradients are added up in 16 bits", FLAT),
    Mutant("training/loss_scale.py", "self.value /= FACTOR", "pass", "the scale stays", OPTIMIZER),
    Mutant("training/module_stage.py", "self._optimizer.loss_scale.value)", "1.0)",
           "losses are not scaled", PRECISION),
    Mutant("training/module_stage.py", "self._loss.zero_()", "pass", "the loss adds up", STAGE),
    Mutant("training/early_sums.py", "self._collectives = collectives",
           "self._collectives, self._own = collectives, own",
           "hooks and parameters keep each other", SUMS),
    Mutant("training/tied_copies.py", "copy.gradient.copy_(room)", "pass",
           "gradients of small copies are lost", T5_PIPELINE),
    Mutant("training/tied_copies.py", "self._buffer[collectives.shard]", "self._buffer[0]",
           "shards share room", T5_PIPELINE),
    Mutant("training/early_sums.py", "lambda bucket: not bucket.missing", "lambda _: True",
           "sums start before gradients are there", SUMS),
    Mutant("training/early_sums.py", "if any(parameter is other for other in tied):", "if False:",
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
    Mutant("training/early_sums.py", "bucket.matrices)\n        self._start_complete()",
           "bucket.matrices)", "sums wait for gradients that do not come", SUMS),
    Mutant("training/module_stage.py", " if deferred is None else deferred.weights", "",
           "sums wait for the first half of a split pass", SPLIT),
    Mutant("training/module_stage.py", "for tensor in self._deferred[index].kept:",
           "for tensor in ():", "what waits is not counted", SPLIT),
    # memory that is counted
    Mutant("training/activation_memory.py", "if address in kept or address in self._weights:",
           "if address in self._weights:", "a storage counts twice", STAGE),
    Mutant("training/activation_memory.py", "if address in kept or address in self._weights:",
           "if address in kept:", "weights count", STAGE),
    Mutant("training/activation_memory.py", "self.live_bytes -= sum(", "sum(",
           "nothing is freed", STAGE),
    # profiles of packed rows
    Mutant("experiment/profile/bench.py", "if layout is Layout.PACKED:", "if False:",
           "what is measured as packed rows is padded", PROFILE),
    Mutant("experiment/profile/layer_profiles.py", "kind, way.layout.text)", "kind)",
           "packed rows replace padded ones in a table", PROFILE),
    Mutant("planner/cost/table/checksum.py", "if key.layout == PADDED:", "if False:",
           "tables without layouts have another checksum", PROFILE_FILE),
    Mutant("planner/cost/table/profile_file.py", '{"layout": PADDED, **_plain(group)}',
           "_plain(group)", "tables without layouts cannot be read", PROFILE_FILE),
)  # fmt: skip
