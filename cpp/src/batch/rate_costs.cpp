#include "dynapipe/batch/rate_costs.hpp"

#include <algorithm>
#include <limits>

namespace dynapipe {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// Share of a stage's memory that a micro-batch keeps; +infinity if it does not fit.
double share_of(const PassCosts& pass, double room_bytes) {
    const double on_top = std::max(pass.forward_transient_bytes, pass.backward_transient_bytes);
    if (!(pass.stored_bytes + on_top <= room_bytes)) {
        return kInfinity;
    }
    return pass.stored_bytes > 0 ? pass.stored_bytes / room_bytes : 0;
}

}  // namespace

Ratings rate_costs(const StageCosts& costs, std::span<const double> room_bytes) {
    const std::size_t n = costs.n_microbatches();
    Ratings ratings{std::vector<double>(n), std::vector<double>(n), std::vector<double>(n)};
    const std::vector<double> room_of_kinds = least_of_kinds(costs, room_bytes);
    std::vector<double> pass_ms(costs.n_kinds);
    for (std::size_t i = 0; i < n; ++i) {
        double slowest_ms = 0;
        double total_ms = 0;
        double share = 0;
        for (std::size_t kind = 0; kind < costs.n_kinds; ++kind) {
            const PassCosts& pass = costs.entries[i * costs.n_kinds + kind];
            pass_ms[kind] = pass.forward_ms + pass.backward_ms;
            slowest_ms = std::max(slowest_ms, pass_ms[kind]);
            share = std::max(share, share_of(pass, room_of_kinds[kind]));
        }
        for (std::size_t stage = 0; stage < costs.n_stages; ++stage) {
            total_ms += pass_ms[costs.kind_of(stage)];
        }
        const bool can_run = total_ms < kInfinity && share < kInfinity;
        ratings.work_ms[i] = can_run ? slowest_ms : kInfinity;
        ratings.fill_ms[i] = can_run ? total_ms - slowest_ms : kInfinity;
        ratings.memory_share[i] = can_run ? share : kInfinity;
    }
    return ratings;
}

}  // namespace dynapipe
