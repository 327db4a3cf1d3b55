#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace dynapipe {

/// A short path through all points, measured by the sum of distances |dx| + |dy|. It starts at the
/// point with the greatest x + y and repeatedly goes to the nearest point not yet visited, of more
/// than 2,000 among about the 2,000 with the greatest x + y. It is then improved by reversing
/// sections of up to `reach` points while that shortens it.
///
/// Deterministic. Time O(n * min(n, 2000) + n_rounds * n * reach), n_rounds <= 100.
///
/// @return indices of the points, in the order of the path
std::vector<std::int64_t> short_tour(std::span<const std::int64_t> x,
                                     std::span<const std::int64_t> y, std::size_t reach);

}  // namespace dynapipe
