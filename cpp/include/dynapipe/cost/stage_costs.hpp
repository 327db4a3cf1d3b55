#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

namespace dynapipe {

/// Costs of a micro-batch on one stage. Sums of whole bytes are exact; sums of fractions of bytes
/// may have rounding errors.
struct PassCosts {
    double forward_ms = 0;
    double backward_ms = 0;     ///< gradients of inputs and of weights
    double weight_ms = 0;       ///< the part of this for gradients of weights
    double splitting_ms = 0;    ///< what the backward pass takes longer if it is split
    double boundary_bytes = 0;  ///< sent to the next stage; its gradient comes back
    double stored_bytes = 0;    ///< kept from the start of forward to the end of the last pass
    double forward_transient_bytes = 0;   ///< needed in addition while forward runs
    double backward_transient_bytes = 0;  ///< likewise for backward, and each part if split

    /// Time of a split backward pass until the gradient for the previous stage is there.
    [[nodiscard]] double gradient_ms() const { return backward_ms - weight_ms + splitting_ms; }
};

/// Columns of a table of costs: the fields of PassCosts, in their order. Python has the same
/// enumeration.
enum class Cost : std::uint8_t {
    forward_ms,
    backward_ms,
    weight_ms,
    splitting_ms,
    boundary_bytes,
    stored_bytes,
    forward_transient_bytes,
    backward_transient_bytes,
};
inline constexpr std::size_t kCosts = 8;  ///< number of columns

constexpr bool is_column(std::size_t offset, Cost cost) {
    return offset == static_cast<std::size_t>(cost) * sizeof(double);
}
static_assert(is_column(offsetof(PassCosts, forward_ms), Cost::forward_ms));
static_assert(is_column(offsetof(PassCosts, backward_ms), Cost::backward_ms));
static_assert(is_column(offsetof(PassCosts, weight_ms), Cost::weight_ms));
static_assert(is_column(offsetof(PassCosts, splitting_ms), Cost::splitting_ms));
static_assert(is_column(offsetof(PassCosts, boundary_bytes), Cost::boundary_bytes));
static_assert(is_column(offsetof(PassCosts, stored_bytes), Cost::stored_bytes));
static_assert(is_column(offsetof(PassCosts, forward_transient_bytes),
                        Cost::forward_transient_bytes));
static_assert(is_column(offsetof(PassCosts, backward_transient_bytes),
                        Cost::backward_transient_bytes));
static_assert(sizeof(PassCosts) == kCosts * sizeof(double));

/// Costs of micro-batches on every stage: row-major (n_microbatches, n_kinds). Stages that are
/// alike are of one kind, and every kind has a stage.
struct StageCosts {
    std::span<const PassCosts> entries;
    std::size_t n_stages;
    std::span<const std::int32_t> kind_of_stage = {};  ///< (n_stages,), or empty: each is its own
    std::size_t n_kinds = n_stages;

    [[nodiscard]] std::size_t n_microbatches() const { return entries.size() / n_kinds; }
    [[nodiscard]] std::size_t kind_of(std::size_t stage) const {
        return kind_of_stage.empty() ? stage : static_cast<std::size_t>(kind_of_stage[stage]);
    }
    [[nodiscard]] const PassCosts& at(std::size_t microbatch, std::size_t stage) const {
        return entries[microbatch * n_kinds + kind_of(stage)];
    }
};

/// Least of the entries of all stages of a kind, (n_kinds,): the memory that limits all of them.
inline std::vector<double> least_of_kinds(const StageCosts& costs,
                                          std::span<const double> of_stages) {
    std::vector<double> least(costs.n_kinds, std::numeric_limits<double>::infinity());
    for (std::size_t stage = 0; stage < costs.n_stages; ++stage) {
        double& of_kind = least[costs.kind_of(stage)];
        of_kind = std::min(of_kind, of_stages[stage]);
    }
    return least;
}

/// Kind of a pass. A schedule has kWeight passes for all micro-batches or for none. Without them,
/// kBackward is the complete backward pass; with them, it computes only the gradient that the
/// previous stage waits for.
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
