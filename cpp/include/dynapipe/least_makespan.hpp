#pragma once

#include <cstddef>
#include <span>

#include "dynapipe/simulate.hpp"
#include "dynapipe/window_costs.hpp"

namespace dynapipe {

/// A makespan that no plan of windows can beat, whatever its cut, modes, replicas and schedules.
///
/// The stage that has most to do waits for a first micro-batch, has all its work, and a last
/// micro-batch goes back from it; the slowest replica has at least the mean of the work, which is
/// least for one of the cuts. Nor can the first stage keep more than its memory: micro-batches that
/// each take a share of it for as long as they are under way take all of it for the sum of the
/// products. Waiting between passes is ignored.
///
/// @param limit_bytes     per stage, what activations may occupy.
/// @param n_replicas      >= 1.
/// @param split_backward  whether gradients of weights are passes of their own, which may come
/// last.
/// @return                infinite if a sample may not be used.
///
/// Time O(n_cells + n_samples * m) for windows of up to m samples.
double least_makespan_ms(const WindowCosts& windows, std::span<const double> limit_bytes,
                         const Link& link, bool split_backward, std::size_t n_replicas);

}  // namespace dynapipe
