#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "dynapipe/batch/equal_rows.hpp"

namespace dynapipe {

/// The shapes of windows, in one row per first sample.
struct WindowShapes {
    std::vector<std::int32_t> cells;  ///< concatenated rows: shape by number of samples, from 1
    Shapes shapes;
};

/// Computes the shapes of windows of neighbouring samples. On each side, a window is padded to its
/// longest sample. A window shares the shape of the equally large window in the previous row if the
/// two are equal, as most are if neighbours are similar.
///
/// Samples may be bundles of several, each as long as its longest sample.
///
/// @param row_tokens     per sample, in order: length of the row that it needs by itself
/// @param target_tokens  likewise for its row on the decoder side
/// @param begin          (n_samples + 1,): number of samples before each bundle, then of all
/// @param first          per row: first sample of its windows; ascending
/// @param most           per row: windows of row r have 1 to most[r] >= 0 samples
///
/// Time and memory O(sum of most).
WindowShapes window_shapes(std::span<const std::int64_t> row_tokens,
                           std::span<const std::int64_t> target_tokens,
                           std::span<const std::int64_t> begin, std::span<const std::int64_t> first,
                           std::span<const std::int64_t> most);

}  // namespace dynapipe
