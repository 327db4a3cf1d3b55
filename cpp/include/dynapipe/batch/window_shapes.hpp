#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace dynapipe {

/// Shapes of padded micro-batches.
struct Shapes {
    std::vector<std::int64_t> n_rows, row_tokens, target_tokens;
};

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

/// Marks windows that are not to be used. A window is used if it fits; with more than `largest`
/// samples, only if all windows between `largest` and its size fit, too.
///
/// @param cells    as in `WindowShapes`; afterwards indices count from `first`, -1 if not used
/// @param most     number of cells per row; their sum is the number of cells
/// @param fits     per shape, whether it fits
/// @param largest  per row, see above
/// @param first    offset added to the indices of shapes
void use_windows(std::span<std::int32_t> cells, std::span<const std::int64_t> most,
                 std::span<const bool> fits, std::span<const std::int64_t> largest,
                 std::int32_t first);

}  // namespace dynapipe
