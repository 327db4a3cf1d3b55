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

/// Which windows are used of those whose shapes are known: the ones that fit, but beyond `largest`
/// samples only up to the first that does not.
///
/// @param shapes   row-major (n_rows, width): which shape a window has; -1 if it is not known
/// @param fits     per shape, whether it fits
/// @param largest  per row, see above
/// @param first    what to count shapes from in `used`
/// @param used     result, row-major (n_rows, at least width), -1 throughout to begin with
void use_windows(std::span<const std::int32_t> shapes, std::span<const bool> fits,
                 std::span<const std::int64_t> largest, std::int32_t first,
                 std::span<std::int32_t> used);

}  // namespace dynapipe
