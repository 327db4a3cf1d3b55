#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "dynapipe/batch/window_costs.hpp"
#include "dynapipe/cost/link.hpp"
#include "dynapipe/schedule/lightest_first.hpp"
#include "dynapipe/schedule/list_scheduler.hpp"
#include "dynapipe/schedule/precedence.hpp"

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
    /// @return  infinite if it is certain to exceed give_up_ms, or if a window does not fit.
    double makespan_ms(std::span<const Window> replica, double give_up_ms,
                       Precedence precedence = Precedence::kBackward);

    /// The same, by whichever precedence ends soonest.
    double best_makespan_ms(std::span<const Window> replica, double give_up_ms,
                            std::span<const Precedence> precedences);

    /// Makespan of the slowest replica of a plan, each by the precedence that ends soonest;
    /// infinite if it is certain to exceed give_up_ms.
    ///
    /// @param slowness  (n_replicas,): by what each replica takes longer.
    double slowest_ms(const Assignment& plan, std::span<const double> slowness, double give_up_ms);

    /// Makespan of a list of micro-batches. Where passes go first in, first out, simulation starts
    /// where the list differs from the recorded one.
    double run(std::span<const std::uint32_t> list, double give_up_ms, Precedence precedence,
               ListRecording& recording);

    [[nodiscard]] bool is_heavy(const Window& window) const {
        return dynapipe::is_heavy(windows_.costs, windows_.microbatch(window), limit_bytes_);
    }

    /// Whether a window runs as slices of its sample.
    [[nodiscard]] bool has_slices(const Window& window) const {
        return windows_.has_slices(windows_.microbatch(window));
    }

    /// Precedences worth a try: overtaking if one of the windows is heavy, and only overtaking if
    /// one runs as slices, as these go back in another order than they come.
    [[nodiscard]] std::span<const Precedence> precedences_of(std::span<const Window> replica) const;

    /// Passes simulated so far, see ListScheduler.
    [[nodiscard]] std::size_t effort() const {
        return scheduler_.effort() + lightest_first_.effort();
    }

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
    LightestFirst lightest_first_;
    List list_;      ///< micro-batches and precedence
    List expanded_;  ///< with the slices of those that have some in their place
    /// Makespans of lists; below zero, what a makespan is known to exceed.
    std::unordered_map<List, double, HashOfList> known_ms_;
};

}  // namespace dynapipe
