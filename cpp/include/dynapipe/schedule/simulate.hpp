#pragma once

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
    double makespan_ms = 0.0;            ///< end of the last pass; infinite if deadlocked
};

/// Simulates a schedule.
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
/// @param order         row-major (n_stages, n_passes); each pass exactly once on every stage,
///                      n_passes = 2 * n_microbatches, or 3 * n_microbatches with kWeight, or
///                      n_microbatches of kForward alone, which release nothing that they store.
/// @param static_bytes  (n_stages,): weights, gradients and optimizer state.
///
/// Time and memory O(n_stages * n_passes): stages and links keep their order, so every time is the
/// maximum of two earlier times plus a duration, and no event queue is needed.
///
/// Source: Jiang et al., "DynaPipe", EuroSys 2024, doi:10.1145/3627703.3629585, communication
/// planning; split: Qi et al., "Zero Bubble Pipeline Parallelism", ICLR 2024.
Timeline simulate(std::span<const PassCode> order, const StageCosts& costs,
                  std::span<const double> static_bytes, const Link& link);

}  // namespace dynapipe
