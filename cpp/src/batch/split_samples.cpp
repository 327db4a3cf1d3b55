#include "dynapipe/batch/split_samples.hpp"

#include <algorithm>
#include <limits>
#include <utility>

namespace dynapipe {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();
constexpr double kStride = 0.9;

/// Tries limits on the fill, from high to low, and keeps the best split.
class LimitedSplits {
  public:
    LimitedSplits(PricedCutter& cutter, const CutRule& rule, std::size_t n_replicas)
        : cutter_(cutter), rule_(rule), n_replicas_(static_cast<double>(n_replicas)) {}

    /// In strides, then without: the better the best so far, the more is skipped.
    std::vector<Window> best() {
        const Tried any = try_windows(cutter_.cut(rule_, 0).body);
        walk(kStride * any.used_ms, kStride);
        cutter_.cut(rule_, 0);
        walk(std::min(any.used_ms, best_ms_ - any.share_ms), 1.0);
        return std::move(best_);
    }

  private:
    struct Tried {
        double used_ms = 0.0;      ///< greatest fill of the split
        double share_ms = kNever;  ///< of a replica in its work; infinite if there is no split
    };

    Tried try_windows(std::vector<Window> windows) {
        if (windows.empty()) {
            return {};
        }
        Tried tried{0.0, 0.0};
        for (const Window& window : windows) {
            tried.used_ms = std::max(tried.used_ms, cutter_.fill_ms(window));
            tried.share_ms += cutter_.work_ms(window) / n_replicas_;
        }
        if (tried.used_ms + tried.share_ms < best_ms_) {
            best_ms_ = tried.used_ms + tried.share_ms;
            best_ = std::move(windows);
        }
        return tried;
    }

    /// Lowers the limit to `stride` times what the last split used, until there is no split. With a
    /// stride of 1 no split that could be better is passed by.
    void walk(double limit_ms, double stride) {
        while (limit_ms > 0.0) {
            const Tried tried = try_windows(cutter_.cut_below(limit_ms).body);
            // Under a lower limit the work is never less, so whatever wins fills in less than this.
            limit_ms = std::min(stride * tried.used_ms, best_ms_ - tried.share_ms);
        }
    }

    PricedCutter& cutter_;
    CutRule rule_;
    double n_replicas_;
    std::vector<Window> best_;
    double best_ms_ = kNever;
};

}  // namespace

std::vector<Window> split_samples(PricedCutter& cutter, const CutRule& rule,
                                  std::size_t n_replicas) {
    return LimitedSplits(cutter, rule, n_replicas).best();
}

}  // namespace dynapipe
