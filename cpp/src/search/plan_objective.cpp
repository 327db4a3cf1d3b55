#include "dynapipe/search/plan_objective.hpp"

#include <algorithm>

namespace dynapipe {
namespace {

/// Weight of the mean of the replicas' ends in the objective; the latest end has the rest.
constexpr double kMeanShare = 0.2;

double sum_ms(std::span<const Replica> replicas) {
    double ms = 0.0;
    for (const Replica& replica : replicas) {
        ms += replica.makespan_ms;
    }
    return ms;
}

}  // namespace

double slowest_ms(std::span<const Replica> replicas) {
    double ms = 0.0;
    for (const Replica& replica : replicas) {
        ms = std::max(ms, replica.makespan_ms);
    }
    return ms;
}

double objective_ms(std::span<const Replica> replicas) {
    const double mean_weight = kMeanShare / static_cast<double>(replicas.size());
    return (1 - kMeanShare) * slowest_ms(replicas) + mean_weight * sum_ms(replicas);
}

double latest_end_ms(std::span<const Replica> replicas, double limit_ms) {
    const double mean_weight = kMeanShare / static_cast<double>(replicas.size());
    const double others_ms = mean_weight * sum_ms(replicas);
    const double slowest = slowest_ms(replicas);
    const double as_slowest_ms = (limit_ms - others_ms) / (1 - kMeanShare + mean_weight);
    if (as_slowest_ms >= slowest) {
        return as_slowest_ms;
    }
    return (limit_ms - others_ms - (1 - kMeanShare) * slowest) / mean_weight;
}

}  // namespace dynapipe
