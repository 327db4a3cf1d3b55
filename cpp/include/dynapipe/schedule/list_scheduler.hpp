#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "dynapipe/cost/link.hpp"
#include "dynapipe/cost/stage_costs.hpp"
#include "dynapipe/schedule/list_recording.hpp"
#include "dynapipe/search/work_cache.hpp"

namespace dynapipe {

/// Schedules micro-batches while simulating them, without a given order of passes.
///
/// Whenever a stage is free it runs the next backward pass that has arrived. If there is none, it
/// runs the next forward pass that has arrived and that fits into memory. Micro-batches pass every
/// stage first in, first out; so does a sample that runs as slices, of which the last returns
/// first. A stage is therefore idle only if it has nothing that it may run, and the number of
/// in-flight micro-batches follows from times and memory rather than from a rule.
///
/// A list may also be run alternating: after a backward pass, a forward pass that has arrived goes
/// first. Where memory is scarce, this supplies later stages sooner.
///
/// If backward passes are split, a stage with neither of the two computes gradients of weights.
/// These also go first where the memory that they release is needed.
///
/// A forward pass enters only if it fits now and leaves room for the backward pass of each
/// in-flight micro-batch and of its own micro-batch. The first slice of a sample enters only if all
/// fit in this sense, and the others then whenever they have arrived. The first unfinished
/// micro-batch can therefore always proceed, so every list of micro-batches that fit alone runs to
/// its end.
///
/// A scheduler is constructed once and used for many lists. Running a list allocates nothing,
/// except for micro-batches that the scheduler has not seen before, and if the list is longer than
/// all before.
class ListScheduler {
  public:
    /// @param costs           costs of all micro-batches that lists may name.
    /// @param limit_bytes     (n_stages,): memory for activations; may be infinite.
    /// @param split_backward  whether gradients of weights are separate passes.
    /// @param reduce_ms       (n_stages,): time from a stage's last pass until its gradients are
    ///                        reduced; the makespan includes it. Empty: none.
    /// @param later_slices    per micro-batch, how many slices of its sample come behind it in
    ///                        every list; empty if there are no slices. The slices of a sample have
    ///                        the same transient memory.
    ListScheduler(const StageCosts& costs, std::span<const double> limit_bytes, const Link& link,
                  bool split_backward = false, std::span<const double> reduce_ms = {},
                  std::span<const std::uint32_t> later_slices = {});
    // It refers to what it owns.
    ListScheduler(const ListScheduler&) = delete;
    ListScheduler& operator=(const ListScheduler&) = delete;

    /// Schedules micro-batches, which enter the pipeline in the order of the list.
    ///
    /// @param give_up_ms  the run stops as soon as the makespan is certain to exceed this.
    /// @param alternates  whether a forward pass goes first after a backward pass.
    /// @return            the makespan in ms; +infinity if given up.
    ///
    /// Time O(n_microbatches * n_stages * (n_stages + k)), where k is the number of in-flight
    /// micro-batches if memory may be a limit.
    double run(std::span<const std::uint32_t> list,
               double give_up_ms = std::numeric_limits<double>::infinity(),
               bool alternates = false);

    /// The same, starting where the list differs from one recorded by this scheduler. If the list
    /// is run to its end, it replaces the recorded one.
    double run(std::span<const std::uint32_t> list, double give_up_ms, bool alternates,
               ListRecording& recording);

    /// The passes of the last list, row-major (n_stages, n_passes). Micro-batches are numbered by
    /// their place in the list, which must have been run without a recording.
    [[nodiscard]] std::vector<PassCode> order() const;

    /// Effort of all runs so far: passes scheduled, plus micro-batches looked up at the start.
    [[nodiscard]] std::size_t effort() const { return effort_; }

  private:
    struct Stage : StageState {
        double path_left_ms;    ///< forward and backward passes to come
        double weight_left_ms;  ///< gradients of weights to come
        double tail_ms;         ///< from its last backward pass to the end of all that must follow,
                                ///< reductions included; 0 after it
        double reduce_ms = 0.0;           ///< from its last pass to the end of its reduction
        double greatest_transient_bytes;  ///< of micro-batches in flight or to come
        PassKind next;
        bool memory_may_bind;
        std::array<double*, 2> arrivals_ms;  ///< by turn; infinite if not known

        [[nodiscard]] double next_arrival_ms(std::size_t kind) const {
            return arrivals_ms[kind][n_done[kind]];
        }
    };

    void take(std::span<const std::uint32_t> list, bool alternates);
    void find_turns(std::span<const std::uint32_t> list);
    void begin();
    void resume(const ListRecording& recording, std::size_t n_states);
    double run_on(double give_up_ms);
    void look_ahead(std::size_t stage);
    [[nodiscard]] bool may_end_by(double give_up_ms);
    template <bool kSplit>
    double run_to_end(double give_up_ms);
    template <bool kSplit>
    double run_in_strides(double give_up_ms);
    template <bool kSplit, bool kInOrder>
    bool step(std::size_t stage, double give_up_ms);
    std::size_t find_due();
    [[nodiscard]] double news_take_ms(std::size_t stage) const;
    [[nodiscard]] std::size_t soonest() const;
    [[nodiscard]] double last_end_ms() const;
    template <bool kSplit>
    [[nodiscard]] std::size_t n_steps_left() const;
    template <bool kSplit, bool kInOrder>
    void choose(std::size_t stage);
    template <bool kSplit, bool kInOrder>
    void execute(std::size_t stage);
    template <bool kInOrder>
    void execute_both(std::size_t stage);
    template <bool kSplit, bool kInOrder>
    void send(std::size_t from, std::size_t kind, std::uint32_t turn);
    template <bool kSplit>
    [[nodiscard]] bool may_enter(std::size_t stage) const;
    [[nodiscard]] bool may_return(std::size_t stage) const;
    /// Of the micro-batch whose turn it is to run its pass of a kind.
    [[nodiscard]] const StageWork& work(std::size_t kind, std::uint32_t turn,
                                        std::size_t stage) const {
        return works_[kind][turn][cache_.kind_of_stage(stage)];
    }
    [[nodiscard]] std::size_t n_microbatches() const { return works_[0].size(); }
    [[nodiscard]] bool may_slice() const { return !later_slices_.empty(); }
    /// Of the micro-batch that goes back at a turn, or the turn at which one goes back.
    [[nodiscard]] std::uint32_t place_of_return(std::uint32_t turn) const {
        return may_slice() ? place_of_return_[turn] : turn;
    }

    WorkCache cache_;
    std::span<const double> limit_bytes_;
    bool full_duplex_;
    std::size_t n_stages_;
    bool split_backward_;
    std::span<const std::uint32_t> later_slices_;
    bool alternates_ = false;
    bool is_recorded_ = false;
    std::size_t effort_ = 0;
    /// Micro-batches of the list by kind of pass and turn, each (n_kinds,).
    std::array<std::span<const StageWork* const>, 3> works_;
    std::vector<const StageWork*> returning_;  ///< by turn, as are these if samples may be sliced
    std::vector<std::uint32_t> place_of_return_;
    std::vector<std::uint32_t> n_later_;  ///< by place, slices behind it
    std::vector<Stage> stages_;
    std::vector<double> starts_ms_;     ///< per stage, start of its next pass; infinite if none
    std::vector<double> news_take_ms_;  ///< per stage, until it may hear of a pass to come
    std::vector<std::uint32_t> due_;    ///< stages whose next pass begins in a stride
    std::vector<double> arrivals_ms_;   ///< (n_stages, 2, n_microbatches + 1) of the longest list
    std::vector<PassCode> passes_;      ///< (n_stages, 3 * n_microbatches), likewise
    std::vector<StageState> states_;    ///< states in the last list, as in a recording
};

}  // namespace dynapipe
