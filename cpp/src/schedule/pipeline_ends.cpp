#include "dynapipe/schedule/pipeline_ends.hpp"

#include <algorithm>
#include <limits>
#include <stdexcept>

namespace dynapipe {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();
/// Runs of ends of one size that a cut is first made of.
constexpr std::size_t kRuns = 32;

constexpr const char* kNoNumber = "the cost of an end is no number";

using Costs = std::vector<double>;

/// All by sample from `first_` on: none before it can be in an end.
class EndCutter {
  public:
    EndCutter(const EndCosts& costs, std::size_t n_ends)
        : costs_(costs),
          n_ends_(n_ends),
          first_(costs.n_samples() - std::min(costs.n_samples(), n_ends * kMaxEndSize)),
          n_(costs.n_samples() - first_),
          width_(std::min(n_ends + 1, kEndBand)) {}

    [[nodiscard]] Ends run() const {
        if (n_ends_ < kEndBand) {
            return cut_in_band(std::vector<std::size_t>(n_ + 1, 0), 0);
        }
        const Ends runs = cut_into_runs();
        if (runs.sizes.empty()) {
            return runs;
        }
        // Ends near the runs do not begin so early that they have twice as many samples.
        const std::size_t n_in_runs = costs_.n_samples() - runs.first;
        return cut_in_band(band_around(runs), n_ - std::min(n_, 2 * n_in_runs));
    }

  private:
    /// Number of ends that the last runs have together.
    [[nodiscard]] std::size_t n_of_runs(std::size_t n_runs) const {
        return n_ends_ * n_runs / kRuns;
    }

    /// The best of the cuts in which runs of neighbouring ends have one size.
    [[nodiscard]] Ends cut_into_runs() const {
        const std::vector<Costs> sums_ms = sums_by_size();
        std::vector<Costs> rest_ms(kRuns + 1, Costs(n_ + 1, kNever));
        rest_ms[0].back() = 0.0;
        for (std::size_t run = 0; run < kRuns; ++run) {
            for (std::size_t size = 1; size <= kMaxEndSize; ++size) {
                const std::size_t length = size * (n_of_runs(run + 1) - n_of_runs(run));
                const Costs& sum_ms = sums_ms[size - 1];
                for (std::size_t i = 0; i + length <= n_; ++i) {
                    const double run_ms = sum_ms[i] - sum_ms[i + length];
                    rest_ms[run + 1][i] =
                        std::min(rest_ms[run + 1][i], run_ms + rest_ms[run][i + length]);
                }
            }
        }
        return follow_runs(sums_ms, rest_ms);
    }

    /// By size, what ends of this size one after the other cost from a sample on.
    [[nodiscard]] std::vector<Costs> sums_by_size() const {
        std::vector<Costs> sums_ms(kMaxEndSize, Costs(n_ + 1, 0.0));
        for (std::size_t i = n_; i-- > 0;) {
            const std::span<const double> end_ms = costs_.from(first_ + i);
            for (std::size_t k = 0; k < end_ms.size(); ++k) {
                sums_ms[k][i] = end_ms[k] + sums_ms[k][i + k + 1];
            }
        }
        return sums_ms;
    }

    [[nodiscard]] Ends follow_runs(const std::vector<Costs>& sums_ms,
                                   const std::vector<Costs>& rest_ms) const {
        std::size_t at = border(rest_ms[kRuns]);
        Ends ends{at > n_ ? 0 : first_ + at, {}};
        for (std::size_t run = at > n_ ? 0 : kRuns; run-- > 0;) {
            const std::size_t n_ends = n_of_runs(run + 1) - n_of_runs(run);
            std::size_t size = 1;
            const auto is_best = [&] {
                const std::size_t behind = at + size * n_ends;
                return behind <= n_ &&
                       sums_ms[size - 1][at] - sums_ms[size - 1][behind] + rest_ms[run][behind] ==
                           rest_ms[run + 1][at];
            };
            while (size <= kMaxEndSize && !is_best()) {
                ++size;
            }
            if (size > kMaxEndSize) {
                throw std::invalid_argument(kNoNumber);
            }
            ends.sizes.insert(ends.sizes.end(), n_ends, size);
            at += size * n_ends;
        }
        return ends;
    }

    /// Index of the sample at which ends begin so that they and all before them cost least; beyond
    /// the last sample if there are no such ends.
    [[nodiscard]] std::size_t border(const Costs& rest_ms) const {
        double least_ms = kNever;
        std::size_t best = n_ + 1;
        for (std::size_t i = 0; i <= n_; ++i) {
            const double sum_ms = costs_.body_ms[first_ + i] + rest_ms[i];
            best = sum_ms < least_ms ? i : best;
            least_ms = std::min(least_ms, sum_ms);
        }
        return best;
    }

    /// Per sample, the least number of ends behind it that is looked at: near that of a cut.
    [[nodiscard]] std::vector<std::size_t> band_around(const Ends& ends) const {
        std::vector<std::size_t> least(n_ + 1, 0);
        std::size_t begin = ends.first - first_;
        std::size_t n_behind = ends.sizes.size();
        for (std::size_t i = 0; i <= n_; ++i) {
            if (i > begin) {
                begin += ends.sizes[ends.sizes.size() - n_behind--];
            }
            least[i] = std::min(n_behind - std::min(n_behind, width_ / 2), n_ends_ + 1 - width_);
        }
        return least;
    }

    /// The best of the cuts that have one of `width_` numbers of ends behind every sample, and none
    /// before a sample.
    [[nodiscard]] Ends cut_in_band(const std::vector<std::size_t>& least,
                                   std::size_t earliest) const {
        Costs rest_ms((n_ + 1) * width_, kNever);
        rest_ms[n_ * width_] = 0.0;
        for (std::size_t i = n_; i-- > earliest;) {
            const std::span<const double> end_ms = costs_.from(first_ + i);
            for (std::size_t k = 0; k < end_ms.size(); ++k) {
                add_end(end_ms[k], least, i, i + k + 1, rest_ms);
            }
        }
        return follow(least, rest_ms);
    }

    /// Puts one more end before what is cut from a sample on, where that costs less.
    void add_end(double end_ms, const std::vector<std::size_t>& least, std::size_t at,
                 std::size_t behind, Costs& rest_ms) const {
        const std::size_t begin = std::max(least[at], least[behind] + 1);
        const std::size_t end = std::min(least[at], least[behind] + 1) + width_;
        double* to_ms = rest_ms.data() + at * width_ + begin - least[at];
        const double* from_ms = rest_ms.data() + behind * width_ + begin - 1 - least[behind];
        for (std::size_t n = 0; n + begin < end; ++n) {
            to_ms[n] = std::min(to_ms[n], end_ms + from_ms[n]);
        }
    }

    [[nodiscard]] Ends follow(const std::vector<std::size_t>& least, const Costs& rest_ms) const {
        const auto rest = [&](std::size_t i, std::size_t n) {
            const bool is_in_band = n >= least[i] && n < least[i] + width_;
            return is_in_band ? rest_ms[i * width_ + n - least[i]] : kNever;
        };
        Costs all_ms;
        for (std::size_t i = 0; i <= n_; ++i) {
            all_ms.push_back(rest(i, n_ends_));
        }
        std::size_t at = border(all_ms);
        Ends ends{at > n_ ? 0 : first_ + at, {}};
        for (std::size_t left = at > n_ ? 0 : n_ends_; left > 0; --left) {
            const std::span<const double> end_ms = costs_.from(first_ + at);
            // The sums are computed as in `add_end`, so equality is exact.
            std::size_t size = 1;
            while (size <= end_ms.size() &&
                   end_ms[size - 1] + rest(at + size, left - 1) != rest(at, left)) {
                ++size;
            }
            if (size > end_ms.size()) {
                throw std::invalid_argument(kNoNumber);
            }
            ends.sizes.push_back(size);
            at += size;
        }
        return ends;
    }

    const EndCosts& costs_;
    std::size_t n_ends_;
    std::size_t first_;
    std::size_t n_;      ///< samples from the first on
    std::size_t width_;  ///< of the band
};

}  // namespace

Ends cut_ends(const EndCosts& costs, std::size_t n_ends) { return EndCutter(costs, n_ends).run(); }

}  // namespace dynapipe
