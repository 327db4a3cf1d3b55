#pragma once

#include <algorithm>
#include <cstddef>
#include <span>
#include <vector>

#include "dynapipe/cost/link.hpp"
#include "dynapipe/cost/stage_costs.hpp"

namespace dynapipe {

/// Times in ms since the start of the iteration. Times of passes are row-major (n_stages,
/// n_passes), in the order of the schedule.
struct Timeline {
    std::vector<double> start_ms;
    std::vector<double> end_ms;
    std::vector<double> send_start_ms;   ///< start of sending the pass's result; NaN if none
    std::vector<double> send_end_ms;     ///< when the neighbour has the result; NaN if none
    std::vector<double> peak_bytes;      ///< (n_stages,)
    std::vector<double> busy_ms;         ///< (n_stages,): total time of passes
    std::vector<std::size_t> n_started;  ///< (n_stages,): less than n_passes if deadlocked
    double makespan_ms;                  ///< end of the last pass; infinite if deadlocked
};

/// Memory of a stage, which depends on the order of its passes alone, not on their times.
struct StageMemory {
    double kept_bytes = 0;  ///< between two passes
    double peak_bytes = 0;

    /// Runs a pass: what a forward pass stores is released by the last pass of its micro-batch.
    void run(PassKind kind, const PassCosts& cost, bool splits_backward) {
        const bool forward = kind == PassKind::kForward;
        kept_bytes += forward ? cost.stored_bytes : 0.0;
        const double transient_bytes =
            forward ? cost.forward_transient_bytes : cost.backward_transient_bytes;
        peak_bytes = std::max(peak_bytes, kept_bytes + transient_bytes);
        const PassKind last = splits_backward ? PassKind::kWeight : PassKind::kBackward;
        kept_bytes -= kind == last ? cost.stored_bytes : 0.0;
    }
};

/// Simulates schedules.
///
/// A pass starts as soon as its stage has finished the previous pass and the input has arrived. Its
/// result is sent at once, after whatever the stage sent earlier in the same direction (in either
/// direction unless the link is full duplex). The last stage's forward pass sends nothing, and
/// neither does the first stage's backward pass. A stage's memory starts at static_bytes.
///
/// If the schedule splits backward passes, kBackward takes gradient_ms() and sends the gradient;
/// kWeight takes weight_ms and may run at any later time. Both need backward_transient_bytes, and
/// only the end of kWeight releases what the forward pass stored.
///
/// If every stage waits for a pass that comes later in the order of another stage, the schedule is
/// deadlocked: entries of passes that never start are NaN.
///
/// A simulator is constructed once and used for many schedules of the same micro-batches. From the
/// second schedule on it allocates nothing.
///
/// Time and memory O(n_stages * n_passes): stages and links keep their order, so every time is the
/// maximum of two earlier times plus a duration, and no event queue is needed.
///
/// Source: Jiang et al., "DynaPipe", EuroSys 2024, doi:10.1145/3627703.3629585, communication
/// planning; split: Qi et al., "Zero Bubble Pipeline Parallelism", ICLR 2024.
class Simulator {
  public:
    /// @param static_bytes  (n_stages,): weights, gradients and optimizer state.
    Simulator(const StageCosts& costs, std::span<const double> static_bytes, const Link& link);
    // It refers to what it owns.
    Simulator(const Simulator&) = delete;
    Simulator& operator=(const Simulator&) = delete;

    /// @param order  row-major (n_stages, n_passes); each pass exactly once on every stage,
    ///               n_passes = 2 * n_microbatches, or 3 * n_microbatches with kWeight, or
    ///               n_microbatches of kForward alone, which release nothing that they store.
    /// @return       the timeline, valid until the next run.
    const Timeline& run(std::span<const PassCode> order);

  private:
    void start();
    [[nodiscard]] double send_ms(const PassCosts& cost) const;
    [[nodiscard]] double& input_ms(std::size_t stage, PassCode code);
    [[nodiscard]] bool awaits_known_input(std::size_t stage);
    [[nodiscard]] double pass_ms(PassKind kind, const PassCosts& cost) const;
    void run_next_pass(std::size_t stage);
    void pass_on(std::size_t stage, PassCode code, std::size_t place);
    void send(std::size_t stage, std::size_t receiver, PassCode code, std::size_t place);

    StageCosts costs_;
    std::span<const double> static_bytes_;
    Link link_;
    std::size_t n_stages_;
    std::span<const PassCode> order_;
    std::size_t n_passes_ = 0;
    bool splits_backward_ = false;
    std::vector<double> input_ms_;      ///< row-major (n_stages, 3 * n_microbatches), by code
    std::vector<double> link_free_ms_;  ///< per stage, to the next and to the previous stage
    std::vector<StageMemory> memory_;   ///< per stage
    std::vector<std::size_t> awake_;    ///< stages that may be able to proceed
    Timeline found_;
};

}  // namespace dynapipe
