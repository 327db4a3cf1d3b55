#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace dynapipe {

/// Sizes of padded micro-batches.
struct Shapes {
    std::vector<std::int64_t> n_rows, row_tokens, target_tokens;
};

/// The shapes of windows, one row per first sample, one column per number of samples.
struct WindowShapes {
    std::vector<std::int32_t> cells;  ///< row-major (n_rows, max_samples): which shape; -1 if none
    Shapes shapes;
    std::size_t max_samples;
};

/// Shapes of the windows of neighbouring samples, each padded to the longest of its samples on
/// either side. A window that equals the one of as many samples in the row before shares its
/// shape, as most do where neighbours are alike.
///
/// @param row_tokens     per sample in order, the row that it needs alone
/// @param target_tokens  as long; the row on the decoder side
/// @param first          per row, ascending, the first sample of its windows
/// @param most           as long; windows of row r have 1 to most[r] >= 0 samples
///
/// Time and memory O(n_rows * greatest of most).
WindowShapes window_shapes(std::span<const std::int64_t> row_tokens,
                           std::span<const std::int64_t> target_tokens,
                           std::span<const std::int64_t> first, std::span<const std::int64_t> most);

}  // namespace dynapipe
