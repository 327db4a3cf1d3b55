#pragma once

#include <span>
#include <vector>

#include "dynapipe/stage_costs.hpp"

namespace dynapipe {

/// The paper's memory-aware cyclic order of passes.
///
/// In every cycle each stage runs one backward and then one forward pass, of those that were
/// ready when the cycle began and in the order of the micro-batches. A forward pass is put off
/// while the stage would exceed its limit: now, or when a micro-batch before it goes back and
/// needs its transient memory. No time is involved.
///
/// Every micro-batch must fit into each stage alone,
///
///     stored_bytes + max(forward_transient_bytes, backward_transient_bytes) <= limit_bytes,
///
/// and that is enough: the first micro-batch not yet finished can always go on, because on the
/// stage that it is to enter nothing else is kept. In particular 0 is no exception. This holds for
/// fractions of bytes as well: what is kept is added up anew for every decision, so that nothing
/// remains of micro-batches that have left. A stage with several fractions may exceed its limit by
/// the rounding error of their sum, and by nothing with whole bytes.
///
/// @param limit_bytes  (n_stages,): what activations may occupy; may be infinite.
/// @return             row-major (n_stages, 2 * n_microbatches).
/// @throws std::invalid_argument  if a micro-batch does not fit.
///
/// Time O(n_microbatches * n_stages * (n_stages + k)) for k micro-batches in flight at once.
///
/// Source: Jiang et al., "DynaPipe", EuroSys 2024, doi:10.1145/3627703.3629585, algorithm 1.
std::vector<PassCode> cyclic_schedule(const StageCosts& costs, std::span<const double> limit_bytes);

}  // namespace dynapipe
