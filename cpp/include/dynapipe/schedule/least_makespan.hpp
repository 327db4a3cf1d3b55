#pragma once

#include <cstddef>
#include <span>

#include "dynapipe/batch/window_costs.hpp"
#include "dynapipe/cost/link.hpp"

namespace dynapipe {

/// Lower bound of the makespan over all cuts into windows, modes, replicas and schedules.
///
/// The busiest stage waits for its first micro-batch to arrive, does all its work, and its last
/// micro-batch still has to return from it. The slowest replica has at least the mean work per
/// replica, and the total work is minimised over all cuts. Memory of the first stage is a second
/// bound: micro-batches that each occupy a share of it for as long as they are in flight, and more
/// while one of their passes runs, occupy all of it for at least the sum of these products. The
/// round trip of the sample that takes longest is a third. Waiting between passes is ignored.
///
/// @param limit_bytes     per stage, what activations may occupy.
/// @param n_replicas      >= 1.
/// @param split_backward  whether gradients of weights are separate passes, which may come last.
/// @return                infinite if some sample fits into no window.
///
/// Time O(n_cells + n_samples * m + m^2) for windows of up to m samples.
double least_makespan_ms(const WindowCosts& windows, std::span<const double> limit_bytes,
                         const Link& link, bool split_backward, std::size_t n_replicas);

/// The last of these bounds alone: from the first to the last pass of the sample that takes longest
/// by itself, with whatever samples it shares a micro-batch; infinite if it fits into no window.
///
/// @param reduce_ms  (n_stages,): time from a stage's last pass until its gradients are reduced,
///                   which then counts, too. Empty: none.
double least_round_trip_ms(const WindowCosts& windows, const Link& link, bool split_backward,
                           std::span<const double> reduce_ms = {});

}  // namespace dynapipe
