#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "dynapipe/cost/link.hpp"
#include "dynapipe/cost/stage_costs.hpp"

namespace dynapipe {

/// Improves the order of passes of a schedule by a seeded local search on the simulator.
///
/// Schedule rules run passes that have arrived, first in, first out. Here, a stage may also wait
/// for a more important pass, and micro-batches may overtake each other. A move relocates one pass
/// in the order of its stage, or swaps two micro-batches on all stages. It is accepted if no stage
/// exceeds its memory limit and the schedule becomes no longer, or longer within a threshold that
/// decreases to zero. The number of moves is given instead of a time limit, and random numbers are
/// integers, so the same input gives the same schedule on every machine.
///
/// @param start        row-major (n_stages, n_passes): a schedule of at least one pass that
///                     completes and respects the memory limit.
/// @param limit_bytes  (n_stages,): memory for activations; may be infinite.
/// @param reduce_ms    (n_stages,): time from a stage's last pass until its gradients are reduced;
///                     the length of a schedule includes it. Empty: none.
/// @return             the best schedule found, never longer than `start`.
std::vector<PassCode> refine_schedule(std::span<const PassCode> start, const StageCosts& costs,
                                      std::span<const double> limit_bytes, const Link& link,
                                      std::size_t n_moves, std::uint64_t seed,
                                      std::span<const double> reduce_ms = {});

}  // namespace dynapipe
