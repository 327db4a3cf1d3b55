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

/// Simulates the windows of one replica by a list scheduler. What it has simulated it knows:
/// plans that rules construct share many of their replicas, and a search starts from such plans.
class ReplicaSimulator {
  public:
    /// @param windows         must live longer than the simulator, as must limit_bytes.
    /// @param limit_bytes     (n_stages,): memory for activations.
    /// @param split_backward  whether gradients of weights are separate passes.
    /// @param reduce_ms       (n_stages,): time from a stage's last pass until its gradients are
    ///                        reduced; makespans include it. Empty: none.
    ///                        Slow replicas stretch it like a pass, which is an approximation.
    ReplicaSimulator(const WindowCosts& windows, std::span<const double> limit_bytes,
                     const Link& link, bool split_backward, std::span<const double> reduce_ms = {});
    // Its schedulers refer to what it owns.
    ReplicaSimulator(const ReplicaSimulator&) = delete;
    ReplicaSimulator& operator=(const ReplicaSimulator&) = delete;

    /// Makespan of windows in the order in which they enter the pipeline.
    ///
    /// @param alternates  as for ListScheduler.
    /// @return  infinite if it is certain to exceed give_up_ms, or if a window does not fit.
    double makespan_ms(std::span<const Window> replica, double give_up_ms, bool alternates = false);

    /// The same, alternating or not, whichever ends sooner.
    double best_makespan_ms(std::span<const Window> replica, double give_up_ms);

    /// Makespan of a list of micro-batches. Simulation starts where it differs from the recorded
    /// one.
    double run(std::span<const std::uint32_t> list, double give_up_ms, bool alternates,
               ListRecording& recording);

    /// Passes simulated so far, see ListScheduler.
    [[nodiscard]] std::size_t effort() const { return scheduler_.effort(); }

    [[nodiscard]] const WindowCosts& windows() const { return windows_; }
    [[nodiscard]] std::span<const double> limit_bytes() const { return limit_bytes_; }
    [[nodiscard]] const Link& link() const { return link_; }

  private:
    using List = std::vector<std::uint32_t>;

    std::span<const std::uint32_t> with_slices(std::span<const std::uint32_t> list);

    struct HashOfList {
        std::size_t operator()(const List& list) const;
    };

    WindowCosts windows_;
    std::span<const double> limit_bytes_;
    Link link_;
    ListScheduler scheduler_;
    List list_;      ///< micro-batches, and whether it alternates
    List expanded_;  ///< with the slices of those that have some in their place
    /// Makespans of lists; below zero, what a makespan is known to exceed.
    std::unordered_map<List, double, HashOfList> known_ms_;
};

}  // namespace dynapipe
