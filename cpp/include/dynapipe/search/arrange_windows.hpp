#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "dynapipe/batch/priced_cut.hpp"
#include "dynapipe/batch/window_costs.hpp"

namespace dynapipe {

/// Assigns the windows of a cut to replicas.
///
/// Each replica gets two of the ends, one short and one long, as its first and last window, or one
/// if there are no more. The other windows, the longest first, go to the replica that has the least
/// to do.
///
/// @param cut            with two ends for each replica, or one.
/// @param slowness       (n_replicas,): by what each replica takes longer.
/// @param balances_fill  whether a replica also has to do the fill of its longest window.
Assignment spread(const Cut& cut, const PricedCutter& cutter, std::span<const double> slowness,
                  bool balances_fill);

/// Puts the windows of a replica in an order in which work rises and then falls, so that neighbours
/// are similar. The first and the last window stay.
///
/// @param rise  fraction of the other windows that come before the longest.
void arrange(std::vector<Window>& replica, const PricedCutter& cutter, double rise);

/// The fraction by which work rises as long as it falls.
inline constexpr double kEvenRise = 0.5;

}  // namespace dynapipe
