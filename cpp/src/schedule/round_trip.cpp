#include "dynapipe/schedule/round_trip.hpp"

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

double work_ms(const PassCosts& cost) { return cost.forward_ms + cost.backward_ms; }

/// Least times of a micro-batch through the stages and back.
class Paths {
  public:
    Paths(const StageCosts& costs, const Link& link, bool split_backward,
          std::span<const double> reduce_ms = {})
        : costs_(costs),
          link_(link),
          split_backward_(split_backward),
          reduce_ms_(reduce_ms),
          of_kind_(costs.n_kinds) {}

    /// Round trip: from the first pass to the end of the last and of all reductions.
    double of(std::size_t microbatch) {
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
        return path_ms + last_ms;
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

/// Least time from the first pass of a sample's slices to the last: a stage runs them all, and is
/// reached first and left last by the first of them.
double least_of_slices(const WindowCosts& windows, Paths& paths, std::size_t microbatch) {
    const auto [first, n] = windows.parts(microbatch);
    double least_ms = paths.of(first);
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
                                                  : paths.of(microbatch));
            }
        }
    }
    return least_ms;
}

}  // namespace

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
