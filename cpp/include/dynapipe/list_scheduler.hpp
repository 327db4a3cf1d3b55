#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "dynapipe/simulate.hpp"
#include "dynapipe/stage_costs.hpp"

namespace dynapipe {

/// Schedules micro-batches while it simulates them: no order of passes is given.
///
/// Whenever a stage is free it runs the next backward pass that has arrived, or else the next
/// forward pass that has arrived and for which there is memory; micro-batches pass every stage
/// first in, first out. So a stage is idle only while it has nothing that it may run, and the
/// number of micro-batches in flight follows from times and memory instead of from a rule.
///
/// A forward pass enters only if it fits now and leaves room for the backward pass of each
/// micro-batch in flight, and for its own. The first one not yet finished can therefore always go
/// on, and every list of micro-batches that fit alone comes to an end.
///
/// Made once and used for many lists: it allocates nothing while it runs.
class ListScheduler {
  public:
    /// @param costs         of all micro-batches that lists may name.
    /// @param limit_bytes   (n_stages,): what activations may occupy; may be infinite.
    /// @param longest_list  most micro-batches of a list.
    ListScheduler(const StageCosts& costs, std::span<const double> limit_bytes, const Link& link,
                  std::size_t longest_list);

    /// Schedules a list of micro-batches, which enter the pipeline in this order.
    ///
    /// @param give_up_ms  stop as soon as the makespan is certain to exceed it.
    /// @return            the makespan in ms; +infinity if given up.
    ///
    /// Time O(n_microbatches * n_stages * (n_stages + k)), k micro-batches in flight at once.
    double run(std::span<const std::uint32_t> list,
               double give_up_ms = std::numeric_limits<double>::infinity());

    /// The passes of the last list, row-major (n_stages, 2 * n_microbatches), numbered by place
    /// in the list.
    [[nodiscard]] std::vector<PassCode> order() const;

  private:
    struct Stage {
        double free_ms;
        double work_left_ms;
        double kept_bytes;
        double link_free_ms[2];  ///< of transfers behind and before
        double next_ms;          ///< start of the next pass that may run; infinite if none
        std::size_t n_forward;
        std::size_t n_backward;
        std::size_t n_arrived_forward;
        std::size_t n_arrived_backward;
        bool next_is_backward;
    };

    void start(std::span<const std::uint32_t> list);
    void choose(std::size_t stage);
    void execute(std::size_t stage);
    void send(std::size_t from, std::size_t to, std::size_t place, double ready_ms);
    [[nodiscard]] bool has_room(std::size_t stage) const;
    [[nodiscard]] const PassCosts& cost_of(std::size_t place, std::size_t stage) const {
        return costs_.at(list_[place], stage);
    }
    double& arrival_ms(std::size_t stage, std::size_t place, bool backward) {
        return arrivals_ms_[(2 * stage + (backward ? 1 : 0)) * longest_list_ + place];
    }

    StageCosts costs_;
    std::span<const double> limit_bytes_;
    Link link_;
    std::size_t n_stages_;
    std::size_t longest_list_;
    std::span<const std::uint32_t> list_;
    std::vector<Stage> stages_;
    std::vector<double> arrivals_ms_;  ///< (n_stages, 2, longest_list)
    std::vector<PassCode> passes_;     ///< (n_stages, 2 * longest_list)
};

}  // namespace dynapipe
