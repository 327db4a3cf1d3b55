#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace dynapipe {

/// Assigns items to replicas so that all have about the same work: the largest differencing method.
///
/// At first, every item is an assignment by itself, whose other replicas have nothing. The two
/// assignments with the greatest difference between their most and least loaded replica are
/// combined, the most loaded replica of one with the least loaded of the other, and so on, until
/// one is left. Equal loads are ordered by their items, so the result is the same on every machine.
///
/// @param work_ms     per item, finite.
/// @param n_replicas  1 to the number of items.
/// @return            per replica, its items in ascending order, at least one; replicas are ordered
///                    by their first items.
///
/// Time O(n * r * log r) for n items and r replicas, and as much again for each item of a replica
/// where loads are equal.
///
/// Source: Karmarkar and Karp, "The differencing method of set partitioning", UCB/CSD 82/113, 1982.
std::vector<std::vector<std::uint32_t>> balance_work(std::span<const double> work_ms,
                                                     std::size_t n_replicas);

}  // namespace dynapipe
