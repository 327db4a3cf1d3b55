#pragma once

#include <span>
#include <vector>

#include "dynapipe/cost/stage_costs.hpp"

namespace dynapipe {

/// The paper's memory-aware cyclic order of passes.
///
/// In every cycle each stage runs one backward pass and then one forward pass, if there are any, of
/// those that were ready when the cycle began, in the order of micro-batches. A forward pass is
/// deferred if the stage would exceed its memory limit, either now or when an earlier micro-batch
/// runs its backward pass and needs its transient memory. Times play no role.
///
/// Every micro-batch must fit into each stage alone,
///
///     stored_bytes + max(forward_transient_bytes, backward_transient_bytes) <= limit_bytes,
///
/// and that is sufficient: the first unfinished micro-batch can always proceed, because nothing
/// else is stored on the stage that it enters next. In particular, micro-batch 0 is no exception.
/// This also holds for fractions of bytes: stored memory is summed anew for every decision, so
/// micro-batches that have left contribute no rounding error. With fractions, a stage may exceed
/// its limit by the rounding error of the sum; with whole bytes it never exceeds it.
///
/// @param limit_bytes  (n_stages,): memory for activations; may be infinite.
/// @return             row-major (n_stages, 2 * n_microbatches).
/// @throws std::invalid_argument  if a micro-batch does not fit.
///
/// Time O(n_microbatches * n_stages * (n_stages + k)) for k micro-batches in flight at once.
///
/// Source: Jiang et al., "DynaPipe", EuroSys 2024, doi:10.1145/3627703.3629585, algorithm 1.
std::vector<PassCode> cyclic_schedule(const StageCosts& costs, std::span<const double> limit_bytes);

}  // namespace dynapipe
