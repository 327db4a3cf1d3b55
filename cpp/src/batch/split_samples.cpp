#include "dynapipe/batch/split_samples.hpp"

#include <algorithm>
#include <limits>
#include <stdexcept>
#include <utility>

namespace dynapipe {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// The micro-batches whose fill is below a limit.
class Allowed {
  public:
    explicit Allowed(const MicroBatchTables& tables)
        : tables_(tables),
          work_ms_(tables.work_ms.begin(), tables.work_ms.end()),
          n_used_(tables.begin.size() - 1) {
        for (std::size_t length = 0; length < n_used_.size(); ++length) {
            n_used_[length] = tables.max_samples(length);
        }
    }

    /// Forbids every micro-batch whose fill is not below the limit.
    void lower(double limit_ms) {
        for (std::size_t length = 0; length < n_used_.size(); ++length) {
            const double* fill_ms = tables_.fill_ms.data() + tables_.at(length);
            double* work_ms = work_ms_.data() + tables_.at(length);
            std::size_t& n = n_used_[length];
            for (std::size_t k = 0; k < n; ++k) {
                work_ms[k] = fill_ms[k] < limit_ms ? work_ms[k] : kInfinity;
            }
            while (n > 0 && work_ms[n - 1] == kInfinity) {
                --n;
            }
        }
    }

    /// Work in ms of the micro-batches that start with a length, by number of samples from 1,
    /// without what is forbidden at the end; infinite where forbidden.
    [[nodiscard]] std::span<const double> work_ms(std::int32_t length) const {
        const auto row = static_cast<std::size_t>(length);
        return {work_ms_.data() + tables_.at(row), n_used_[row]};
    }

  private:
    MicroBatchTables tables_;
    std::vector<double> work_ms_;
    std::vector<std::size_t> n_used_;  ///< per length
};

/// The least of work_ms[k] + rest_ms[k]; four at a time, so that it can be vectorised.
double least_sum(std::span<const double> work_ms, const double* rest_ms) {
    double least[4] = {kInfinity, kInfinity, kInfinity, kInfinity};
    std::size_t k = 0;
    for (; k + 4 <= work_ms.size(); k += 4) {
        for (std::size_t lane = 0; lane < 4; ++lane) {
            const double sum = work_ms[k + lane] + rest_ms[k + lane];
            least[lane] = sum < least[lane] ? sum : least[lane];
        }
    }
    for (; k < work_ms.size(); ++k) {
        least[0] = std::min(least[0], work_ms[k] + rest_ms[k]);
    }
    return std::min(std::min(least[0], least[1]), std::min(least[2], least[3]));
}

/// One list of samples, cut again and again.
class Cutter {
  public:
    Cutter(std::span<const std::int32_t> length_of_sample, const MicroBatchTables& tables)
        : length_of_sample_(length_of_sample),
          allowed_(tables),
          rest_ms_(length_of_sample.size() + 1, 0.0) {}

    void lower(double limit_ms) { allowed_.lower(limit_ms); }

    /// The least sum of work over all ways to cut the samples: rest_ms_[i] is that of the
    /// samples from i on, found from the last sample to the first.
    double solve() {
        for (std::size_t i = length_of_sample_.size(); i-- > 0;) {
            rest_ms_[i] = least_sum(choices(i), &rest_ms_[i + 1]);
        }
        return rest_ms_[0];
    }

    /// The best cut, after `solve`. The sums are computed as there, so equality is exact.
    [[nodiscard]] std::vector<std::size_t> sizes() const {
        std::vector<std::size_t> sizes;
        for (std::size_t i = 0; i < length_of_sample_.size(); i += sizes.back()) {
            const std::span<const double> work_ms = choices(i);
            std::size_t k = 0;
            while (k < work_ms.size() && work_ms[k] + rest_ms_[i + 1 + k] != rest_ms_[i]) {
                ++k;
            }
            if (k == work_ms.size()) {
                throw std::invalid_argument("the work of a micro-batch is no number");
            }
            sizes.push_back(k + 1);
        }
        return sizes;
    }

  private:
    [[nodiscard]] std::span<const double> choices(std::size_t i) const {
        const std::span<const double> work_ms = allowed_.work_ms(length_of_sample_[i]);
        return work_ms.first(std::min(work_ms.size(), length_of_sample_.size() - i));
    }

    std::span<const std::int32_t> length_of_sample_;
    Allowed allowed_;
    std::vector<double> rest_ms_;
};

double fill_of(std::span<const std::int32_t> length_of_sample, const MicroBatchTables& tables,
               std::size_t first, std::size_t size) {
    const auto length = static_cast<std::size_t>(length_of_sample[first]);
    return tables.fill_ms[tables.at(length) + size - 1];
}

double greatest_fill(std::span<const std::int32_t> length_of_sample, const MicroBatchTables& tables,
                     std::span<const std::size_t> sizes) {
    double greatest_ms = 0;
    std::size_t first = 0;
    for (const std::size_t size : sizes) {
        greatest_ms = std::max(greatest_ms, fill_of(length_of_sample, tables, first, size));
        first += size;
    }
    return greatest_ms;
}

/// No split has less fill than this: one of its micro-batches starts with the first sample.
double least_fill(std::span<const std::int32_t> length_of_sample, const MicroBatchTables& tables) {
    double least_ms = kInfinity;
    const auto length = static_cast<std::size_t>(length_of_sample.front());
    const std::size_t most = std::min(tables.max_samples(length), length_of_sample.size());
    for (std::size_t size = 1; size <= most; ++size) {
        least_ms = std::min(least_ms, fill_of(length_of_sample, tables, 0, size));
    }
    return least_ms;
}

/// Tries limits on the fill, from high to low, and keeps the best split.
class Search {
  public:
    Search(std::span<const std::int32_t> length_of_sample, const MicroBatchTables& tables,
           std::size_t n_replicas)
        : length_of_sample_(length_of_sample),
          tables_(tables),
          n_replicas_(static_cast<double>(n_replicas)),
          floor_ms_(least_fill(length_of_sample, tables)) {}

    Split run() {
        Cutter any(length_of_sample_, tables_);
        any.lower(kInfinity);
        const double share_ms = try_cut(any).share_ms;
        if (share_ms == kInfinity) {
            return best_;
        }
        // A good split early, as the better the best so far, the more is skipped: with little
        // fill to begin with, then in strides, then without.
        walk(kFirstGuess * floor_ms_, 0.0);
        walk(best_.objective_ms - share_ms, kStride);
        walk(best_.objective_ms - share_ms, 1.0);
        return best_;
    }

  private:
    struct Tried {
        double used_ms;   ///< greatest fill of the split
        double share_ms;  ///< of a replica in its work; infinite if there is no split
    };
    static constexpr double kFirstGuess = 1.25;
    static constexpr double kStride = 0.9;

    Tried try_cut(Cutter& cutter) {
        const double share_ms = cutter.solve() / n_replicas_;
        ++best_.n_solves;
        if (share_ms == kInfinity) {
            return {0.0, kInfinity};
        }
        std::vector<std::size_t> sizes = cutter.sizes();
        const double used_ms = greatest_fill(length_of_sample_, tables_, sizes);
        if (used_ms + share_ms < best_.objective_ms) {
            best_.sizes = std::move(sizes);
            best_.objective_ms = used_ms + share_ms;
        }
        return {used_ms, share_ms};
    }

    /// Lowers the limit to `stride` times what the last split used, over and over. With a stride
    /// of 1 no split that could be better is passed by.
    void walk(double limit_ms, double stride) {
        if (limit_ms <= floor_ms_) {
            return;
        }
        Cutter cutter(length_of_sample_, tables_);
        while (limit_ms > floor_ms_) {
            cutter.lower(limit_ms);
            const Tried tried = try_cut(cutter);
            if (tried.share_ms == kInfinity) {
                break;
            }
            // Under a lower limit the work is never less, so whatever wins fills in less than this.
            limit_ms = std::min(stride * tried.used_ms, best_.objective_ms - tried.share_ms);
        }
    }

    std::span<const std::int32_t> length_of_sample_;
    const MicroBatchTables& tables_;
    double n_replicas_;
    double floor_ms_;
    Split best_{{}, kInfinity, 0};
};

/// For each window, the mode with the least work; the first of equals.
class CheapestWindows {
  public:
    CheapestWindows(const WindowCosts& windows, std::span<const Rating> ratings,
                    double largest_share, std::size_t max_samples)
        : windows_(windows), begin_(windows.n_rows() + 1) {
        std::vector<std::size_t> first_of_row(windows.n_rows());
        for (std::size_t i = windows.n_samples(); i-- > 0;) {
            first_of_row[static_cast<std::size_t>(windows.row_of_sample[i])] = i;
        }
        for (std::size_t row = 0; row < first_of_row.size(); ++row) {
            add_row(first_of_row[row], ratings, largest_share, max_samples);
            begin_[row + 1] = static_cast<std::int64_t>(work_ms_.size());
        }
    }

    [[nodiscard]] MicroBatchTables tables() const { return {work_ms_, fill_ms_, begin_}; }

    [[nodiscard]] std::vector<Window> windows_of(const Split& split) const {
        std::vector<Window> cut;
        std::size_t first = 0;
        for (const std::size_t size : split.sizes) {
            const auto row = static_cast<std::size_t>(windows_.row_of_sample[first]);
            const std::size_t place = static_cast<std::size_t>(begin_[row]) + size - 1;
            cut.push_back({static_cast<std::uint32_t>(first), static_cast<std::uint32_t>(size),
                           mode_[place]});
            first += size;
        }
        return cut;
    }

  private:
    void add_row(std::size_t first, std::span<const Rating> ratings, double largest_share,
                 std::size_t max_samples) {
        const std::size_t begin = work_ms_.size();
        for (std::uint32_t mode = 0; mode < windows_.n_modes; ++mode) {
            const std::span<const std::int32_t> cells = windows_.row(first, mode);
            const std::size_t n = std::min(cells.size(), max_samples);
            const std::size_t end = std::max(work_ms_.size(), begin + n);
            work_ms_.resize(end, kInfinity);
            fill_ms_.resize(end, kInfinity);
            mode_.resize(end);
            for (std::size_t k = 0; k < n; ++k) {
                if (cells[k] < 0) {
                    continue;
                }
                const Rating& rating = ratings[static_cast<std::size_t>(cells[k])];
                if ((k == 0 || rating.kept_share <= largest_share) &&
                    rating.work_ms < work_ms_[begin + k]) {
                    work_ms_[begin + k] = rating.work_ms;
                    fill_ms_[begin + k] = rating.fill_ms;
                    mode_[begin + k] = mode;
                }
            }
        }
    }

    const WindowCosts& windows_;
    std::vector<std::int64_t> begin_;
    std::vector<double> work_ms_;
    std::vector<double> fill_ms_;
    std::vector<std::uint32_t> mode_;
};

}  // namespace

Split split_samples(std::span<const std::int32_t> length_of_sample, const MicroBatchTables& tables,
                    std::size_t n_replicas) {
    return Search(length_of_sample, tables, n_replicas).run();
}

std::vector<Window> split_windows(const WindowCosts& windows, std::span<const Rating> ratings,
                                  double largest_share, std::size_t n_replicas) {
    const CheapestWindows cheapest(windows, ratings, largest_share, windows.n_samples());
    Split split = split_samples(windows.row_of_sample, cheapest.tables(), n_replicas);
    if (split.sizes.size() >= n_replicas || n_replicas > windows.n_samples()) {
        return cheapest.windows_of(split);
    }
    const CheapestWindows shorter(windows, ratings, largest_share,
                                  windows.n_samples() / n_replicas);
    split = split_samples(windows.row_of_sample, shorter.tables(), n_replicas);
    return shorter.windows_of(split);
}

}  // namespace dynapipe
