#pragma once

#include <algorithm>
#include <cstddef>
#include <optional>
#include <span>
#include <vector>

#include "dynapipe/cost/stage_costs.hpp"

namespace dynapipe {

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

/// Peak memory of the activations of every stage, (n_stages,) in bytes, under an order as in
/// simulate.hpp.
std::vector<double> activation_peaks(const StageCosts& costs, std::span<const PassCode> order);

/// A micro-batch that needs more than the limit of a stage even while it is alone there.
struct Misfit {
    std::size_t microbatch;
    std::size_t stage;
    double needed_bytes;
};

/// The first misfit, if there is one; the costs of what cannot run are infinite.
std::optional<Misfit> first_misfit(const StageCosts& costs, std::span<const double> limit_bytes);

}  // namespace dynapipe
