"""Mistakes in the ways to plan that the method is compared with."""

from tests.mutants.mutant import Mutant

ONE_MODE = ("tests/planner/baselines/test_one_mode.py",)
TUNED = ("tests/planner/baselines/test_tuned.py",)
GROUPED = ("tests/planner/baselines/test_length_grouped.py",)
PROMISES = ("tests/contract/test_replica_rules.py",)
DEAL = ("tests/planner/baselines/test_deal.py",)
NEXT_FIT = ("tests/planner/baselines/test_packed_next_fit.py",)
FIRST_FIT = ("tests/planner/baselines/test_packed_first_fit.py",)
GROUPS = ("tests/planner/batch/test_balanced_groups.py",)
BALANCED = ("tests/planner/batch/test_packed_balanced.py",)
ASSIGNED = ("tests/planner/baselines/test_as_assigned.py",)
TABLES = ("tests/planner/test_from_config.py",)

BASELINES = (
    Mutant("planner/baselines/one_mode.py", "if self.only_first and choice.candidates:",
           "if choice.candidates:", "the first mode that fits is always taken", ONE_MODE),
    Mutant("planner/baselines/tuned.py", "yield min(n, most)", "yield n",
           "more rows than a replica has samples", TUNED),
    Mutant("planner/baselines/tuned.py", "longest * 2 ** (k / 4)), most)",
           "longest * 4**k), most)", "coarse token budgets", TUNED),
    Mutant("planner/baselines/tuned.py", "_rising(longest, most=max(longest, of_replica))",
           "_rising(longest, most=longest)", "no packed row of several long samples", TUNED),
    Mutant("planner/baselines/tuned.py", "self.settings(samples, self.cost, self.cluster):",
           "list(self.settings(samples, self.cost, self.cluster))[:2]:",
           "few settings are tried", TUNED),
    Mutant("planner/baselines/length_grouped.py", "lambda i: (size_of[i], i), reverse=True",
           "lambda i: (size_of[i], i)", "shortest first", GROUPED),
    # packed rows
    Mutant("planner/batch/packed_row.py", "*accumulate(lengths)", "*accumulate(sorted(lengths))",
           "offsets of samples in another order", PROMISES),
    Mutant("planner/batch/packed_row.py", "row_tokens=max(padded(offsets[-1]), ",
           "row_tokens=max(offsets[-1], ", "rows of any length", PROMISES),
    Mutant("planner/batch/packed_rows.py", "    check_fit([", "    ([",
           "rows that do not fit",
           (f"{PROMISES[0]}::test_micro_batches_fit_or_an_error_says_which_does_not",)),
    Mutant("planner/batch/packed_rows.py", "return inputs + targets", "return inputs",
           "targets take no tokens of a packed row", PROMISES),
    Mutant("planner/batch/packed_rows.py", ", mode, cost.is_encoder_decoder)",
           ", mode)", "both sides of a sample in one row", PROMISES),
    Mutant("planner/batch/packed_balanced.py", "both_ms - first_ms, 0.0",
           "first_ms, 0.0", "launches count as work of pairs", BALANCED),
    Mutant("planner/baselines/deal.py", "while len(hands) % n_replicas and len(hands[donor]) > 1:",
           "while len(hands) < n_replicas and len(hands[donor]) > 1:",
           "replicas with unequal numbers of micro-batches",
           (f"{PROMISES[0]}"
            "::test_replicas_have_as_many_micro_batches_unless_one_has_too_few_samples",)),
    Mutant("planner/baselines/deal.py", "    if len(hands) < n_replicas:", "    if False:",
           "a replica without work",
           (f"{PROMISES[0]}::test_fewer_samples_than_replicas_are_an_error",)),
    Mutant("planner/baselines/deal.py", "hands[replica::n_replicas]",
           "hands[replica * len(hands) // n_replicas : (replica + 1) * len(hands) // n_replicas]",
           "neighbours on one replica", DEAL),
    Mutant("planner/baselines/packed/packed_next_fit.py", "if size > room:", "if size >= room:",
           "bins that are never full", NEXT_FIT),
    Mutant("planner/baselines/packed/packed_next_fit.py", "donors=reversed(range(len(rows)))",
           "donors=range(len(rows))", "the first rows are split", NEXT_FIT),
    Mutant("planner/baselines/packed/packed_first_fit.py",
           "len(rows[i]), reverse=True", "len(rows[i])",
           "rows with few samples are split", FIRST_FIT),
    Mutant("planner/baselines/packed/packed_first_fit.py",
           "np.minimum(packed_tokens(samples, cost), capacity)",
           "packed_tokens(samples, cost)", "samples longer than a row", FIRST_FIT),
    # balance
    Mutant("planner/batch/packed_balanced.py", "packed = cost.of_layout(Layout.PACKED)",
           "packed = cost", "packed rows have the work of padded ones", BALANCED),
    Mutant("planner/batch/balanced_groups.py",
           "lower_by_swaps(work, balance(work, n_groups))",
           "balance(work, n_groups)", "no swaps", GROUPS),
    Mutant("planner/batch/balanced_groups.py",
           "int(sums.argmax())", "int(sums.argmin())",
           "the emptiest group gives", GROUPS),
    Mutant("planner/batch/balanced_groups.py", "larger.argmin()", "larger.argmax()",
           "the worst exchange is looked at", GROUPS),
    Mutant("planner/batch/packed_balanced.py",
           "largest_first[::2][::-1] + largest_first[1::2]",
           "largest_first", "large ones first", BALANCED),
    Mutant("planner/batch/packed_balanced.py", "of_token * tokens + of_pair * pairs",
           "of_token * tokens", "attention is no work", BALANCED),
    Mutant("planner/batch/packed_balanced.py", "per_token[0] - of_pair * longest",
           "per_token[0]", "pairs count twice", BALANCED),
    Mutant("planner/batch/packed_balanced.py", "if not np.isfinite(per_token).all():",
           "if False:", "work that was not measured", BALANCED),
    Mutant("planner/batch/packed_balanced.py", "max(int(tokens[items].sum())",
           "min(int(tokens[items].sum())", "fewer micro-batches than tokens need", BALANCED),
    Mutant("planner/batch/packed_balanced.py",
           "-(-most_tokens // self.tokens_per_microbatch)",
           "max(1, most_tokens // self.tokens_per_microbatch)",
           "more tokens than the budget", BALANCED),
    Mutant("planner/batch/packed_balanced.py", "min(n_groups, len(items))", "n_groups",
           "micro-batches without samples", BALANCED),
    Mutant("planner/baselines/as_assigned.py", "self.cluster, self.schedule_rules)",
           "self.cluster, self.schedule_rules[:1])", "only the first schedule", ASSIGNED),
    Mutant("planner/baselines/as_assigned.py", "schedule(str(self.rule), replicas, costs)",
           "schedule(str(self.rule), replicas[::-1], costs[::-1])",
           "other replicas than the rule's", ASSIGNED),
    Mutant("planner/from_config.py", 'if config.setting == "tuned":', "if True:",
           "a setting is ignored", TABLES),
)  # fmt: skip
