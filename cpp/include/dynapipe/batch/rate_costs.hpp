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

}  // namespace dynapipe
