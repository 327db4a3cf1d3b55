#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "dynapipe/simulate.hpp"
#include "dynapipe/stage_costs.hpp"

namespace dynapipe {

/// Improves the order of passes of a schedule by a seeded local search on the simulator.
///
/// Rules run what has arrived, first in, first out; here a stage may also wait for a pass that
/// matters more, and micro-batches may overtake each other. A move puts a pass of one stage
/// elsewhere in its order, or lets two micro-batches change places on all stages. It is accepted
/// if no stage needs more than its limit and the schedule becomes no longer, or longer within a
/// threshold that sinks to zero. The number of moves is given, not the time, and random numbers
/// are integers, so the same input gives the same schedule on every machine.
///
/// @param start        row-major (n_stages, n_passes): a schedule that runs to its end within the
///                     limit, at least one pass.
/// @param limit_bytes  (n_stages,): what activations may occupy; may be infinite.
/// @return             the best schedule seen, never longer than `start`.
std::vector<PassCode> refine_schedule(std::span<const PassCode> start, const StageCosts& costs,
                                      std::span<const double> limit_bytes, const Link& link,
                                      std::size_t n_moves, std::uint64_t seed);

}  // namespace dynapipe
