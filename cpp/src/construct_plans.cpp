#include "dynapipe/construct_plans.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <stdexcept>

#include "dynapipe/list_scheduler.hpp"
#include "dynapipe/priced_cut.hpp"

namespace dynapipe {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();
constexpr std::array kPrices = {0.0, 0.15, 0.3, 0.45, 0.6, 0.8, 1.0, 1.5, 3.0, 6.0, 12.0, 24.0};
/// Of the longest window of the best cut, to what windows are limited.
constexpr std::array kLongestShares = {0.85, 0.7, 0.5};
/// Of the micro-batches from the shortest on, how many come before the longest.
constexpr double kEvenRise = 0.5;
constexpr std::array kRises = {0.3, 0.5, 0.7};
constexpr std::size_t kMostHandedOver = 4;

using Windows = std::vector<Window>;

std::size_t index_of_most(const std::vector<double>& values) {
    return static_cast<std::size_t>(std::max_element(values.begin(), values.end()) -
                                    values.begin());
}

std::size_t index_of_least(const std::vector<double>& values) {
    return static_cast<std::size_t>(std::min_element(values.begin(), values.end()) -
                                    values.begin());
}

class Builder {
  public:
    Builder(const WindowCosts& windows, std::span<const double> limit_bytes, const Link& link,
            std::size_t n_replicas, bool split_backward, std::size_t n_kept, std::size_t n_refined)
        : windows_(windows),
          cutter_(windows, limit_bytes, link),
          scheduler_(windows.costs, limit_bytes, link, windows.n_samples(), split_backward),
          n_replicas_(n_replicas),
          n_kept_(n_kept),
          n_refined_(n_refined) {}

    std::vector<ConstructedPlan> run() {
        for (const double price : kPrices) {
            try_cut(price, kNever, {0});
        }
        for (std::size_t each = 1; n_replicas_ * each <= windows_.n_samples(); each *= 2) {
            try_equal_sizes(each);
        }
        if (best_.empty()) {
            try_samples_alone();
        }
        if (best_.empty()) {
            throw std::invalid_argument("a sample alone needs more than the limit of a stage");
        }
        const double price = best_.front().memory_price;
        const double longest_ms = longest_window_ms(best_.front().replicas);
        try_cut(price, kNever, {0, 2});
        for (const double share : kLongestShares) {
            try_cut(price, share * longest_ms, {0, 2});
            if (price > 0) {
                try_cut(0.0, share * longest_ms, {0});
            }
        }
        std::vector<ConstructedPlan> found = std::move(best_);
        best_.clear();
        for (std::size_t i = 0; i < found.size(); ++i) {
            if (i < n_refined_) {
                refine(found[i]);
            }
            keep(std::move(found[i]));
        }
        return std::move(best_);
    }

  private:
    void try_cut(double price, double longest_ms, std::initializer_list<std::size_t> rebalances) {
        const Cut cut = cutter_.cut(price, longest_ms, 2 * n_replicas_);
        for (const std::size_t n_rebalanced : rebalances) {
            for (const bool balances_fill : {false, true}) {
                if (n_replicas_ > 1 || (!balances_fill && n_rebalanced == 0)) {
                    try_balance(cut, {{}, 0.0, price, longest_ms, balances_fill, n_rebalanced});
                }
            }
        }
    }

    /// Spreads the windows of a cut over replicas, again after what the last simulation showed.
    void try_balance(const Cut& cut, const ConstructedPlan& plan) {
        if (cut.ends.size() != 2 * n_replicas_) {
            return;
        }
        std::vector<double> extra_ms(n_replicas_, 0.0);
        for (std::size_t round = 0; round <= plan.n_rebalanced; ++round) {
            const bool is_last = round == plan.n_rebalanced;
            ConstructedPlan tried = plan;
            tried.n_rebalanced = round;
            tried.replicas = spread(cut, extra_ms, plan.balances_fill && round == 0);
            for (std::size_t r = 0; r < n_replicas_; ++r) {
                Windows& replica = tried.replicas[r];
                arrange(replica, kEvenRise);
                const double ms = is_last ? best_makespan_ms(replica, worst_kept_ms())
                                          : makespan_ms(replica, kNever);
                tried.makespan_ms = std::max(tried.makespan_ms, ms);
                if (is_last && ms == kNever) {
                    return;
                }
                extra_ms[r] = ms;
                for (const Window& window : replica) {
                    extra_ms[r] -= cutter_.work_ms(window);
                }
            }
            keep(std::move(tried));
        }
    }

    /// Gives each window to the replica that has least to do, the longest first.
    Assignment spread(const Cut& cut, std::vector<double> load_ms, bool balances_fill) const {
        Windows ends = cut.ends;
        Windows body = cut.body;
        const auto by_work = [&](const Window& a, const Window& b) {
            return cutter_.work_ms(a) < cutter_.work_ms(b);
        };
        std::stable_sort(ends.begin(), ends.end(), by_work);
        std::stable_sort(body.begin(), body.end(),
                         [&](const Window& a, const Window& b) { return by_work(b, a); });
        Assignment replicas(n_replicas_);
        std::vector<double> fill_ms(n_replicas_, 0.0);
        for (std::size_t i = 0; i < n_replicas_; ++i) {
            for (const Window& end : {ends[i], ends[ends.size() - 1 - i]}) {
                replicas[i].push_back(end);
                load_ms[i] += cutter_.work_ms(end);
            }
        }
        for (const Window& window : body) {
            std::vector<double> then_ms = load_ms;
            for (std::size_t r = 0; r < n_replicas_ && balances_fill; ++r) {
                then_ms[r] += std::max(fill_ms[r], cutter_.fill_ms(window));
            }
            const std::size_t r = index_of_least(then_ms);
            replicas[r].insert(replicas[r].end() - 1, window);
            load_ms[r] += cutter_.work_ms(window);
            fill_ms[r] = std::max(fill_ms[r], cutter_.fill_ms(window));
        }
        return replicas;
    }

    /// As many samples in every window, so that each replica has some windows.
    void try_equal_sizes(std::size_t windows_each) {
        const std::size_t n_samples = windows_.n_samples();
        const std::size_t n_windows = n_replicas_ * windows_each;
        const std::size_t size = (n_samples + n_windows - 1) / n_windows;
        Cut cut;
        double longest_ms = 0.0;
        for (std::size_t first = 0; first < n_samples; first += size) {
            Window window{static_cast<std::uint32_t>(first),
                          static_cast<std::uint32_t>(std::min(size, n_samples - first)),
                          static_cast<std::uint32_t>(windows_.n_modes)};
            cutter_.choose_mode(window, 0.0);
            if (window.mode == windows_.n_modes) {
                return;
            }
            longest_ms = std::max(longest_ms, cutter_.work_ms(window));
            cut.body.push_back(window);
        }
        const ConstructedPlan plan{{}, 0.0, 0.0, longest_ms, false, 0};
        if (cut.body.size() >= 2 * n_replicas_) {
            const auto ends = cut.body.end() - static_cast<std::ptrdiff_t>(2 * n_replicas_);
            cut.ends.assign(ends, cut.body.end());
            cut.body.erase(ends, cut.body.end());
            try_balance(cut, plan);
        } else if (cut.body.size() >= n_replicas_) {
            deal(cut.body, plan);
        }
    }

    /// Gives the windows to the replicas in turn.
    void deal(const Windows& windows, ConstructedPlan plan) {
        plan.replicas.resize(n_replicas_);
        for (std::size_t i = 0; i < windows.size(); ++i) {
            plan.replicas[i % n_replicas_].push_back(windows[i]);
        }
        for (const Windows& replica : plan.replicas) {
            plan.makespan_ms =
                std::max(plan.makespan_ms, best_makespan_ms(replica, worst_kept_ms()));
        }
        keep(std::move(plan));
    }

    /// One sample per micro-batch: it always fits.
    void try_samples_alone() {
        ConstructedPlan plan{Assignment(n_replicas_), 0.0, 0.0, 0.0, false, 0};
        for (std::uint32_t first = 0; first < windows_.n_samples(); ++first) {
            Window window{first, 1, static_cast<std::uint32_t>(windows_.n_modes)};
            cutter_.choose_mode(window, 0.0);
            if (window.mode == windows_.n_modes) {
                throw std::invalid_argument("sample " + std::to_string(first) +
                                            " alone may not be used");
            }
            plan.replicas[first % n_replicas_].push_back(window);
        }
        for (Windows& replica : plan.replicas) {
            arrange(replica, kEvenRise);
            plan.makespan_ms = std::max(plan.makespan_ms, makespan_ms(replica, kNever));
        }
        keep(std::move(plan));
    }

    /// Puts windows in order of work, rising and then falling; the first and last stay.
    void arrange(Windows& replica, double rise) const {
        if (replica.size() < 4) {
            return;
        }
        Windows body(replica.begin() + 1, replica.end() - 1);
        std::stable_sort(body.begin(), body.end(), [&](const Window& a, const Window& b) {
            return cutter_.work_ms(a) < cutter_.work_ms(b);
        });
        std::size_t front = 1;
        std::size_t back = replica.size() - 2;
        double share = 0.0;
        for (const Window& window : body) {
            share += rise;
            const bool rises = share >= 1.0;
            share -= rises ? 1.0 : 0.0;
            replica[rises ? front++ : back--] = window;
        }
    }

    /// Makes the best of what each replica has, then moves windows from the slowest to the fastest.
    void refine(ConstructedPlan& plan) {
        std::vector<double> ms;
        for (Windows& replica : plan.replicas) {
            ms.push_back(refine(replica));
        }
        for (std::size_t n = 0; n < kMostHandedOver && hand_over(plan.replicas, ms); ++n) {
        }
        plan.makespan_ms = *std::max_element(ms.begin(), ms.end());
    }

    /// The best order and modes of a replica: those of a price, but for the longest window, whose
    /// way through the pipeline may be what the others wait for. Returns its makespan.
    double refine(Windows& replica) {
        double best_ms = best_makespan_ms(replica, kNever);
        const Windows given = replica;
        try_rises(given, replica, best_ms);
        for (const double price : kPrices) {
            Windows repriced = given;
            for (Window& window : repriced) {
                cutter_.choose_mode(window, price);
            }
            if (repriced != given) {
                try_rises(repriced, replica, best_ms);
            }
        }
        for (std::uint32_t mode = 0; mode < windows_.n_modes; ++mode) {
            Windows changed = replica;
            Window& longest = *std::max_element(changed.begin(), changed.end(),
                                                [&](const Window& a, const Window& b) {
                                                    return cutter_.work_ms(a) < cutter_.work_ms(b);
                                                });
            longest.mode = mode;
            if (changed != replica && windows_.cell(longest.first, longest.size, mode) >= 0) {
                try_rises(changed, replica, best_ms);
            }
        }
        return best_ms;
    }

    /// Keeps the best of the orders of some windows, if it is better than the best so far.
    void try_rises(Windows windows, Windows& best, double& best_ms) {
        for (const double rise : kRises) {
            arrange(windows, rise);
            const double ms = best_makespan_ms(windows, best_ms);
            if (ms < best_ms) {
                best_ms = ms;
                best = windows;
            }
        }
    }

    /// Moves the window that evens the slowest and the fastest replica out best; false if that
    /// does not help.
    bool hand_over(Assignment& replicas, std::vector<double>& ms) {
        const std::size_t slowest = index_of_most(ms);
        const std::size_t fastest = index_of_least(ms);
        Windows giver = replicas[slowest];
        Windows taker = replicas[fastest];
        if (slowest == fastest || giver.size() < 3) {
            return false;
        }
        const double wanted_ms = (ms[slowest] - ms[fastest]) / 2;
        const auto chosen =
            std::min_element(giver.begin(), giver.end(), [&](const Window& a, const Window& b) {
                return std::abs(cutter_.work_ms(a) - wanted_ms) <
                       std::abs(cutter_.work_ms(b) - wanted_ms);
            });
        taker.insert(taker.begin() + static_cast<std::ptrdiff_t>(taker.size() / 2), *chosen);
        giver.erase(chosen);
        const double giver_ms = refine(giver);
        const double taker_ms = refine(taker);
        if (std::max(giver_ms, taker_ms) >= ms[slowest]) {
            return false;
        }
        replicas[slowest] = std::move(giver);
        replicas[fastest] = std::move(taker);
        ms[slowest] = giver_ms;
        ms[fastest] = taker_ms;
        return true;
    }

    /// Of a replica, in the better of the two ways to schedule it.
    double makespan_ms(const Windows& replica, double give_up_ms, bool alternates = false) {
        list_.clear();
        for (const Window& window : replica) {
            list_.push_back(cutter_.microbatch(window));
        }
        return scheduler_.run(list_, give_up_ms, alternates);
    }

    /// In the better of the two ways to schedule it.
    double best_makespan_ms(const Windows& replica, double give_up_ms) {
        const double ms = makespan_ms(replica, give_up_ms);
        return std::min(ms, makespan_ms(replica, std::min(ms, give_up_ms), true));
    }

    [[nodiscard]] double longest_window_ms(const Assignment& replicas) const {
        double longest_ms = 0.0;
        for (const Windows& replica : replicas) {
            for (const Window& window : replica) {
                longest_ms = std::max(longest_ms, window.size > 1 ? cutter_.work_ms(window) : 0.0);
            }
        }
        return longest_ms;
    }

    [[nodiscard]] double worst_kept_ms() const {
        return best_.size() < n_kept_ ? kNever : best_.back().makespan_ms;
    }

    /// Plans that take equally long are most likely the same, found twice.
    void keep(ConstructedPlan plan) {
        const auto is_not_longer = [&](const ConstructedPlan& kept) {
            return kept.makespan_ms >= plan.makespan_ms;
        };
        const auto place = std::find_if(best_.begin(), best_.end(), is_not_longer);
        if (plan.makespan_ms == kNever ||
            (place != best_.end() && place->makespan_ms == plan.makespan_ms)) {
            return;
        }
        best_.insert(place, std::move(plan));
        best_.resize(std::min(best_.size(), n_kept_));
    }

    WindowCosts windows_;
    PricedCutter cutter_;
    ListScheduler scheduler_;
    std::size_t n_replicas_;
    std::size_t n_kept_;
    std::size_t n_refined_;
    std::vector<ConstructedPlan> best_;  ///< best first
    std::vector<std::uint32_t> list_;
};

}  // namespace

std::vector<ConstructedPlan> construct_plans(const WindowCosts& windows,
                                             std::span<const double> limit_bytes, const Link& link,
                                             std::size_t n_replicas, bool split_backward,
                                             std::size_t n_kept, std::size_t n_refined) {
    return Builder(windows, limit_bytes, link, n_replicas, split_backward, n_kept, n_refined).run();
}

}  // namespace dynapipe
