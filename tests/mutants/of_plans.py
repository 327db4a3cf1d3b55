"""Mistakes in plans, their execution, transfers, and the memory that they are made for."""

from tests.mutants.mutant import Mutant
from tests.mutants.pipelines import T5_PIPELINE

CODEC = ("tests/plan/test_codec.py",)
CHECK = ("tests/plan/test_check.py", "tests/plan/test_check_rules.py")
PLANS = ("tests/planner/test_make_plans.py",)
FRONT = ("tests/planner/test_plan_iteration.py",)
RUN = ("tests/executor/test_run.py",)
BUFFERS = ("tests/executor/transport/test_torch_buffers.py",)
GROUPS = ("tests/executor/transport/test_torch_groups.py",)
FEED = ("tests/experiment/run/test_plan_feed.py",)
PROGRESS = ("tests/experiment/watch/test_device_progress.py",)
LOCAL = ("tests/executor/transport/test_local_transport.py",)
TRANSPORT = ("tests/contract/test_transport.py",)
COLLECTIVES = ("tests/contract/test_collectives.py",)
STATE = ("tests/planner/cost/test_model_state.py", "tests/planner/cost/test_analytic.py")
HELD = tuple(
    f"tests/experiment/test_held_weights.py::test_static_memory_is_what_a_rank_keeps[{case}]"
    for case in ("gpt-1-1-1-bfloat16", "t5-1-1-0-float32", "t5-2-1-0-float32")
)
BUNDLES = tuple(
    f"tests/planner/batch/windows/test_bundles.py::{test}"
    for test in (
        "test_where_bundles_do_not_run_samples_are_not_bundled",
        "test_a_bundle_alone_may_keep_more_than_its_share_of_memory",
    )
)
PACKED = ("tests/planner/batch/windows/test_packed_windows.py",)
LAYOUTS = ("tests/planner/test_layouts.py",)
PACKED_BOUND = ("tests/planner/schedule/test_packed_bound.py",)
MEMORY = ("tests/plan/test_memory.py",)
WEIGHTS = ("tests/planner/cost/test_weight_gradients.py",)
COLUMNS = ("tests/planner/cost/test_cost_model.py",)
MICROBATCHES = ("tests/planner/batch/test_microbatch_costs.py",)
FINER = ("tests/planner/cost/test_finer_lengths.py",)
PROFILED = ("tests/planner/cost/test_profiled.py",)
SIMULATE = ("tests/planner/schedule/test_simulate.py",)
CHOICE = ("tests/planner/test_choice.py",)
TUNE = ("tests/experiment/study/test_tune.py",)
LESS = ("tests/planner/test_never_worse.py::"
        "test_all_plans_that_less_effort_compares_are_among_those_of_more",)  # fmt: skip

PLAN = (
    # what is compared
    Mutant("planner/choose/best_of_search.py", "key=lambda plan: (plan.effort, plan.makespan_ms)",
           "key=lambda plan: plan.makespan_ms", "more effort hides what less found", LESS),
    Mutant("planner/choose/choice.py", "key=lambda candidate: candidate.iteration_ms",
           "key=lambda candidate: candidate.makespan_ms", "the update is left out", CHOICE),
    Mutant("experiment/study/tune.py", "candidate.iteration_ms for candidate",
           "candidate.makespan_ms for candidate", "the update is left out", TUNE),
    Mutant("experiment/study/variants.py", 'tables["model"].pop("layers_per_stage", None)', "pass",
           "layers stay where they are on other stages", TUNE),
    Mutant("planner/choose/schedule_replicas.py", "return Infeasible(way, str(error))", "raise",
           "one way that cannot run ends the choice", CHOICE),
    # plans as bytes
    Mutant("plan/codec.py", "digest_size=_HASH_BYTES).digest() != checksum",
           "digest_size=1) is None", "damage is not noticed", CODEC),
    Mutant("plan/codec.py", "if version != VERSION:", "if version > VERSION:",
           "older versions are read", CODEC),
    Mutant("plan/codec.py", "(_boundary(before), _boundary(after))",
           "(_boundary(after), _boundary(before))", "boundaries swapped", CODEC),
    Mutant("plan/codec.py", "Recompute(mode), target_tokens", "Recompute.NONE, target_tokens",
           "recomputation is lost", CODEC),
    Mutant("plan/codec.py", "    _check_range(entries)\n", "", "bytes become negative", CODEC),
    Mutant("plan/codec.py", "if 0 in n_rows or 0 in sizes:", "if 0 in n_rows:",
           "rows without a sample", CODEC),
    Mutant("plan/codec.py", "one.update(of_all)", "pass",
           "the hash of all has no checksum", CODEC),
    Mutant("plan/codec.py", 'b"".join(h.digest() for h in hashes)', "hashes[0].digest()",
           "only one plan is hashed", CODEC),
    Mutant("plan/instruction_rows.py", "kinds >= len(_KINDS)", "kinds > len(_KINDS)",
           "an unknown kind", CODEC),
    Mutant("plan/instruction_rows.py", "columns[:, 0] >= n_microbatches",
           "columns[:, 0] > n_microbatches", "a micro-batch too many", CODEC),
    # the check of plans
    Mutant("plan/check.py", "        _check_account(plan)\n", "", "memory not accounted", CHECK),
    Mutant("plan/check.py", "if len({plan.rank for plan in plans}) < len(plans):", "if False:",
           "two plans for a rank", CHECK),
    Mutant("plan/check.py", "if len({len(pipeline) for pipeline in pipelines}) > 1:", "if False:",
           "replicas of different depth", CHECK),
    Mutant("plan/check.py", "if stages != list(range(len(pipeline))):", "if not stages:",
           "a stage is missing", CHECK),
    Mutant("plan/check.py", "if (plan.microbatches, plan.hidden_size) != (first.microbatches, ",
           "if (first.microbatches, plan.hidden_size) != (first.microbatches, ",
           "stages with other micro-batches", CHECK),
    Mutant("plan/rank_plan.py", "return (self.limit, self.static)", "return (self.limit, 0)",
           "weights take no memory", CHECK),
    Mutant("plan/rank_plan.py", "self.forward_transient, self.backward_transient)",
           "self.forward_transient, self.forward_transient)", "backward as forward", CHECK),
    Mutant("plan/memory.py", "static=0, forward_transient=none", "forward_transient=none",
           "static memory counts as activations", MEMORY),
    # from lengths to plans
    Mutant("planner/plan_iteration.py", "inputs, targets = length - 1, 1",
           "inputs, targets = length, 1", "a sample gains a token", FRONT),
    Mutant("planner/plan_iteration.py", "    check_rows(samples, shape)\n", "",
           "rows that no position table holds", FRONT),
    Mutant("planner/plan_iteration.py", "SearchConfig(effort=effort)", "SearchConfig()",
           "effort is ignored", FRONT),
    Mutant("planner/batch/check_rows.py", "rows > shape.max_tokens", "rows >= shape.max_tokens",
           "the longest row is refused", FRONT),
    Mutant("planner/cost/read_cost_table.py", "if key.tensor_parallel == cluster.n_shards",
           "if key.tensor_parallel", "modes of other shards", FRONT),
    Mutant("planner/plan_iteration.py", "    _check_placement(placement, shape, cluster)\n", "",
           "a stage without layers is planned for", FRONT),
    # from schedules to plans
    Mutant("planner/comm/rank_plans.py", "(Boundary.ROWS, *boundaries[:-1])", "boundaries",
           "both sides arrive where the decoder begins", T5_PIPELINE),
    Mutant("planner/comm/rank_plans.py", "(entering[stage], boundaries[stage])",
           "(entering[stage], entering[stage])",
           "one side leaves where the decoder begins", T5_PIPELINE),
    Mutant("planner/comm/rank_plans.py", "cluster.device_memory_bytes, int(static)",
           "cluster.device_memory_bytes, 0", "plans without the model's memory", PLANS),
    Mutant("planner/comm/rank_plans.py", "columns = (costs.stored_bytes, costs.forward",
           "columns = (0 * costs.stored_bytes, costs.forward", "nothing is stored", PLANS),
    # execution
    Mutant("executor/run.py", "if self._n_unfinished == 0:", "if self._n_unfinished == 1:",
           "sums start a backward pass early", RUN),
    Mutant("executor/run.py",
           "case BackwardWeight(i):\n                self._expect_end(i)\n",
           "case BackwardWeight(i):\n", "no sum starts beside a split pass", RUN),
    Mutant("executor/run.py", "activation, split_backward=self._splits_backward)",
           "activation)", "backward passes stay whole", RUN),
    Mutant("executor/run.py", "self._outbox.pop((payload, i))", "self._outbox[payload, i]",
           "what was sent is kept", RUN),
    Mutant("executor/run.py", "self._inbox.pop((Payload.GRADIENT, i), None)",
           "self._inbox.get((Payload.GRADIENT, i))", "gradients that were used are kept", RUN),
    Mutant("executor/run.py", "self._inbox.pop((Payload.ACTIVATION, i), None)",
           "self._inbox.get((Payload.ACTIVATION, i))", "activations that were used are kept", RUN),
    Mutant("experiment/run/plan_feed.py", "self._ahead.set_exception(error)", "raise",
           "ranks that see a failure early leave the others alone", FEED),
    Mutant("experiment/run/plan_feed.py", "while is_busy() and (", "while (",
           "a device that is done waits for tokens of later micro-batches", FEED),
    Mutant("experiment/run/plan_feed.py", "with suppress(InputError, RunError):", "if True:",
           "errors of tokens name no instruction", FEED),
    Mutant("experiment/watch/device_progress.py", "max(n_passed - 1, 0)", "n_passed",
           "the instruction after the one that hangs is named", PROGRESS),
    Mutant("plan/rank_plan.py", "self.boundaries[payload]", "self.boundaries[0]",
           "gradients have the shape of activations", T5_PIPELINE),
    # transfers
    Mutant("executor/transport/local_transport.py", "waiting.popleft()", "waiting.pop()",
           "the last is matched first", (*TRANSPORT, *LOCAL)),
    Mutant("executor/transport/local_transport.py", "one.is_send != other.is_send", "True",
           "two sends meet", LOCAL),
    Mutant("executor/transport/local_transport.py", "(one.microbatch, one.payload) == ",
           "(other.microbatch, one.payload) == ", "another micro-batch arrives", LOCAL),
    Mutant("executor/transport/local_transport.py", "self._slots[slot][...] = math.nan", "pass",
           "a slot is used too early", LOCAL),
    Mutant("executor/transport/buffers.py", " or self._held[number].numel() < n_numbers", "",
           "buffers do not grow", TRANSPORT),
    Mutant("executor/transport/mpi_transport.py", "len(Payload) * microbatch + payload",
           "microbatch + payload", "tags meet", TRANSPORT),
    Mutant("executor/transport/mpi_transport.py", "take(slot, shape)", "take(0, shape)",
           "all receives share a buffer", TRANSPORT),
    Mutant("executor/transport/torch_transport.py", "take(slot, shape)", "take(0, shape)",
           "all receives share a buffer", TRANSPORT),
    Mutant("executor/transport/torch_transport.py", "if n not in in_use", "if True",
           "all sends share a buffer", TRANSPORT),
    Mutant("executor/transport/torch_transport.py", "        self._slots.clear()\n", "",
           "receive buffers only grow", BUFFERS),
    Mutant("executor/run.py", "        self.transport.clear()\n", "",
           "buffers stay from plan to plan", BUFFERS),
    Mutant("executor/transport/torch_transport.py", "for payload, group in self._groups.items():",
           "for payload, group in list(self._groups.items())[:1]:",
           "the way back connects in the first plan", GROUPS),
    Mutant("executor/transport/torch_groups.py", "if len(members) == 1:", "if not members:",
           "groups of one rank have communicators", GROUPS),
    Mutant("experiment/rank/channels.py", "steps = (-1, 1) if stage % 2 else (1, -1)",
           "steps = (-1, 1)", "stages connect one after the other", GROUPS),
    Mutant("executor/transport/communicators.py", "len(peers - neighbours)", "len(peers)",
           "neighbours are counted twice", GROUPS),
    Mutant("executor/transport/local_collectives.py", "if self.stage == stages[0]:", "if True:",
           "copies are summed on all stages", COLLECTIVES),
    Mutant("executor/transport/local_collectives.py", "self._share(values).copy_(total)",
           "values[: len(total)].copy_(total)", "another share is replaced", COLLECTIVES),
    # bundles of large batches
    Mutant("planner/batch/windows/price_windows.py",
           "if runs.any(axis=0).all() and runs[may_all_run].all():", "if True:",
           "bundles that do not run", BUNDLES),
    Mutant("planner/batch/windows/window_lookup.py", "memory_share[alone[alone >= 0]] = 0",
           "memory_share[:0] = 0", "a bundle alone keeps too much", BUNDLES),
    # packed micro-batches
    Mutant("planner/cost/cost_model.py", "np.minimum(n_samples, known.most)", "known.most",
           "more rows than samples", COLUMNS),
    Mutant("planner/cost/cost_model.py", "known.most), tokens / known.least_tokens",
           "known.most), np.inf", "packed rows that cost as much as longer ones", COLUMNS),
    Mutant("planner/batch/windows/price_windows.py", "    cost = cost.of_layout(windows.layout)\n",
           "", "packed windows cost what padded ones do", PACKED),
    Mutant("planner/batch/windows/price_windows.py", "cost.of_layout(table.ways[-1].layout)",
           "cost", "a misfit is told with the memory of padded rows", PACKED),
    Mutant("planner/cost/one_mode.py", "self.cost.of_layout(layout)", "self.cost",
           "packed rows cost what padded ones do in one mode",
           ("tests/planner/cost/test_one_mode.py",)),
    Mutant("planner/batch/microbatch_costs.py", "cost.of_layout(way.layout)", "cost",
           "packed rows cost what padded ones do", MICROBATCHES),
    Mutant("planner/cost/profiled.py", "for mode in modes]", "for mode in modes[:1]]",
           "packed rows of modes in which they were not measured", PROFILED),
    Mutant("planner/schedule/row_cells.py", "            yield of_packed\n",
           "            yield of_padded\n", "packed rows cost what padded ones do in the bound",
           PACKED_BOUND),
    Mutant("planner/batch/packed_row.py", "row_tokens=padded(offsets[-1])",
           "row_tokens=offsets[-1]", "packed rows of any length", LAYOUTS),
    Mutant("planner/batch/packed_row.py", "(0, *accumulate(lengths))",
           "(0, *accumulate(sorted(lengths)))", "boundaries of other samples", LAYOUTS),
    Mutant("planner/batch/windows/packed_windows.py", "(lengths, lengths**2)",
           "(lengths, lengths)", "pairs are not squares", PACKED),
    Mutant("planner/batch/windows/packed_windows.py", "Shapes.packed(padded(tokens), ",
           "Shapes.packed(tokens, ", "fill of packed rows costs nothing", PACKED),
    Mutant("planner/batch/windows/packed_windows.py", "if is_large else np.inf",
           "if True else np.inf", "windows of few samples are limited", PACKED),
    Mutant("planner/batch/windows/window_table.py", "table.cells + before", "table.cells + 0",
           "windows of one layout with the costs of another", PACKED),
    Mutant("planner/batch/windows/window_table.py", "table.spans[:, row] + before",
           "table.spans[:, row]", "cells of one layout for another", PACKED),
    Mutant("planner/batch/windows/better_windows.py", "(1 - MARGIN) * of_other[others]",
           "of_other[others].max()", "windows that are no better are kept", PACKED),
    Mutant("planner/from_config.py", "if cost.is_encoder_decoder and Layout.PACKED in layouts:",
           "if False:", "pairs are packed", LAYOUTS),
    Mutant("planner/schedule/row_cells.py", "+ self.pairs * c", "+ 2 * self.pairs * c",
           "pairs count twice", PACKED_BOUND),
    Mutant("planner/schedule/row_cells.py", "fits(costs, room_bytes))[few])",
           "fits(costs, room_bytes)) & (few == many))", "only single rows run", PACKED_BOUND),
    Mutant("planner/schedule/row_cells.py", "np.minimum(getattr(at_few, name), ratio",
           "np.maximum(getattr(at_few, name), ratio", "rows cost most where cells begin or end",
           PACKED_BOUND),
    Mutant("planner/schedule/row_cells.py", "joined.area_ms / room_bytes[0]",
           "0 * joined.area_ms", "memory in flight has no bound", PACKED_BOUND),
    Mutant("planner/schedule/ways.py", "way_ms + self.weight_ms[:, 0]", "way_ms",
           "memory is free before weight gradients are there", PACKED_BOUND),
    Mutant("planner/schedule/packed_bound.py", "np.maximum(1.0, (tokens.max()",
           "np.maximum(1.0, 4 * (tokens.max()", "a round trip of longer samples",
           PACKED_BOUND),
    # what kernels are told
    Mutant("planner/cost/cost_model.py", "BACKWARD_MS = 1\n    WEIGHT_MS = 2",
           "BACKWARD_MS = 2\n    WEIGHT_MS = 1", "columns in another order than the kernels'",
           COLUMNS),
    Mutant("planner/schedule/kernel_link.py", "link.full_duplex", "True",
           "transfers of both directions never wait for each other", SIMULATE),
    # the memory that plans are made for
    Mutant("planner/cost/model_state.py", "max(0.0, state_factor - kept) / cluster.n_replicas",
           "max(0.0, state_factor - kept)", "state is not shared out", STATE),
    Mutant("planner/cost/model_state.py", "1 + max(GRADIENT_BYTES, element_bytes) / element_bytes",
           "2", "gradients of 16 bits", HELD),
    Mutant("planner/cost/model_state.py", "own[owner] += n_bytes", "pass",
           "a tied weight is nowhere", HELD),
    Mutant("planner/cost/model_state.py", "copied += n_bytes * uses.clip(max=1)",
           "copied += n_bytes * uses", "a copy counts for each use", HELD),
    Mutant("planner/cost/weight_gradients.py", "part.deferred_work(recompute)",
           "part.deferred_work(Recompute.NONE)", "weights of what is recomputed wait", WEIGHTS),
    Mutant("planner/cost/weight_gradients.py", "if weight_ms is None:", "if True:",
           "a share although halves were measured", WEIGHTS),
    Mutant("planner/cost/weight_gradients.py",
           "np.maximum(input_ms + weight_ms - whole_ms, 0.0)", "np.zeros_like(whole_ms)",
           "splitting is free", WEIGHTS),
    Mutant("planner/cost/weight_gradients.py",
           "np.maximum(input_ms + weight_ms - whole_ms, 0.0)",
           "input_ms + weight_ms - whole_ms", "noise makes splitting a gain", WEIGHTS),
    Mutant("planner/cost/weight_gradients.py", "np.maximum(input_ms + weight_ms - whole_ms, 0.0)",
           "np.maximum(input_ms + np.minimum(weight_ms, whole_ms) - whole_ms, 0.0)",
           "weights take no more than a pass", WEIGHTS),
    Mutant("planner/cost/weight_gradients.py", "make_monotone(times).grid) for", "times) for",
           "noise in halves that is repaired in whole passes", WEIGHTS),
    Mutant("planner/cost/measured_axes.py", "names = (*QUANTITIES, *HALVES)",
           "names = QUANTITIES", "measured halves are left out", WEIGHTS),
    Mutant("planner/cost/finer_lengths.py", "parts = [Cost.WEIGHT_MS, Cost.SPLITTING_MS]",
           "parts = [Cost.WEIGHT_MS]", "noise of short rows makes splitting long rows slow", FINER),
    Mutant("planner/cost/analytic.py", "+ self._held.copied * factor", "+ 0 * factor",
           "copies take no memory", HELD),
)  # fmt: skip
