#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace dynapipe {

/// What a micro-batch costs on one stage. Sums of whole bytes are exact; of fractions they may be
/// off by a rounding error.
struct PassCosts {
    double forward_ms = 0;
    double backward_ms = 0;               ///< gradients of inputs and of weights
    double weight_ms = 0;                 ///< of these, what the gradients of weights take
    double boundary_bytes = 0;            ///< handed to the next stage, and a gradient of it back
    double stored_bytes = 0;              ///< from the start of forward to the end of backward
    double forward_transient_bytes = 0;   ///< on top while forward runs
    double backward_transient_bytes = 0;  ///< on top while backward runs
};

/// What micro-batches cost on every stage: row-major (n_microbatches, n_stages).
struct StageCosts {
    std::span<const PassCosts> entries;
    std::size_t n_stages;

    [[nodiscard]] std::size_t n_microbatches() const { return entries.size() / n_stages; }
    [[nodiscard]] const PassCosts& at(std::size_t microbatch, std::size_t stage) const {
        return entries[microbatch * n_stages + stage];
    }
};

/// A pass of one micro-batch through one stage, as one number: 2 * microbatch + backward.
using PassCode = std::int32_t;

constexpr PassCode pass_code(std::size_t microbatch, bool backward) {
    return static_cast<PassCode>(2 * microbatch + (backward ? 1 : 0));
}
constexpr bool is_backward(PassCode code) { return code % 2 == 1; }
constexpr std::size_t microbatch_of(PassCode code) { return static_cast<std::size_t>(code / 2); }

}  // namespace dynapipe
