#pragma once

#include <cstddef>
#include <vector>

#include "dynapipe/batch/priced_cut.hpp"
#include "dynapipe/batch/window_costs.hpp"

namespace dynapipe {

/// Cuts samples into consecutive micro-batches M_1, M_2, ... that minimise
///
///     max_i fill_ms(M_i) + (1 / n_replicas) * sum_i work_ms(M_i)        [ms]
///
/// exactly: the pipeline fills and drains at the pace of its slowest micro-batch, and in between is
/// busy with an equal share of the work of all micro-batches.
///
/// @param rule        limits on the micro-batches, without a price; none on their fill.
/// @param n_replicas  number of pipelines that share the work, >= 1; the split may have fewer
///                    micro-batches.
/// @return            the windows in order; none if there is no such split.
///
/// The least work under a limit on the fill is found by dynamic programming, as often as a limit
/// could win: at most about as often as there are fills, and typically a few dozen times.
///
/// Source: Jiang et al., "DynaPipe", EuroSys 2024, doi:10.1145/3627703.3629585, equations 1 and
/// 2, generalised to stages of unequal cost. The paper tries limits on the slowest micro-batch at
/// fixed distances. Here the next limit is the fill of the best split under the previous limit, or
/// a smaller one if no split in between can be better.
std::vector<Window> split_samples(PricedCutter& cutter, const CutRule& rule,
                                  std::size_t n_replicas);

}  // namespace dynapipe
