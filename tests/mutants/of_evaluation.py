"""Mistakes in evaluations and in what follows from them."""

from tests.mutants.mutant import Mutant

DOCTOR = ("tests/experiment/doctor/test_examine.py",)
EVALUATED = ("tests/experiment/test_evaluation_samples.py",)
EVALUATING = ("tests/training/test_evaluating.py",)
EVALUATOR = ("tests/experiment/run/test_evaluator.py",)
HISTORY = ("tests/experiment/run/test_train.py",)
PREFERENCES = ("tests/experiment/test_preference_config.py",)
LOAD = ("tests/experiment/test_load.py",)
OBJECTIVE = ("tests/training/test_objective.py",)
TRAIN = ("tests/experiment/run/test_train.py",)

EVALUATION = (
    Mutant("experiment/doctor/examine.py", '"evaluation", "costs")', '"costs")',
           "doctor plans with samples that cannot be evaluated", DOCTOR),
    Mutant("experiment/load.py", "if origin is None and trains_pairs and _lacks_sizes(error):",
           "if False:", "sizes are missed where the model to begin with is", PREFERENCES),
    Mutant("experiment/load.py", '"evaluation": ("dataset", "held_out"),', "",
           "another dataset cannot be evaluated than a parent's held-out samples", LOAD),
    Mutant("training/module_stage.py", "self._load_tokens, self._objective = outer", "pass",
           "training continues with the samples of the evaluation",
           (f"{EVALUATING[0]}::test_training_does_not_notice_an_evaluation",)),
    Mutant("planner/batch/microbatch_costs.py",
           "slice(None) if cache_cost in SHARED else firsts", "firsts",
           "an evaluation forgets keys and values after the first slice",
           (f"{EVALUATING[0]}::test_samples_that_do_not_fit_are_evaluated_as_slices",)),
    Mutant("planner/cost/forward_only.py", "cache_cost=Cost.FORWARD_TRANSIENT_BYTES",
           "cache_cost=Cost.STORED_BYTES", "an evaluation keeps the keys and values of all samples",
           (f"{EVALUATING[0]}::test_samples_that_do_not_fit_are_evaluated_as_slices",)),
    Mutant("planner/choose/forward_windows.py", "if table.runs_alone[:, table.row_of_sample]."
           "any(axis=0).all():", "if True:", "samples that do not fit are not evaluated as slices",
           (f"{EVALUATING[0]}::test_samples_that_do_not_fit_are_evaluated_as_slices",)),
    Mutant("training/module_stage.py", "evaluated += output", "pass",
           "losses of an evaluation do not add up", EVALUATING),
    Mutant("models/collate.py", "owner_ids[row, start:end] = sample.sample_id", "pass",
           "tokens of no sample are evaluated", EVALUATING),
    Mutant("models/collate.py",
           "owner_ids[row, target_start:end] = sample.sample_id", "pass",
           "targets of no sample are evaluated", EVALUATING),
    Mutant("training/objective.py",
           "self._columns[torch.searchsorted(self._sample_ids, sample_ids)]",
           "torch.searchsorted(self._sample_ids, sample_ids)",
           "losses are in the order of ids, not of samples", OBJECTIVE),
    Mutant("training/objective.py", ".where(is_trained, 0)", "",
           "inputs and padding count in an evaluation", OBJECTIVE),
    Mutant("training/objective.py", "is_trained.double())", "torch.ones_like(columns).double())",
           "an evaluation divides by all tokens", OBJECTIVE),
    Mutant("data/dataset/held_out.py", "int(share * 2**64)", "int(share * 2**63)",
           "half of the share is held out", EVALUATED),
    Mutant("experiment/experiment.py", "self.config.held_out, self.dataset", "0.0, self.dataset",
           "held-out samples are trained on", EVALUATED),
    Mutant("experiment/evaluation_config.py", "(2 + n_between)", "2",
           "more evaluations take more time", EVALUATED),
    Mutant("experiment/run/evaluations.py", "(sums / counts).mean()", "sums.mean()",
           "long targets count more in an evaluation", EVALUATOR),
    Mutant("experiment/run/evaluations.py", "self._loader.start_iteration(self._samples)", "pass",
           "an evaluation has no samples", EVALUATOR),
    Mutant("experiment/run/open_run.py", "if n_done == 0:", "if False:",
           "the best state may be the initial one", HISTORY),
    Mutant("experiment/run/open_run.py", "0 < self._patience <= self._n_worse",
           "0 < self._patience < self._n_worse", "patience lasts too long", HISTORY),
    Mutant("experiment/run/open_run.py", "is_best = loss < lowest",
           "is_best = not loss >= lowest", "no loss is better than one that is NaN", HISTORY),
    Mutant("experiment/run/open_run.py", "and not lacks_last", "",
           "a last evaluation that was interrupted is never made", TRAIN),
    Mutant("experiment/run/run.py", "        checkpoints.keep_as_best(n_done)\n",
           "        pass\n", "a best state that is found late is removed", TRAIN),
    Mutant("experiment/run/evaluations.py", "return self._history.best == n_done",
           "return True", "every state that is evaluated counts as the best", TRAIN),
    Mutant("experiment/run/run.py", " or evaluations.were_interrupted", "",
           "a run that lacks an evaluation says that it is complete", TRAIN),
    Mutant("training/checkpoint/folder.py", "n_done != self.best and ", "",
           "the best checkpoint is removed", ("tests/training/test_checkpoint_folder.py",)),
    Mutant("report/run_folder.py", "if n_done > n_repeatable:", "if n_done >= n_repeatable > 0:",
           "a run killed while it waits for its first checkpoint is lost",
           ("tests/report/test_run_folder.py",)),
)  # fmt: skip
