#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "dynapipe/list_scheduler.hpp"

namespace dynapipe {

/// What every micro-batch of neighbouring samples costs. Samples are in descending order, so the
/// first one sets the row length; entry (m, l, k, s) is of k + 1 samples of which the first has
/// length l, in recompute mode m, on stage s. It is infinite where they do not fit.
struct WindowCosts {
    StageTimes times;    ///< row-major (n_modes * n_lengths * max_samples, n_stages)
    StageMemory memory;  ///< likewise
    std::size_t n_modes;
    std::size_t n_lengths;
    std::size_t max_samples;
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
/// @param length_of_sample  (n_samples,): index of its length in `costs`.
/// @param start             a plan whose micro-batches all fit; holds each sample exactly once.
/// @param limit_bytes       (n_stages,): what activations may occupy.
/// @return                  the best plan seen, never worse than `start`; no replica is empty.
Improvement improve_plan(const WindowCosts& costs, std::span<const std::int32_t> length_of_sample,
                         const Assignment& start, std::span<const double> limit_bytes,
                         const Link& link, std::size_t n_moves, std::uint64_t seed);

}  // namespace dynapipe
