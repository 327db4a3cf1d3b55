#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "dynapipe/batch/priced_cut.hpp"
#include "dynapipe/batch/window_costs.hpp"
#include "dynapipe/schedule/replica_simulator.hpp"

namespace dynapipe {

/// Simulated passes after which no further price is tried, no variant of the best cut, no exact
/// split and no mode alone. Plans of that many passes have so many windows that variants hardly
/// differ.
inline constexpr std::size_t kMaxEffort = 10'000'000;
/// Windows times stages of the plans that were refined, after which no further one is.
inline constexpr std::size_t kMaxToRefine = 1'000;

/// Number of plans that a search begins with.
inline constexpr std::size_t kKeptPlans = 4;

/// A plan that was built by rules.
struct ConstructedPlan {
    Assignment replicas;
    double makespan_ms;  ///< slowest replica, by the list scheduler
    CutRule cut;         ///< how samples were cut
};

/// Builds plans from rules and keeps the best.
///
/// Samples are cut at several memory prices, and into windows of equally many samples. `spread`
/// gives the windows to the replicas. Each replica begins and ends with a small micro-batch. In
/// between, work rises to the longest micro-batch in the middle and falls again, so that neighbours
/// are similar. Then samples are cut into windows that keep at most 1/p or 1/(1.25 p) of the memory
/// of each of p stages, and windows of the best cut are limited in their work. Every plan is
/// simulated; of very large plans fewer variants are tried. Of the plans that are kept the best is
/// refined first, see `refine_replica`, then others, up to a limit. Beside them stand a plan of
/// each mode alone, and the exact split of `split_samples`, the method of the paper, into windows
/// of which a stage can keep one per stage; `balance_work` shares them out.
///
/// @param simulator      has simulated nothing yet.
/// @param slowness       (n_replicas,): factors by which each replica's passes take longer, >= 1;
///                       there are at most as many replicas as samples.
/// @param n_kept         maximal number of plans to return, >= 1.
/// @param max_effort     see `kMaxEffort`.
/// @param max_to_refine  see `kMaxToRefine`.
/// @return               the best plans, at least one, best first; no replica is empty.
/// @throws std::invalid_argument  if a window of one sample has no cell, or does not fit.
std::vector<ConstructedPlan> construct_plans(ReplicaSimulator& simulator,
                                             std::span<const double> slowness,
                                             std::size_t n_kept = kKeptPlans,
                                             std::size_t max_effort = kMaxEffort,
                                             std::size_t max_to_refine = kMaxToRefine);

}  // namespace dynapipe
