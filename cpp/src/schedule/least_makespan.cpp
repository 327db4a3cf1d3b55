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
    std::vector<bool> is_seen(windows.n_rows());
    for (std::size_t i = 0; i < windows.n_samples(); ++i) {
        const auto row = static_cast<std::size_t>(windows.row_of_sample[i]);
        if (!is_seen[row]) {
            is_seen[row] = true;
            first.push_back(i);
        }
    }
    return first;
}

/// The micro-batches of all windows: tables that share costs use few of them each.
std::vector<std::size_t> used_microbatches(const WindowCosts& windows) {
    std::vector<std::size_t> used;
    std::vector<bool> is_seen(windows.costs.n_microbatches());
    for (const std::size_t first : first_of_rows(windows)) {
        for (std::size_t mode = 0; mode < windows.n_modes; ++mode) {
            for (const std::int32_t cell : windows.row(first, mode)) {
                if (cell >= 0 && !is_seen[static_cast<std::size_t>(cell)]) {
                    is_seen[static_cast<std::size_t>(cell)] = true;
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
    std::vector<double> of_microbatch(costs.n_microbatches());
    for (const std::size_t i : used) {
        of_microbatch[i] = work_ms(costs.at(i, stage));
    }
    return of_microbatch;
}

/// Least times of a micro-batch through the stages and back.
struct Path {
    double in_flight_ms;   ///< from F on the first stage to the end of its last pass there
    double round_trip_ms;  ///< from its first pass to the end of its last and of all reductions
};

class Paths {
  public:
    Paths(const StageCosts& costs, const Link& link, bool split_backward,
          std::span<const double> reduce_ms = {})
        : costs_(costs),
          link_(link),
          split_backward_(split_backward),
          reduce_ms_(reduce_ms),
          of_kind_(costs.n_kinds) {}

    Path of(std::size_t microbatch) {
        for (std::size_t kind = 0; kind < costs_.n_kinds; ++kind) {
            const PassCosts& cost = costs_.entries[microbatch * costs_.n_kinds + kind];
            const double weight_ms = split_backward_ ? cost.weight_ms : 0.0;
            const double transfer_ms = link_.latency_ms + cost.boundary_bytes / link_.bytes_per_ms;
            of_kind_[kind] = {work_ms(cost) - weight_ms, cost.backward_ms - weight_ms, weight_ms,
                              transfer_ms};
        }
        double path_ms = 0.0;  // to the end of B on the first stage
        double back_ms = 0.0;  // the last part of it, from the end of B on a stage
        double last_ms = 0.0;  // what W and a reduction then take, there or on a later stage
        for (std::size_t s = 0; s < costs_.n_stages; ++s) {
            const OnStage& stage = of_kind_[costs_.kind_of(s)];
            const double transfer_ms = s + 1 < costs_.n_stages ? stage.transfer_ms : 0.0;
            const double reduce_ms = reduce_ms_.empty() ? 0.0 : reduce_ms_[s];
            last_ms = std::max(last_ms, stage.weight_ms + reduce_ms - back_ms);
            path_ms += stage.through_ms + 2 * transfer_ms;
            back_ms += stage.back_ms + transfer_ms;
        }
        return {path_ms + of_kind_[costs_.kind_of(0)].weight_ms, path_ms + last_ms};
    }

    /// F and B on a stage.
    [[nodiscard]] double through_ms(std::size_t microbatch, std::size_t stage) const {
        const PassCosts& cost = costs_.at(microbatch, stage);
        return work_ms(cost) - (split_backward_ ? cost.weight_ms : 0.0);
    }

    /// F and B on the stages before one, and the transfers between them.
    [[nodiscard]] double before_ms(std::size_t microbatch, std::size_t stage) const {
        double ms = 0.0;
        for (std::size_t s = 0; s < stage; ++s) {
            const double bytes = costs_.at(microbatch, s).boundary_bytes;
            ms += through_ms(microbatch, s) + 2 * (link_.latency_ms + bytes / link_.bytes_per_ms);
        }
        return ms;
    }

  private:
    struct OnStage {
        double through_ms;  ///< F and B
        double back_ms;     ///< B
        double weight_ms;
        double transfer_ms;  ///< to the next stage, or back from it
    };

    const StageCosts& costs_;
    const Link& link_;
    bool split_backward_;
    std::span<const double> reduce_ms_;
    std::vector<OnStage> of_kind_;
};

/// Of every micro-batch that is used, the share of the memory of the first stage that it, or its
/// slices, need times how long they do so at least.
std::vector<double> areas_ms(const WindowCosts& windows, std::span<const std::size_t> used,
                             double limit_bytes, const Link& link, bool split_backward) {
    const StageCosts& costs = windows.costs;
    std::vector<double> of_microbatch(costs.n_microbatches());
    Paths paths(costs, link, split_backward);
    const auto area_ms = [&](double bytes, double ms) {
        return bytes > 0.0 ? bytes / limit_bytes * ms : 0.0;
    };
    for (const std::size_t i : used) {
        const auto [first, n] = windows.parts(i);
        for (std::size_t part = first; part < first + n; ++part) {
            const PassCosts& cost = costs.at(part, 0);
            of_microbatch[i] += area_ms(cost.stored_bytes, paths.of(part).in_flight_ms) +
                                area_ms(cost.forward_transient_bytes, cost.forward_ms) +
                                area_ms(cost.backward_transient_bytes, cost.backward_ms);
        }
    }
    return of_microbatch;
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

/// Stage on which samples by themselves have most to do.
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
double least_path(const WindowCosts& windows, std::span<const std::size_t> used, const Link& link,
                  std::size_t stage, double PassCosts::* pass_ms) {
    const StageCosts& costs = windows.costs;
    double least_ms = kNever;
    std::vector<double> stage_ms(costs.n_kinds);
    for (const std::size_t i : used) {
        // The first slice comes first, and goes back last.
        const std::size_t part = windows.parts(i).first;
        for (std::size_t kind = 0; kind < costs.n_kinds; ++kind) {
            const PassCosts& cost = costs.entries[part * costs.n_kinds + kind];
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

/// Least time from the first pass of a sample's slices to the last: a stage runs them all, and is
/// reached first and left last by the first of them.
double least_of_slices(const WindowCosts& windows, Paths& paths, std::size_t microbatch) {
    const auto [first, n] = windows.parts(microbatch);
    double least_ms = paths.of(first).round_trip_ms;
    for (std::size_t s = 0; s < windows.costs.n_stages; ++s) {
        double stage_ms = paths.before_ms(first, s);
        for (std::size_t slice = first; slice < first + n; ++slice) {
            stage_ms += paths.through_ms(slice, s);
        }
        least_ms = std::max(least_ms, stage_ms);
    }
    return least_ms;
}

/// The least round trip of windows from a sample on, of at least some size.
double least_trip_from(const WindowCosts& windows, Paths& paths, std::size_t first,
                       std::size_t least_size, std::size_t most_size) {
    double least_ms = kNever;
    for (std::size_t mode = 0; mode < windows.n_modes; ++mode) {
        const std::span<const std::int32_t> cells = windows.row(first, mode);
        for (std::size_t size = least_size; size <= std::min(most_size, cells.size()); ++size) {
            const std::int32_t cell = cells[size - 1];
            if (cell >= 0) {
                const auto microbatch = static_cast<std::size_t>(cell);
                least_ms = std::min(least_ms, windows.has_slices(microbatch)
                                                  ? least_of_slices(windows, paths, microbatch)
                                                  : paths.of(microbatch).round_trip_ms);
            }
        }
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
        least_sum(windows, areas_ms(windows, used, limit_bytes[0], link, split_backward));
    const double head_ms = least_path(windows, used, link, stage, &PassCosts::forward_ms);
    const double tail_ms =
        split_backward ? 0.0 : least_path(windows, used, link, stage, &PassCosts::backward_ms);
    const auto n = static_cast<double>(n_replicas);
    return std::max({head_ms + work_ms / n + tail_ms, area_ms / n,
                     least_round_trip_ms(windows, link, split_backward)});
}

double least_round_trip_ms(const WindowCosts& windows, const Link& link, bool split_backward,
                           std::span<const double> reduce_ms) {
    Paths paths(windows.costs, link, split_backward, reduce_ms);
    std::size_t longest = 0;
    double longest_ms = 0.0;
    for (const std::size_t first : first_of_rows(windows)) {
        const double alone_ms = least_trip_from(windows, paths, first, 1, 1);
        if (alone_ms > longest_ms) {
            longest = first;
            longest_ms = alone_ms;
        }
    }
    double least_ms = kNever;
    for (std::size_t first = 0; first <= longest; ++first) {
        const double of_first_ms =
            least_trip_from(windows, paths, first, longest - first + 1, windows.n_samples());
        least_ms = std::min(least_ms, of_first_ms);
    }
    return least_ms;
}

}  // namespace dynapipe
