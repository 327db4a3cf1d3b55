#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "dynapipe/batch/window_costs.hpp"
#include "dynapipe/cost/link.hpp"
#include "dynapipe/schedule/list_scheduler.hpp"

namespace dynapipe {

/// Simulates the windows of one replica by the list scheduler. What it has simulated it knows:
/// plans that rules construct share many of their replicas, and a search starts from such plans.
class ReplicaSimulator {
  public:
    /// @param windows         must live longer than the simulator, as must limit_bytes.
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

    /// That of the slowest replica of a plan; infinite if it is certain to exceed give_up_ms.
    ///
    /// @param slowness  (n_replicas,): by what each replica takes longer.
    double slowest_ms(const Assignment& plan, std::span<const double> slowness, double give_up_ms);

    /// Passes simulated so far, see ListScheduler.
    [[nodiscard]] std::size_t effort() const { return scheduler_.effort(); }

    [[nodiscard]] const WindowCosts& windows() const { return windows_; }
    [[nodiscard]] std::span<const double> limit_bytes() const { return limit_bytes_; }
    [[nodiscard]] const Link& link() const { return link_; }
    [[nodiscard]] bool split_backward() const { return split_backward_; }
    /// Runs lists of the same micro-batches.
    [[nodiscard]] ListScheduler& scheduler() { return scheduler_; }

  private:
    using List = std::vector<std::uint32_t>;

    struct HashOfList {
        std::size_t operator()(const List& list) const;
    };

    WindowCosts windows_;
    std::span<const double> limit_bytes_;
    Link link_;
    bool split_backward_;
    ListScheduler scheduler_;
    List list_;  ///< micro-batches, and whether they alternate
    /// Makespans of lists; below zero, what a makespan is known to exceed.
    std::unordered_map<List, double, HashOfList> known_ms_;
};

}  // namespace dynapipe
