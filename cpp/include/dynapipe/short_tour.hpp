#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace dynapipe {

/// A short way through all points, by the sum of distances |dx| + |dy|: to the nearest point not
/// yet visited, from the point of the greatest sum on, then improved by turning around parts of
/// the way of up to `reach` points while that shortens it.
///
/// The same points give the same way. Time O(n^2 + n_rounds * n * reach), n_rounds <= 100.
///
/// @return indices of the points in order
std::vector<std::int64_t> short_tour(std::span<const std::int64_t> x,
                                     std::span<const std::int64_t> y, std::size_t reach);

}  // namespace dynapipe
