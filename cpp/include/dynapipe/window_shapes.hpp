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

/// The shapes of windows, one row per first sample.
struct WindowShapes {
    std::vector<std::int32_t> cells;  ///< row after row, by number of samples from 1: which shape
    Shapes shapes;
};

/// Shapes of the windows of neighbouring samples, each padded to the longest of its samples on
/// either side. A window that equals the one of as many samples in the row before shares its
/// shape, as most do where neighbours are alike.
///
/// Samples may be bundles of several, which are as long as their longest.
///
/// @param row_tokens     per sample in order, the row that it needs alone
/// @param target_tokens  as long; the row on the decoder side
/// @param begin          (n_samples + 1,): of bundles, how many samples come before, and all
/// @param first          per row, ascending, the first sample of its windows
/// @param most           as long; windows of row r have 1 to most[r] >= 0 samples
///
/// Time and memory O(sum of most).
WindowShapes window_shapes(std::span<const std::int64_t> row_tokens,
                           std::span<const std::int64_t> target_tokens,
                           std::span<const std::int64_t> begin, std::span<const std::int64_t> first,
                           std::span<const std::int64_t> most);

/// Leaves out windows that are not used. Those are that fit, but beyond `largest` samples only up
/// to the first that does not.
///
/// @param cells    as of `WindowShapes`; counts from `first` afterwards, -1 if not used
/// @param most     per row, how many cells it has; their sum is that of all
/// @param fits     per shape, whether it fits
/// @param largest  per row, see above
/// @param first    what to count shapes from
void use_windows(std::span<std::int32_t> cells, std::span<const std::int64_t> most,
                 std::span<const bool> fits, std::span<const std::int64_t> largest,
                 std::int32_t first);

}  // namespace dynapipe
