#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "dynapipe/stage_costs.hpp"

namespace dynapipe {

/// By what micro-batches are compared before they are scheduled; one entry per micro-batch.
struct Ratings {
    std::vector<double> work_ms;       ///< forward and backward on its slowest stage
    std::vector<double> fill_ms;       ///< forward and backward on all other stages together
    std::vector<double> memory_share;  ///< the most that it keeps of a stage's room; +infinity if
                                       ///< it cannot run, alone and with what it needs on top
};

/// @param room_bytes  per stage, what the model leaves of its memory
Ratings rate_costs(const StageCosts& costs, std::span<const double> room_bytes);

/// The modes of windows, side by side: the one with the least work of those that may be used.
struct CheapestModes {
    std::vector<std::int64_t> begin;  ///< (n_rows + 1,): where entries of rows begin, and the end
    std::vector<double> work_ms;      ///< row after row; +infinity if none
    std::vector<double> fill_ms;      ///< as large
    std::vector<std::int32_t> mode;   ///< as large; 0 if none
};

/// Chooses for every window the first mode of those with the least work.
///
/// @param cells         the entry of a window; -1 if none
/// @param spans         (n_modes, n_rows, 2): where cells of a mode and row begin and end
/// @param work_ms       per entry, what is minimised
/// @param fill_ms       per entry
/// @param memory_share  per entry
/// @param largest_share entries that keep more may not be used
CheapestModes cheapest_modes(std::span<const std::int32_t> cells,
                             std::span<const std::int64_t> spans, std::size_t n_modes,
                             std::span<const double> work_ms, std::span<const double> fill_ms,
                             std::span<const double> memory_share, double largest_share);

}  // namespace dynapipe
