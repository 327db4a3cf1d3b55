#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace dynapipe {

/// How long micro-batches take. Spans are row-major (n_microbatches, n_stages) but the last.
struct StageTimes {
    std::span<const double> forward_ms;
    std::span<const double> backward_ms;
    std::span<const double> boundary_bytes;  ///< (n_microbatches,): a tensor between two stages
};

/// What micro-batches occupy, in bytes. Spans are row-major (n_microbatches, n_stages). Sums of
/// whole bytes are exact; of fractions they may be off by a rounding error.
struct StageMemory {
    std::span<const double> stored_bytes;  ///< from the start of forward to the end of backward
    std::span<const double> forward_transient_bytes;   ///< on top while forward runs
    std::span<const double> backward_transient_bytes;  ///< on top while backward runs
    std::size_t n_microbatches;
    std::size_t n_stages;
};

/// A pass of one micro-batch through one stage, as one number: 2 * microbatch + backward.
using PassCode = std::int32_t;

constexpr PassCode pass_code(std::size_t microbatch, bool backward) {
    return static_cast<PassCode>(2 * microbatch + (backward ? 1 : 0));
}
constexpr bool is_backward(PassCode code) { return code % 2 == 1; }
constexpr std::size_t microbatch_of(PassCode code) { return static_cast<std::size_t>(code / 2); }

}  // namespace dynapipe
