#pragma once

#include <cstdint>
#include <span>

#include "dynapipe/stage_costs.hpp"

namespace dynapipe {

/// Costs on a grid of micro-batch shapes, for every kind of stage: row-major (rows, row_tokens,
/// target_tokens, n_kinds), infinite where infeasible.
struct CostGrid {
    std::span<const std::int64_t> rows;  ///< ascending, at least one point, as the following
    std::span<const std::int64_t> row_tokens;
    std::span<const std::int64_t> target_tokens;
    std::span<const PassCosts> points;  ///< what it says of boundary_bytes is not used
    std::size_t n_kinds;
};

/// Bytes that a stage hands over per row and token.
struct Boundary {
    double bytes_per_row_token = 0;
    double bytes_per_target_token = 0;
};

/// Stages of a pipeline, by number.
struct StageKinds {
    std::span<const std::int32_t> kind;  ///< of the grid's
    std::span<const Boundary> boundary;
};

/// Sizes of micro-batches, all as long.
struct ShapeList {
    std::span<const std::int64_t> n_rows, row_tokens, target_tokens;
};

/// Costs between the points of a grid by multilinear interpolation. Below the smallest point of
/// an axis that point holds; wherever a point with a weight is infeasible, and beyond the
/// largest, the kind of stage is infeasible: all of its costs are infinite, but for what crosses
/// the boundary.
///
/// @param costs  result, row-major (n_shapes, n_stages)
///
/// Fastest where successive shapes differ in rows alone.
void interpolate_costs(const CostGrid& grid, const StageKinds& stages, const ShapeList& shapes,
                       std::span<PassCosts> costs);

}  // namespace dynapipe
