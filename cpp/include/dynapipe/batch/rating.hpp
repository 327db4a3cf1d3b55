#pragma once

namespace dynapipe {

/// Measures by which micro-batches are compared before scheduling.
struct Rating {
    double work_ms = 0.0;     ///< forward and backward on its slowest stage
    double fill_ms = 0.0;     ///< forward and backward on all other stages together
    double kept_share = 0.0;  ///< greatest fraction that it keeps of the memory of a stage
};

}  // namespace dynapipe
