#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "dynapipe/batch/window_costs.hpp"
#include "dynapipe/cost/link.hpp"
#include "dynapipe/schedule/list_scheduler.hpp"

namespace dynapipe {

/// Simulates the windows of one replica by the list scheduler.
class ReplicaSimulator {
  public:
    /// @param limit_bytes     (n_stages,): memory for activations.
    /// @param split_backward  whether gradients of weights are separate passes.
    ReplicaSimulator(const WindowCosts& windows, std::span<const double> limit_bytes,
                     const Link& link, bool split_backward);

    /// Makespan of windows in the order in which they enter the pipeline.
    ///
    /// @return  infinite if it is certain to exceed give_up_ms, or if a window does not fit.
    double makespan_ms(std::span<const Window> replica, double give_up_ms, bool alternates = false);

    /// The same, alternating or not, whichever ends sooner.
    double best_makespan_ms(std::span<const Window> replica, double give_up_ms);

  private:
    WindowCosts windows_;
    ListScheduler scheduler_;
    std::vector<std::uint32_t> list_;
};

}  // namespace dynapipe
