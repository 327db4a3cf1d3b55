#pragma once

#include <span>

#include "dynapipe/search/plan_moves.hpp"

namespace dynapipe {

/// End of the slowest replica.
[[nodiscard]] double slowest_ms(std::span<const Replica> replicas);

/// Objective that the search for plans minimises: a mixture of the end of the slowest replica and,
/// with a small weight, the mean of all ends. Time that a replica gains makes room for work of the
/// slowest one.
[[nodiscard]] double objective_ms(std::span<const Replica> replicas);

/// Latest end of a replica for which the objective keeps within a limit. The replica itself, and
/// others that are not simulated yet, must have a makespan of 0.
[[nodiscard]] double latest_end_ms(std::span<const Replica> replicas, double limit_ms);

}  // namespace dynapipe
