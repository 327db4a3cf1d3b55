#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <vector>

#include "dynapipe/batch/window_costs.hpp"
#include "dynapipe/schedule/replica_simulator.hpp"

namespace dynapipe {

/// The best plan so far, after the round that found it.
struct Improvement {
    Assignment replicas;
    double makespan_ms;   ///< slowest replica, by the list scheduler
    std::size_t effort;   ///< passes scheduled in all rounds so far; 0 for a start
    std::size_t n_moves;  ///< moves tried so far, in all rounds
};

/// A seeded local search that improves plans; the list scheduler evaluates them.
///
/// A move swaps or relocates micro-batches within a replica or between two replicas, shifts samples
/// between neighbouring micro-batches, splits a micro-batch, joins two, changes a recomputation
/// mode, or changes the precedence of a replica (see PlanMoves): to one by which micro-batches
/// overtake others only if the best start has it. A move that makes a
/// plan worse is accepted only within a threshold that decreases to zero. The objective is mainly
/// the end of the slowest replica and, with a small weight, the ends of all others: time that a
/// replica gains makes room for work of the slowest one.
///
/// The search runs in rounds. Each starts from the best plan so far and is as long as all earlier
/// rounds together, whatever the effort. A round that does not fit into the remaining effort is not
/// started, nor is any once the best plan takes no longer than the longest sample's round trip with
/// the reductions behind it. A search with more effort therefore finds everything that one with
/// less effort finds, and a search that was stopped goes on as if it had not been.
///
/// Effort is counted in scheduled passes, not in time, and random numbers are integers, so the same
/// input gives the same plan on every machine.
class PlanSearch {
  public:
    /// @param simulator  must live longer than the search; often it knows replicas of the starts.
    /// @param starts     at least one plan; each holds every sample exactly once, and all of its
    ///                   micro-batches fit.
    /// @param slowness   (n_replicas,): by what the passes of each replica take longer, >= 1.
    PlanSearch(ReplicaSimulator& simulator, std::span<const Assignment> starts,
               std::span<const double> slowness, std::uint64_t seed);
    PlanSearch(PlanSearch&& other) noexcept;
    ~PlanSearch();

    /// Goes on until no further round fits into `effort`, counted from the start.
    ///
    /// @param effort  passes to schedule; the last move of a round may exceed it.
    /// @return        the best start, followed by the improvements that rounds within `effort`
    ///                found, the best last; no replica is empty.
    std::vector<Improvement> improve(std::size_t effort);

  private:
    struct Rounds;
    std::unique_ptr<Rounds> rounds_;
};

/// Makespans of plans, computed as in the search; infinite if a micro-batch does not fit, or if
/// they are certain to exceed give_up_ms.
std::vector<double> makespans_ms(ReplicaSimulator& simulator, std::span<const Assignment> plans,
                                 std::span<const double> slowness,
                                 double give_up_ms = std::numeric_limits<double>::infinity());

}  // namespace dynapipe
