#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "dynapipe/simulate.hpp"
#include "dynapipe/window_costs.hpp"

namespace dynapipe {

/// The best plan so far, after a round that found it.
struct Improvement {
    Assignment replicas;
    double makespan_ms;   ///< of the slowest replica, as the list scheduler runs it
    std::size_t effort;   ///< of all rounds so far; 0 of a start
    std::size_t n_moves;  ///< that were tried so far
};

/// Improves plans by a seeded local search on what the list scheduler makes of them.
///
/// A move swaps or relocates micro-batches within a replica or between two, shifts samples
/// between neighbouring micro-batches, splits one, joins two, changes a recompute mode, or whether
/// a replica is scheduled alternating (see PlanMoves). A move
/// that makes a plan worse is accepted only within a threshold that sinks to zero. Worse is mostly
/// a later end of the slowest replica, a little a later end of any: time that a replica wins is
/// room for what the slowest has too much.
///
/// The search goes in rounds, each from the best plan so far and as long as all before it, whatever
/// the effort; one that does not fit into it is not begun. So what less effort finds, more finds
/// too.
///
/// Effort is counted in passes scheduled and not in time, and random numbers are integers, so the
/// same input gives the same plan on every machine.
///
/// @param starts          plans whose micro-batches all fit, at least one, each of which holds
///                        every sample exactly once.
/// @param limit_bytes     (n_stages,): what activations may occupy.
/// @param split_backward  whether gradients of weights are passes of their own.
/// @param effort          passes to schedule; exceeded in a round by those of its last move.
/// @return                the best start, then what rounds found that is better, the best last; no
///                        replica is empty.
std::vector<Improvement> improve_plan(const WindowCosts& windows,
                                      std::span<const Assignment> starts,
                                      std::span<const double> limit_bytes, const Link& link,
                                      bool split_backward, std::size_t effort, std::uint64_t seed);

/// The makespan of each plan, as a search that begins with it counts it; infinite if a micro-batch
/// does not fit.
std::vector<double> makespans_ms(const WindowCosts& windows, std::span<const Assignment> plans,
                                 std::span<const double> limit_bytes, const Link& link,
                                 bool split_backward);

}  // namespace dynapipe
