#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "dynapipe/batch/priced_cut.hpp"

namespace dynapipe {

/// A cut at a memory price.
struct PricedCut {
    CutRule rule;
    Cut cut;
    double estimate_ms;  ///< what a replica would take if all had as much to do
};

/// Cuts at memory prices, the most promising first.
std::vector<PricedCut> priced_cuts(PricedCutter& cutter, std::size_t n_replicas,
                                   std::span<const double> prices = kMemoryPrices);

}  // namespace dynapipe
