#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "dynapipe/cost/link.hpp"
#include "dynapipe/cost/stage_costs.hpp"
#include "dynapipe/schedule/soonest.hpp"
#include "dynapipe/search/work_cache.hpp"

namespace dynapipe {

/// Schedules micro-batches as the list scheduler does, but light ones overtake heavy ones on their
/// way back.
///
/// Of the backward passes that have arrived, that with the least transient memory goes first, and
/// one that does not fit waits. A forward pass enters if it fits, and if all micro-batches in
/// flight could then run their last passes one after the other, the lightest first: each frees what
/// the next may need (Dijkstra's banker's algorithm for one resource). So many light micro-batches
/// may be in flight on a stage to which a heavy one comes back, as they leave before it. In
/// first-in, first-out order the heavy one would have to fit beside all that came after it.
///
/// The slices of a sample follow each other in the list. The first enters only if all of them fit
/// in the same sense, as none of them can return before the last has entered; the others then enter
/// whenever they have arrived. They return in descending order. So they count as one micro-batch
/// that keeps what all keep.
///
/// Every list of micro-batches that fit alone runs to its end: on the last stage all that is in
/// flight can return, one after the other, and so on the stage before, as soon as it has come back
/// from there. So that rounding does not spoil this, bytes are always added up from the heaviest to
/// the lightest: such a sum never grows when one of its terms goes.
class LightestFirst {
  public:
    /// @param costs           costs of all micro-batches that lists may name.
    /// @param limit_bytes     (n_stages,): memory for activations; may be infinite.
    /// @param split_backward  whether gradients of weights are separate passes.
    /// @param later_slices    per micro-batch, how many slices of its sample come behind it in
    ///                        every list; empty if there are no slices. The slices of a sample have
    ///                        the same transient memory.
    /// @param reduce_ms       as for ListScheduler.
    LightestFirst(const StageCosts& costs, std::span<const double> limit_bytes, const Link& link,
                  bool split_backward, std::span<const std::uint32_t> later_slices = {},
                  std::span<const double> reduce_ms = {});
    // It refers to what it owns.
    LightestFirst(const LightestFirst&) = delete;
    LightestFirst& operator=(const LightestFirst&) = delete;

    /// Schedules micro-batches, which enter the pipeline in the order of the list.
    ///
    /// @param give_up_ms  the run stops as soon as the makespan is certain to exceed this.
    /// @return            the makespan in ms; +infinity if given up.
    ///
    /// Time O(n_microbatches * n_stages * k), where k is the number of in-flight micro-batches.
    double run(std::span<const std::uint32_t> list,
               double give_up_ms = std::numeric_limits<double>::infinity());

    /// The passes of the last list, row-major (n_stages, n_passes). Micro-batches are numbered by
    /// their place in the list.
    [[nodiscard]] std::vector<PassCode> order() const;

    /// Effort of all runs so far: passes scheduled, plus micro-batches looked up at the start.
    [[nodiscard]] std::size_t effort() const { return effort_; }

  private:
    struct InFlight {
        double transient_bytes;
        double stored_bytes;
        double kept_bytes;  ///< stored by itself and by all that are heavier
        std::uint32_t place;
    };

    /// A backward pass or a gradient of weights that can run, as far as others tell.
    struct Waiting {
        double transient_bytes;
        double since_ms;
        std::uint32_t place;
    };

    struct Stage {
        double free_ms;
        double left_ms;                      ///< work to come
        double reduce_ms = 0.0;              ///< from its last pass to the end of its reduction
        std::array<double, 2> link_free_ms;  ///< transfers to the next and the previous stage
        std::uint32_t n_entered;
        PassKind next;
        std::uint32_t next_place;         ///< whose pass is next
        std::vector<InFlight> in_flight;  ///< the lightest first, as are these:
        std::vector<Waiting> arrived;     ///< backward passes
        std::vector<Waiting> returned;    ///< gradients of weights
        std::vector<bool> has_returned;   ///< by place
        std::vector<double> arrivals_ms;  ///< of forward passes; infinite if not known
        std::vector<PassCode> passes;

        [[nodiscard]] double kept_bytes() const {
            return in_flight.empty() ? 0.0 : in_flight.front().kept_bytes;
        }
        [[nodiscard]] auto first_heavier(double transient_bytes) const;
        void add_up(std::size_t n);
    };

    void begin();
    void choose(std::size_t stage);
    void execute(std::size_t stage);
    void enter(std::size_t stage);
    void wait(std::vector<Waiting>& passes, std::size_t stage, std::uint32_t place,
              double since_ms);
    void leave(std::size_t stage, std::uint32_t place);
    void send(std::size_t from, PassKind kind, std::uint32_t place);
    [[nodiscard]] bool may_enter(std::size_t stage) const;
    [[nodiscard]] std::uint32_t n_later(std::uint32_t place) const {
        return later_slices_.empty() ? 0 : later_slices_[list_[place]];
    }
    [[nodiscard]] const StageWork& work(std::uint32_t place, std::size_t stage) const {
        return works_[place][cache_.kind_of_stage(stage)];
    }

    WorkCache cache_;
    std::span<const double> limit_bytes_;
    bool full_duplex_;
    bool split_backward_;
    std::span<const std::uint32_t> later_slices_;
    std::size_t effort_ = 0;
    std::span<const std::uint32_t> list_;
    std::span<const StageWork* const> works_;  ///< micro-batches of the list, each (n_kinds,)
    std::vector<Stage> stages_;
    Soonest next_ms_;  ///< per stage, start of its next pass; infinite if none
};

}  // namespace dynapipe
