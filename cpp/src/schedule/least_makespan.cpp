#include "dynapipe/schedule/least_makespan.hpp"

#include <algorithm>
#include <limits>
#include <vector>

namespace dynapipe {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();

/// Per row, the first sample that has it.
std::vector<std::size_t> first_of_rows(const WindowCosts& windows) {
    std::vector<std::size_t> first;
    std::vector<bool> seen(windows.n_rows());
    for (std::size_t i = 0; i < windows.n_samples(); ++i) {
        const auto row = static_cast<std::size_t>(windows.row_of_sample[i]);
        if (!seen[row]) {
            seen[row] = true;
            first.push_back(i);
        }
    }
    return first;
}

/// The micro-batches of all windows: tables that share costs use few of them each.
std::vector<std::size_t> used_microbatches(const WindowCosts& windows) {
    std::vector<std::size_t> used;
    std::vector<bool> seen(windows.costs.n_microbatches());
    for (const std::size_t first : first_of_rows(windows)) {
        for (std::size_t mode = 0; mode < windows.n_modes; ++mode) {
            for (const std::int32_t cell : windows.row(first, mode)) {
                if (cell >= 0 && !seen[static_cast<std::size_t>(cell)]) {
                    seen[static_cast<std::size_t>(cell)] = true;
                    used.push_back(static_cast<std::size_t>(cell));
                }
            }
        }
    }
    return used;
}

double work_ms(const PassCosts& cost) { return cost.forward_ms + cost.backward_ms; }

/// Of every micro-batch that is used, its work on a stage.
std::vector<double> works_ms(const StageCosts& costs, std::span<const std::size_t> used,
                             std::size_t stage) {
    std::vector<double> found(costs.n_microbatches());
    for (const std::size_t i : used) {
        found[i] = work_ms(costs.at(i, stage));
    }
    return found;
}

/// Of every micro-batch that is used, the share that it keeps of the memory of the first stage,
/// times how long it does so at least: on its way through all stages and back.
std::vector<double> areas_ms(const StageCosts& costs, std::span<const std::size_t> used,
                             double limit_bytes, const Link& link, bool split_backward) {
    std::vector<double> found(costs.n_microbatches());
    std::vector<double> pass_ms(costs.n_kinds), there_and_back_ms(costs.n_kinds);
    for (const std::size_t i : used) {
        for (std::size_t kind = 0; kind < costs.n_kinds; ++kind) {
            const PassCosts& cost = costs.entries[i * costs.n_kinds + kind];
            pass_ms[kind] = work_ms(cost) - (split_backward ? cost.weight_ms : 0.0);
            there_and_back_ms[kind] =
                2 * (link.latency_ms + cost.boundary_bytes / link.bytes_per_ms);
        }
        double way_ms = 0.0;
        for (std::size_t s = 0; s < costs.n_stages; ++s) {
            way_ms += pass_ms[costs.kind_of(s)];
            if (s + 1 < costs.n_stages) {
                way_ms += there_and_back_ms[costs.kind_of(s)];
            }
        }
        const double kept_bytes = costs.at(i, 0).stored_bytes;
        found[i] = kept_bytes > 0 ? kept_bytes / limit_bytes * way_ms : 0.0;
    }
    return found;
}

/// Per row, by number of samples from 1, the least entry of any mode; infinite where there is no
/// window.
std::vector<std::vector<double>> least_of_windows(const WindowCosts& windows,
                                                  std::span<const double> entries_ms) {
    std::vector<std::vector<double>> least_ms(windows.n_rows());
    for (const std::size_t first : first_of_rows(windows)) {
        std::vector<double>& of_row =
            least_ms[static_cast<std::size_t>(windows.row_of_sample[first])];
        for (std::size_t mode = 0; mode < windows.n_modes; ++mode) {
            const std::span<const std::int32_t> cells = windows.row(first, mode);
            of_row.resize(std::max(of_row.size(), cells.size()), kNever);
            for (std::size_t k = 0; k < cells.size(); ++k) {
                if (cells[k] >= 0) {
                    of_row[k] = std::min(of_row[k], entries_ms[static_cast<std::size_t>(cells[k])]);
                }
            }
        }
    }
    return least_ms;
}

/// Where samples by themselves have most to do.
std::size_t busiest_stage(const WindowCosts& windows) {
    std::vector<double> sums_ms(windows.costs.n_stages);
    for (const std::size_t first : first_of_rows(windows)) {
        const std::int32_t cell = windows.cell(first, 1, 0);
        for (std::size_t s = 0; cell >= 0 && s < sums_ms.size(); ++s) {
            sums_ms[s] += work_ms(windows.costs.at(static_cast<std::size_t>(cell), s));
        }
    }
    const auto most = std::max_element(sums_ms.begin(), sums_ms.end());
    return static_cast<std::size_t>(most - sums_ms.begin());
}

/// The least sum of entries over all cuts.
double least_sum(const WindowCosts& windows, std::span<const double> entries_ms) {
    const std::vector<std::vector<double>> least_ms = least_of_windows(windows, entries_ms);
    const std::size_t n = windows.n_samples();
    std::vector<double> front_ms(n + 1, kNever);
    front_ms[0] = 0.0;
    for (std::size_t i = 0; i < n; ++i) {
        const auto& window_ms = least_ms[static_cast<std::size_t>(windows.row_of_sample[i])];
        const std::size_t most = std::min(window_ms.size(), n - i);
        for (std::size_t k = 0; k < most; ++k) {
            front_ms[i + 1 + k] = std::min(front_ms[i + 1 + k], front_ms[i] + window_ms[k]);
        }
    }
    return front_ms[n];
}

/// The least time of any micro-batch until it can have come to a stage, or to go back from it.
double least_way(const StageCosts& costs, std::span<const std::size_t> used, const Link& link,
                 std::size_t stage, double PassCosts::* pass_ms) {
    double least_ms = kNever;
    std::vector<double> stage_ms(costs.n_kinds);
    for (const std::size_t i : used) {
        for (std::size_t kind = 0; kind < costs.n_kinds; ++kind) {
            const PassCosts& cost = costs.entries[i * costs.n_kinds + kind];
            stage_ms[kind] =
                cost.*pass_ms + link.latency_ms + cost.boundary_bytes / link.bytes_per_ms;
        }
        double sum_ms = 0.0;
        for (std::size_t s = 0; s < stage; ++s) {
            sum_ms += stage_ms[costs.kind_of(s)];
        }
        least_ms = std::min(least_ms, sum_ms);
    }
    return least_ms;
}

}  // namespace

double least_makespan_ms(const WindowCosts& windows, std::span<const double> limit_bytes,
                         const Link& link, bool split_backward, std::size_t n_replicas) {
    const std::size_t stage = busiest_stage(windows);
    const StageCosts& costs = windows.costs;
    const std::vector<std::size_t> used = used_microbatches(windows);
    const double work_ms = least_sum(windows, works_ms(costs, used, stage));
    const double area_ms =
        least_sum(windows, areas_ms(costs, used, limit_bytes[0], link, split_backward));
    const double head_ms = least_way(costs, used, link, stage, &PassCosts::forward_ms);
    const double tail_ms =
        split_backward ? 0.0 : least_way(costs, used, link, stage, &PassCosts::backward_ms);
    const auto n = static_cast<double>(n_replicas);
    return std::max(head_ms + work_ms / n + tail_ms, area_ms / n);
}

}  // namespace dynapipe
