#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "dynapipe/plan_rows.hpp"
#include "dynapipe/stage_costs.hpp"

namespace dynapipe {

/// From a simulated schedule to the instructions of every stage of one replica.
///
/// Walks the passes by simulated end; of equals, by stage. Each adds itself to its stage's list
/// and then starts the transfer of what it produced on both sides at once. So the two sides of
/// every pair agree on the order of transfers, and executing the passes in the order of the walk
/// needs no wait that is not over: the plan cannot deadlock. As a pass enters the list only when it
/// ends, a receive that starts meanwhile is listed before it, and a rank whose passes block it has
/// posted the receive before it is busy.
///
/// Waits come as late as they can: for a receive, before the pass that reads it; for a sent
/// activation, before the micro-batch goes back; for a sent gradient, before a third one would be
/// in flight, or at the end. A receive takes the lowest free slot, which is free again when the
/// micro-batch has no pass left on the stage.
///
/// @param order   row-major (n_stages, n_passes): each pass exactly once on every stage.
/// @param end_ms  likewise: when they end in the simulation; every forward and backward pass takes
///                time.
/// @param peers   (n_stages,): the rank of each stage.
/// @return        per stage its rows, which end with ReduceGradients and StepOptimizer.
///
/// Time O(n log n) for n passes of all stages.
///
/// Source: Jiang et al., "DynaPipe", EuroSys 2024, doi:10.1145/3627703.3629585, communication
/// planning.
std::vector<std::vector<Row>> place_transfers(std::span<const PassCode> order,
                                              std::span<const double> end_ms,
                                              std::span<const std::uint32_t> peers);

}  // namespace dynapipe
