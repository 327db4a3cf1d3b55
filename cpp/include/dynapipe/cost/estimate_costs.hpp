#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "dynapipe/batch/equal_rows.hpp"
#include "dynapipe/cost/cost_grid.hpp"
#include "dynapipe/cost/stage_costs.hpp"

namespace dynapipe {

/// Tokens of a micro-batch that pass through a layer: those of its rows, or of the encoder's; those
/// of the decoder's rows; or the longer side, which stands for both.
enum class TokenSide : std::int32_t { inputs, targets, longer };

/// What quantities depend on: own tokens, tokens of the other side, pairs of an own token and what
/// it attends to, pairs of own tokens of a row, pairs of positions of a row, pairs that a window
/// keeps apart, pairs of positions of a row longer than the window.
inline constexpr std::size_t kTokenCounts = 7;
using TokenCounts = std::array<double, kTokenCounts>;

/// Counts of a micro-batch, padding included, for a layer on some side.
///
/// @param window  tokens that attention sees; infinite without a window
TokenCounts token_counts(TokenSide side, double window, const MicroBatchShape& shape);

/// Quantities of a layer that depend on tokens: operations and bytes of a forward pass, if nothing
/// else is said. Those behind `passing_bytes` are needed like these, each by another block.
enum Need : std::size_t {
    linear_flops,
    attention_flops,
    spared_flops,    ///< that the backward pass does without
    deferred_flops,  ///< of what W computes gradients for
    repeated_flops,  ///< that the backward pass computes again
    moved_bytes,
    summed_bytes,  ///< over shards
    stored_bytes,
    transient_bytes,  ///< on top, up to a limit
    mask_bytes,       ///< on top of either pass, up to a limit
    repeated_bytes,   ///< on top while the backward pass runs
    term_bytes,       ///< likewise
    sum_bytes,        ///< on top of the largest backward pass of the stage
    passing_bytes,    ///< on top while a block runs forward
};

/// Quantities of a layer that do not depend on tokens.
struct LayerBytes {
    double read;      ///< weights that every pass reads
    double deferred;  ///< gradients of weights that W writes
    double gradient;  ///< on top while the backward pass runs
    double most_transient;
    double most_mask;
};

/// The layer of a kind, on one shard.
struct LayerNeeds {
    TokenSide side;
    double window;                  ///< tokens that attention sees; infinite without a window
    std::span<const double> needs;  ///< (kTokenCounts, n_needs): each by what it depends on
    LayerBytes bytes;
};

/// Rates of a machine.
struct Rates {
    double flops_per_ms, memory_bytes_per_ms, reduction_bytes_per_ms;
    double launch_ms;      ///< least time of one direction of a layer
    double begun_ms;       ///< by which its kernels take longer than at their rates
    double backward_work;  ///< operations of a backward pass for one of a forward pass
};

/// Numbers of layers of every kind on a stage of every kind, (n_layer_kinds, n_kinds); and what the
/// stages send, (n_kinds,).
struct LayersOfStages {
    std::span<const double> counts;
    std::span<const Boundary> boundaries;
};

/// Estimates costs of micro-batches by the operations and bytes of their layers: each takes the
/// longer of computing and moving. Layers run one after the other: their times and stored bytes add
/// up, and they share transient bytes.
///
/// @param layers  all have the same number of needs
/// @param costs   result, row-major (n_shapes, n_kinds)
void estimate_costs(std::span<const LayerNeeds> layers, const Rates& rates,
                    const LayersOfStages& stages, std::span<const MicroBatchShape> shapes,
                    std::span<PassCosts> costs);

}  // namespace dynapipe
