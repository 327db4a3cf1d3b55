#pragma once

#include <span>
#include <vector>

#include "dynapipe/batch/priced_cut.hpp"
#include "dynapipe/batch/window_costs.hpp"
#include "dynapipe/schedule/replica_simulator.hpp"

namespace dynapipe {

/// Refines a plan whose windows are already assigned to replicas.
///
/// Each replica is given the shape of its order, the memory price for its modes and the mode of its
/// longest window that suit it best. Its first windows are split, so that work rises from a small
/// one, as long as that helps. Then the slowest replica passes windows on to the fastest as long as
/// that helps.
class PlanRefiner {
  public:
    /// @param cutter    rates the windows; must outlive the refiner, as must all that follows.
    /// @param slowness  (n_replicas,): by what the passes of each replica take longer.
    PlanRefiner(const PricedCutter& cutter, ReplicaSimulator& simulator,
                std::span<const double> slowness);

    /// Changes a plan in which every replica can run.
    ///
    /// @return  makespan of its slowest replica.
    double refine(Assignment& replicas);

  private:
    double refine_replica(std::vector<Window>& replica);
    bool try_rise(double rise, std::vector<Window>& windows, std::vector<Window>& best,
                  double& best_ms);
    bool split_first(std::vector<Window>& replica, double& best_ms);
    bool hand_over(Assignment& replicas, std::vector<double>& ms);
    double best_makespan_ms(const std::vector<Window>& replica, double give_up_ms) {
        return simulator_.best_makespan_ms(replica, give_up_ms);
    }

    const WindowCosts& windows_;
    const PricedCutter& cutter_;
    ReplicaSimulator& simulator_;
    std::span<const double> slowness_;
};

}  // namespace dynapipe
