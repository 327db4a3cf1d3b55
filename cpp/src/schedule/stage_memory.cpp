#include "dynapipe/schedule/stage_memory.hpp"

#include <cmath>

namespace dynapipe {

std::vector<double> activation_peaks(const StageCosts& costs, std::span<const PassCode> order) {
    const std::size_t n_passes = order.size() / costs.n_stages;
    const bool splits_backward = n_passes > 2 * costs.n_microbatches();
    std::vector<double> peaks;
    for (std::size_t stage = 0; stage < costs.n_stages; ++stage) {
        StageMemory memory;
        for (const PassCode code : order.subspan(stage * n_passes, n_passes)) {
            memory.run(kind_of(code), costs.at(microbatch_of(code), stage), splits_backward);
        }
        peaks.push_back(memory.peak_bytes);
    }
    return peaks;
}

std::optional<Misfit> first_misfit(const StageCosts& costs, std::span<const double> limit_bytes) {
    for (std::size_t i = 0; i < costs.n_microbatches(); ++i) {
        for (std::size_t stage = 0; stage < costs.n_stages; ++stage) {
            const PassCosts& cost = costs.at(i, stage);
            const double needed_bytes = cost.stored_bytes + std::max(cost.forward_transient_bytes,
                                                                     cost.backward_transient_bytes);
            if (std::isinf(needed_bytes) || needed_bytes > limit_bytes[stage]) {
                return Misfit{i, stage, needed_bytes};
            }
        }
    }
    return std::nullopt;
}

}  // namespace dynapipe
