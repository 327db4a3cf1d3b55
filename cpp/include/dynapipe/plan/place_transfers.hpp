#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "dynapipe/cost/stage_costs.hpp"
#include "dynapipe/plan/plan_rows.hpp"

namespace dynapipe {

/// Derives the instructions of every stage of one replica from a simulated schedule.
///
/// Visits the passes by simulated end; where ends are equal, a pass behind those it depends on,
/// then by stage. Each pass is appended to its stage's list, and then the transfer of its result is
/// started on both sides. The two sides of every pair therefore start their transfers in the same
/// order. If passes are executed in the order of the visits, every wait finds its transfer
/// complete, so the plan cannot deadlock. A pass is appended when it ends, so a receive that starts
/// during the pass is listed before it: a rank posts the receive before the pass keeps it busy.
///
/// Waits come as late as possible: for a receive, before the pass that reads it; for a sent
/// activation, before the micro-batch's backward pass; for a sent gradient, before a third one
/// would be in flight, or at the end. A receive takes the lowest free slot, which becomes free
/// again after the micro-batch's last pass on the stage.
///
/// A schedule of forward passes only sends no gradients and ends with no update. A stage then waits
/// for a sent activation before a third one would be in flight, or at the end.
///
/// @param order   row-major (n_stages, n_passes): each pass exactly once on every stage, forward
///                and backward, or only forward.
/// @param end_ms  likewise: simulated ends of the passes, finite and >= 0.
/// @param peers   (n_stages,): the rank of each stage.
/// @return        the rows of each stage, which end with ReduceGradients and StepOptimizer if there
///                are backward passes.
///
/// Time O(n * n_stages) for a total of n passes on all stages.
///
/// @throws std::invalid_argument  the order has a deadlock.
///
/// Source: Jiang et al., "DynaPipe", EuroSys 2024, doi:10.1145/3627703.3629585, communication
/// planning.
std::vector<std::vector<Row>> place_transfers(std::span<const PassCode> order,
                                              std::span<const double> end_ms,
                                              std::span<const std::uint32_t> peers);

}  // namespace dynapipe
