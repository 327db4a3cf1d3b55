#pragma once

#include <cstddef>
#include <span>

#include "dynapipe/batch/window_costs.hpp"
#include "dynapipe/cost/link.hpp"

namespace dynapipe {

/// Lower bound of the makespan over all cuts into windows, modes, replicas and schedules: from the
/// first to the last pass of the sample that takes longest by itself, with whatever samples it
/// shares a micro-batch; infinite if it fits into no window.
///
/// @param reduce_ms  (n_stages,): time from a stage's last pass until its gradients are reduced,
///                   which then counts, too. Empty: none.
double least_round_trip_ms(const WindowCosts& windows, const Link& link, bool split_backward,
                           std::span<const double> reduce_ms = {});

}  // namespace dynapipe
