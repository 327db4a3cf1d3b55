#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "dynapipe/list_scheduler.hpp"

namespace dynapipe {

/// What every micro-batch of neighbouring samples costs. Samples that begin the same micro-batches
/// share a row of the tables.
struct WindowCosts {
    StageCosts costs;                     ///< of the micro-batches that may be used
    std::span<const std::int32_t> cells;  ///< row-major (n_modes, n_rows, max_samples): which
                                          ///< of `costs` k + 1 samples from a row's have in a
                                          ///< mode; -1 where they may not be used
    std::span<const std::int32_t> row_of_sample;  ///< (n_samples,)
    std::size_t n_modes;
    std::size_t max_samples;

    /// Which of `costs`; -1 if samples may not run together.
    [[nodiscard]] std::int32_t cell(std::size_t first, std::size_t size, std::size_t mode) const {
        const std::size_t n_rows = cells.size() / (n_modes * max_samples);
        const auto row = static_cast<std::size_t>(row_of_sample[first]);
        return cells[(mode * n_rows + row) * max_samples + size - 1];
    }
};

/// Neighbouring samples that run together.
struct Window {
    std::uint32_t first;  ///< index of the first sample
    std::uint32_t size;   ///< number of samples, >= 1
    std::uint32_t mode;   ///< recompute mode
};

/// Per replica, its windows in the order in which they enter the pipeline.
using Assignment = std::vector<std::vector<Window>>;

struct Improvement {
    Assignment replicas;
    double makespan_ms;  ///< of the slowest replica, as the list scheduler runs it
};

/// Improves a plan by a seeded local search on what the list scheduler makes of it.
///
/// A move swaps or relocates micro-batches within a replica or between two, shifts samples
/// between neighbouring micro-batches, splits one, joins two, or changes a recompute mode. A move
/// that makes the slowest replica slower is accepted only within a threshold that sinks to zero.
/// The number of moves is given, not the time, and random numbers are integers, so the same input
/// gives the same plan on every machine.
///
/// @param start        a plan whose micro-batches all fit; holds each sample exactly once.
/// @param limit_bytes  (n_stages,): what activations may occupy.
/// @return             the best plan seen, never worse than `start`; no replica is empty.
Improvement improve_plan(const WindowCosts& windows, const Assignment& start,
                         std::span<const double> limit_bytes, const Link& link, std::size_t n_moves,
                         std::uint64_t seed);

}  // namespace dynapipe
