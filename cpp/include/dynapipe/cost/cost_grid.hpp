#pragma once

#include <cstdint>
#include <span>

#include "dynapipe/cost/stage_costs.hpp"

namespace dynapipe {

/// Costs on a grid of micro-batch shapes, for every kind of stage: row-major (rows, row_tokens,
/// target_tokens, n_kinds), infinite where infeasible.
struct CostGrid {
    std::span<const std::int64_t> rows;  ///< ascending, at least one point; so are the next two
    std::span<const std::int64_t> row_tokens;
    std::span<const std::int64_t> target_tokens;
    std::span<const PassCosts> points;  ///< boundary_bytes is ignored
    std::size_t n_kinds;
    /// Tokens of the largest feasible micro-batch of each kind, both sides together.
    std::span<const double> most_tokens;
};

/// Bytes that a stage sends to the next one, per row and token.
struct Boundary {
    double bytes_per_row_token = 0;
    double bytes_per_target_token = 0;
};

/// Shapes of micro-batches: three lists of equal length. Those of packed micro-batches need not be
/// whole numbers.
struct ShapeList {
    std::span<const double> n_rows, row_tokens, target_tokens;
};

/// Interpolates costs between the points of a grid (multilinear). Below the smallest point of an
/// axis, the cost at that point is used. A kind of stage is infeasible beyond the largest point or
/// its most_tokens, and wherever a point with nonzero weight is infeasible: all of its costs are
/// then infinite, except for boundary_bytes.
///
/// @param boundaries  per kind of stage
/// @param costs       result, row-major (n_shapes, n_kinds)
///
/// Fastest if successive shapes differ only in their number of rows.
void interpolate_costs(const CostGrid& grid, std::span<const Boundary> boundaries,
                       const ShapeList& shapes, std::span<PassCosts> costs);

/// Adds the costs of other parts of the same stages. Parts run one after the other, so they share
/// their transient bytes: the larger of both counts.
void add_costs(std::span<PassCosts> costs, std::span<const PassCosts> others);

}  // namespace dynapipe
