#pragma once

#include <vector>

#include "dynapipe/batch/priced_cut.hpp"
#include "dynapipe/batch/window_costs.hpp"
#include "dynapipe/schedule/replica_simulator.hpp"

namespace dynapipe {

/// Refines the windows of a replica that can run.
///
/// It is given the shape of its order, the memory price for its modes and the mode of its longest
/// window that suit it best. Its first windows are split, so that work rises from a small one, as
/// long as that helps.
///
/// @param cutter  rates the windows.
/// @return        its makespan.
double refine_replica(const PricedCutter& cutter, ReplicaSimulator& simulator,
                      std::vector<Window>& replica);

}  // namespace dynapipe
