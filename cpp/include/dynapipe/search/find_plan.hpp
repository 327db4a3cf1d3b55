#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "dynapipe/batch/window_costs.hpp"
#include "dynapipe/schedule/replica_simulator.hpp"

namespace dynapipe {

/// The best plan so far: the best start, or what a round of the search has found.
struct FoundPlan {
    Assignment replicas;
    double makespan_ms;   ///< slowest replica, by the list scheduler
    std::size_t effort;   ///< passes scheduled in all rounds so far; 0 for the start
    std::size_t n_moves;  ///< moves tried so far, in all rounds
};

/// Finds plans: constructs starts (see `construct_plans`), and improves the best of them by a
/// seeded local search. The list scheduler evaluates all of them.
///
/// A move swaps or relocates micro-batches within a replica or between two replicas, shifts samples
/// between neighbouring micro-batches, splits a micro-batch, joins two, or changes a recomputation
/// mode (see PlanMoves). A move that makes a plan worse is accepted only within a threshold that
/// decreases to zero.
///
/// The search runs in rounds. Each starts from the best plan so far and is as long as all earlier
/// rounds together, whatever the effort. A round that does not fit into the remaining effort is not
/// started. So a search with more effort finds everything that one with less effort finds.
///
/// Effort is counted in scheduled passes, not in time, and random numbers are integers, so the same
/// input gives the same plan on every machine.
///
/// Of several tables of windows, as of samples in several orders, all are searched for as long as
/// the first two rounds take, and then those whose best plans are at most 1.003 times as long as
/// the best of all. That does not depend on the effort. A table is left out if its first sample,
/// the longest, alone takes longer through the stages and back than the best start of those before
/// it.
///
/// @param simulators  of the tables, at least one; they have simulated nothing yet.
/// @param slowness   (n_replicas,): factors by which each replica's passes take longer, >= 1;
///                   there are at most as many replicas as samples.
/// @param effort     passes to schedule in rounds for every table; the last move of a round may
///                   exceed it.
/// @return           per table, the best start, followed by the improvements that rounds within
///                   `effort` found, the best last; nothing of a table that is left out; no replica
///                   is empty.
/// @throws std::invalid_argument  if a window of one sample has no cell, or does not fit.
std::vector<std::vector<FoundPlan>> find_plans(std::span<ReplicaSimulator* const> simulators,
                                               std::span<const double> slowness, std::size_t effort,
                                               std::uint64_t seed);

}  // namespace dynapipe
