#pragma once

#include <array>
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
/// A list may also be run alternating: after a backward pass, a forward pass that has arrived goes
/// first. Where memory is scarce that feeds later stages sooner.
///
/// Where backward passes are split, a stage that has neither computes gradients of weights, which
/// also come first where the memory that they free is wanted.
///
/// A forward pass enters only if it fits now and leaves room for the backward pass of each
/// micro-batch in flight, and for its own. The first one not yet finished can therefore always go
/// on, and every list of micro-batches that fit alone comes to an end.
///
/// Made once and used for many lists: it allocates nothing while it runs, but for micro-batches
/// that it meets for the first time.
///
/// Until the first stage decides about a place of the list, what comes there or later changes
/// nothing. So a list that begins like one that was recorded is run from where they part.
class ListScheduler {
    struct State;

  public:
    /// A list that was run to its end, and how far the stages were when every few micro-batches
    /// had entered. To begin with, none.
    class Recording {
        friend class ListScheduler;
        std::vector<std::uint32_t> list;
        bool alternates = false;
        std::vector<std::vector<double>> arrivals_ms;  ///< (n_stages x 2), each as long as the list
        std::vector<State> states;                     ///< (n, n_stages)
    };

    /// @param costs           of all micro-batches that lists may name.
    /// @param limit_bytes     (n_stages,): what activations may occupy; may be infinite.
    /// @param longest_list    most micro-batches of a list.
    /// @param split_backward  whether gradients of weights are passes of their own.
    ListScheduler(const StageCosts& costs, std::span<const double> limit_bytes, const Link& link,
                  std::size_t longest_list, bool split_backward = false);

    /// Schedules a list of micro-batches, which enter the pipeline in this order.
    ///
    /// @param give_up_ms  stop as soon as the makespan is certain to exceed it.
    /// @param alternates  whether a forward pass goes first after a backward pass.
    /// @return            the makespan in ms; +infinity if given up.
    ///
    /// Time O(n_microbatches * n_stages * (n_stages + k)), k micro-batches in flight at once where
    /// memory may bind.
    double run(std::span<const std::uint32_t> list,
               double give_up_ms = std::numeric_limits<double>::infinity(),
               bool alternates = false);

    /// The same, beginning where a recorded list of this scheduler differs. If the list is run to
    /// its end it takes the place of the recorded one.
    double run(std::span<const std::uint32_t> list, double give_up_ms, bool alternates,
               Recording& recording);

    /// The passes of the last list, row-major (n_stages, n_passes), numbered by place in the list;
    /// it must have been run without a recording.
    [[nodiscard]] std::vector<PassCode> order() const;

    /// What all runs so far have cost: passes scheduled, and micro-batches looked at to begin with.
    [[nodiscard]] std::size_t effort() const { return effort_; }

  private:
    /// A micro-batch on a stage; times by PassKind.
    struct Work {
        std::array<double, 3> pass_ms;
        std::array<double, 2> send_ms;
        double stored_bytes;
        double forward_transient_bytes;
        double backward_transient_bytes;
    };

    /// Of a stage: what it has done so far has led to.
    struct State {
        double free_ms;
        double kept_bytes;
        std::array<double, 2> link_free_ms;  ///< of transfers onwards and back
        std::array<std::uint32_t, 3> n_done;
        std::uint32_t n_passes;
        bool last_is_backward;  ///< of its forward and backward passes
    };

    struct Stage : State {
        double path_left_ms;    ///< forward and backward passes to come
        double weight_left_ms;  ///< gradients of weights to come
        double tail_ms;  ///< from its last backward pass to the end of that on stage 0; 0 after it
        double greatest_transient_bytes;  ///< of what is in flight or to come
        PassKind next;
        bool memory_may_bind;
        std::array<double*, 2> arrivals_ms;  ///< by place; infinite if not known

        [[nodiscard]] double next_arrival_ms(std::size_t kind) const {
            return arrivals_ms[kind][n_done[kind]];
        }
    };

    void prepare(std::uint32_t microbatch);
    void look_up(std::span<const std::uint32_t> list);
    void begin();
    void resume(std::size_t n_states, const Recording& recording);
    void record(std::span<const std::uint32_t> list, std::size_t n_states,
                Recording& recording) const;
    [[nodiscard]] std::size_t n_arrivals(const State* states, std::size_t stage,
                                         std::size_t kind) const;
    double run_on(double give_up_ms);
    void look_ahead(std::size_t stage);
    [[nodiscard]] bool may_end_by(double give_up_ms);
    template <bool kSplit>
    double run_to_end(double give_up_ms);
    template <bool kSplit>
    [[nodiscard]] std::size_t n_steps_left() const;
    template <bool kSplit>
    void choose(std::size_t stage);
    template <bool kSplit>
    void execute(std::size_t stage);
    void execute_both(std::size_t stage);
    template <bool kSplit>
    void send(std::size_t from, std::size_t kind, std::uint32_t place);
    template <bool kSplit>
    [[nodiscard]] bool may_enter(std::size_t stage) const;
    [[nodiscard]] bool may_return(std::size_t stage) const;
    [[nodiscard]] const Work& work(std::uint32_t place, std::size_t stage) const {
        return works_[place][stage];
    }
    [[nodiscard]] std::size_t first_arrival(std::size_t stage, std::size_t kind) const {
        return (2 * stage + kind) * (longest_list_ + 1);
    }
    StageCosts costs_;
    std::span<const double> limit_bytes_;
    Link link_;
    std::size_t n_stages_;
    std::size_t longest_list_;
    bool split_backward_;
    bool alternates_ = false;
    std::size_t effort_ = 0;
    std::vector<std::int32_t> prepared_at_;  ///< per micro-batch, or -1
    std::vector<Work> prepared_;             ///< of those met so far, (n, n_stages)
    std::vector<const Work*> works_;         ///< of those in the list, each (n_stages,)
    std::vector<Stage> stages_;
    std::vector<double> next_ms_;      ///< per stage, start of its next pass; infinite if none
    std::vector<double> arrivals_ms_;  ///< (n_stages, 2, longest_list + 1)
    std::vector<PassCode> passes_;     ///< (n_stages, 3 * longest_list)
    std::vector<State> states_;        ///< of the last list, as a recording has them
};

}  // namespace dynapipe
