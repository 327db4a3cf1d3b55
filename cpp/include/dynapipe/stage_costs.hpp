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
    double stored_bytes = 0;              ///< from the start of forward to the end of the last pass
    double forward_transient_bytes = 0;   ///< on top while forward runs
    double backward_transient_bytes = 0;  ///< on top while backward runs, each part of it if split
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

/// What a pass computes. A schedule has kWeight passes for all micro-batches or for none; without
/// them kBackward is the whole backward pass, with them only what the stage before waits for.
enum class PassKind : std::int32_t { kForward = 0, kBackward = 1, kWeight = 2 };

/// A pass of one micro-batch through one stage, as one number: 3 * microbatch + kind.
using PassCode = std::int32_t;

constexpr PassCode kKinds = 3;

constexpr PassCode pass_code(std::size_t microbatch, PassKind kind) {
    return kKinds * static_cast<PassCode>(microbatch) + static_cast<PassCode>(kind);
}
constexpr PassKind kind_of(PassCode code) { return static_cast<PassKind>(code % kKinds); }
constexpr std::size_t microbatch_of(PassCode code) {
    return static_cast<std::size_t>(code / kKinds);
}

}  // namespace dynapipe
