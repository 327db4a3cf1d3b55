#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "dynapipe/cost/stage_costs.hpp"

namespace dynapipe {

/// Measures by which micro-batches are compared before scheduling; one entry per micro-batch.
struct Ratings {
    std::vector<double> work_ms;       ///< forward and backward on its slowest stage
    std::vector<double> fill_ms;       ///< forward and backward on all other stages together
    std::vector<double> memory_share;  ///< largest fraction of a stage's room_bytes that it stores;
                                       ///< +infinity if it does not fit with its transient bytes
};

/// Rates micro-batches.
///
/// @param room_bytes  per stage, device memory minus static memory
Ratings rate_costs(const StageCosts& costs, std::span<const double> room_bytes);

/// For each window, the usable mode with the least work.
struct CheapestModes {
    std::vector<std::int64_t> begin;  ///< (n_rows + 1,): first entry of each row, then the end
    std::vector<double> work_ms;      ///< concatenated rows; +infinity if no mode is usable
    std::vector<double> fill_ms;      ///< same size
    std::vector<std::int32_t> mode;   ///< same size; 0 if no mode is usable
};

/// Chooses the mode with the least work for every window; the first such mode where several tie.
///
/// @param cells         index of each window's entry; -1 if none
/// @param spans         (n_modes, n_rows, 2): begin and end of the cells of a mode and row
/// @param work_ms       per entry; minimised
/// @param fill_ms       per entry
/// @param memory_share  per entry
/// @param largest_share entries with a larger memory_share may not be used
CheapestModes cheapest_modes(std::span<const std::int32_t> cells,
                             std::span<const std::int64_t> spans, std::size_t n_modes,
                             std::span<const double> work_ms, std::span<const double> fill_ms,
                             std::span<const double> memory_share, double largest_share);

}  // namespace dynapipe
