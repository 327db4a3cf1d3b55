#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "dynapipe/stage_costs.hpp"

namespace dynapipe {

/// A connection between neighbouring stages: n bytes take latency_ms + n / bytes_per_ms.
struct Link {
    double latency_ms;
    double bytes_per_ms;
    bool full_duplex;  ///< whether a stage sends in both directions at the same time
};

/// Times in ms from the start of the iteration. Those of passes are row-major
/// (n_stages, n_passes), n_passes = 2 * n_microbatches, in the order of the schedule.
struct Timeline {
    std::vector<double> start_ms;
    std::vector<double> end_ms;
    std::vector<double> send_start_ms;   ///< transfer of what the pass produced; NaN if none
    std::vector<double> send_end_ms;     ///< when the neighbour has it; NaN if none
    std::vector<double> peak_bytes;      ///< (n_stages,)
    std::vector<double> busy_ms;         ///< (n_stages,): sum of the passes' times
    std::vector<std::size_t> n_started;  ///< (n_stages,): less than n_passes if deadlocked
};

/// Runs a schedule in time.
///
/// A pass starts as soon as its stage has finished the pass before it and the input has arrived.
/// What it produces is sent at once, after whatever the stage sent earlier in the same direction
/// (in either direction unless the link is full duplex). Between the forward and the backward
/// pass of the last stage nothing is sent. A stage's memory starts at static_bytes.
///
/// If every stage waits for a pass that comes later in the order of another one, the schedule is
/// deadlocked: entries of passes that never start are NaN.
///
/// @param order         row-major (n_stages, n_passes); on every stage each pass exactly once.
/// @param static_bytes  (n_stages,): weights, gradients and optimizer state.
///
/// Time and memory O(n_stages * n_passes): stages and links keep their order, so that every time
/// is the maximum of two earlier ones plus a duration and no queue of events is needed.
///
/// Source: Jiang et al., "DynaPipe", EuroSys 2024, doi:10.1145/3627703.3629585, communication
/// planning.
Timeline simulate(std::span<const PassCode> order, const StageCosts& costs,
                  std::span<const double> static_bytes, const Link& link);

}  // namespace dynapipe
