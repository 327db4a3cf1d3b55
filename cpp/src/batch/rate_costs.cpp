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

/// As many entries per row as the most cells that it has in a mode.
std::vector<std::int64_t> begins_of_rows(std::span<const std::int64_t> spans, std::size_t n_modes) {
    const std::size_t n_rows = spans.size() / (2 * n_modes);
    std::vector<std::int64_t> begin(n_rows + 1, 0);
    for (std::size_t row = 0; row < n_rows; ++row) {
        std::int64_t most = 0;
        for (std::size_t mode = 0; mode < n_modes; ++mode) {
            const std::int64_t* span = &spans[2 * (mode * n_rows + row)];
            most = std::max(most, span[1] - span[0]);
        }
        begin[row + 1] = begin[row] + most;
    }
    return begin;
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

CheapestModes cheapest_modes(std::span<const std::int32_t> cells,
                             std::span<const std::int64_t> spans, std::size_t n_modes,
                             std::span<const double> work_ms, std::span<const double> fill_ms,
                             std::span<const double> memory_share, double largest_share) {
    CheapestModes cheapest{begins_of_rows(spans, n_modes), {}, {}, {}};
    const std::size_t n_rows = cheapest.begin.size() - 1;
    const auto n = static_cast<std::size_t>(cheapest.begin.back());
    cheapest.work_ms.assign(n, kInfinity);
    cheapest.fill_ms.assign(n, kInfinity);
    cheapest.mode.assign(n, 0);
    for (std::size_t mode = 0; mode < n_modes; ++mode) {
        for (std::size_t row = 0; row < n_rows; ++row) {
            const std::int64_t* span = &spans[2 * (mode * n_rows + row)];
            auto window = static_cast<std::size_t>(cheapest.begin[row]);
            for (auto at = span[0]; at < span[1]; ++at, ++window) {
                const std::int32_t cell = cells[static_cast<std::size_t>(at)];
                if (cell < 0) {
                    continue;
                }
                const auto entry = static_cast<std::size_t>(cell);
                if (memory_share[entry] <= largest_share &&
                    work_ms[entry] < cheapest.work_ms[window]) {
                    cheapest.work_ms[window] = work_ms[entry];
                    cheapest.fill_ms[window] = fill_ms[entry];
                    cheapest.mode[window] = static_cast<std::int32_t>(mode);
                }
            }
        }
    }
    return cheapest;
}

}  // namespace dynapipe
