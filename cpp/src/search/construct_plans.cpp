#include "dynapipe/search/construct_plans.hpp"

#include <algorithm>
#include <array>
#include <functional>
#include <stdexcept>

#include "dynapipe/batch/priced_cut.hpp"
#include "dynapipe/search/arrange_windows.hpp"
#include "dynapipe/search/refine_plan.hpp"

namespace dynapipe {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();
/// How many windows fit at once, per stage.
constexpr std::array kInFlightPerStage = {1.0, 1.25};
/// Of the longest window of the best cut, to what windows are limited.
constexpr std::array kLongestShares = {0.85, 0.7, 0.5};

using Windows = std::vector<Window>;

class Builder {
  public:
    Builder(ReplicaSimulator& simulator, std::span<const double> slowness, std::size_t n_kept,
            std::size_t most_effort, std::size_t most_to_refine)
        : windows_(simulator.windows()),
          cutter_(windows_, simulator.limit_bytes(), simulator.link()),
          simulator_(simulator),
          refiner_(windows_, cutter_, simulator_, slowness),
          slowness_(slowness),
          n_replicas_(slowness.size()),
          n_kept_(n_kept),
          most_effort_(most_effort),
          most_to_refine_(most_to_refine) {}

    std::vector<ConstructedPlan> run() {
        try_prices();
        for (std::size_t each = 1; n_replicas_ * each <= windows_.n_samples(); each *= 2) {
            try_equal_sizes(each);
        }
        if (best_.empty()) {
            try_samples_alone();
        }
        if (best_.empty()) {
            throw std::invalid_argument("a sample alone needs more than the limit of a stage");
        }
        if (simulator_.effort() < most_effort_) {
            try_numbers_in_flight();
            vary_best();
        }
        return refined();
    }

  private:
    /// Tries the largest windows of which a number fit at once, but for their transient memory.
    void try_numbers_in_flight() {
        for (const double per_stage : kInFlightPerStage) {
            const auto n_stages = static_cast<double>(windows_.costs.n_stages);
            try_cut({.most_kept_share = 1 / (per_stage * n_stages)}, {0});
        }
    }

    /// Tries to rebalance the best cut, and to limit the work of its windows.
    void vary_best() {
        CutRule rule = best_.front().cut;
        rule.longest_ms = kNever;
        const double longest_ms = longest_window_ms(best_.front().replicas);
        try_cut(rule, {0, 2});
        for (const double share : kLongestShares) {
            rule.longest_ms = share * longest_ms;
            try_cut(rule, {0, 2});
        }
    }

    /// Refines by size and not by effort, which what has been simulated before would change.
    std::vector<ConstructedPlan> refined() {
        std::vector<ConstructedPlan> found = std::move(best_);
        best_.clear();
        std::size_t refined_size = 0;
        for (ConstructedPlan& plan : found) {
            if (refined_size < most_to_refine_) {
                for (const Windows& replica : plan.replicas) {
                    refined_size += replica.size() * windows_.costs.n_stages;
                }
                plan.makespan_ms = refiner_.refine(plan.replicas);
            }
            keep(std::move(plan));
        }
        return std::move(best_);
    }

    /// The most promising first: then the simulation of others soon shows that they take longer.
    void try_prices() {
        struct Priced {
            CutRule rule;
            Cut cut;
            double estimate_ms;
        };
        std::vector<Priced> cuts;
        for (const double price : kMemoryPrices) {
            const CutRule rule{.memory_price = price};
            Cut cut = cutter_.cut(rule, 2 * n_replicas_);
            const double estimate_ms = even_share_ms(cut);
            cuts.push_back({rule, std::move(cut), estimate_ms});
        }
        std::stable_sort(cuts.begin(), cuts.end(), [](const Priced& a, const Priced& b) {
            return a.estimate_ms < b.estimate_ms;
        });
        for (const Priced& priced : cuts) {
            if (!best_.empty() && simulator_.effort() >= most_effort_) {
                break;
            }
            try_balances(priced.cut, priced.rule, {0});
        }
    }

    /// What a replica would take if all had as much to do: work, or micro-batches one after the
    /// other in the memory that they keep.
    [[nodiscard]] double even_share_ms(const Cut& cut) const {
        double work_ms = 0.0;
        double kept_ms = 0.0;
        double longest_fill_ms = 0.0;
        for (const Windows& windows : {std::cref(cut.body), std::cref(cut.ends)}) {
            for (const Window& window : windows) {
                const double fill_ms = cutter_.fill_ms(window);
                work_ms += cutter_.work_ms(window);
                kept_ms += cutter_.kept_share(window) * (cutter_.work_ms(window) + fill_ms);
                longest_fill_ms = std::max(longest_fill_ms, fill_ms);
            }
        }
        const auto n = static_cast<double>(n_replicas_);
        return std::max(work_ms / n + longest_fill_ms, kept_ms / n);
    }

    void try_cut(const CutRule& rule, std::initializer_list<std::size_t> rebalances) {
        try_balances(cutter_.cut(rule, 2 * n_replicas_), rule, rebalances);
    }

    void try_balances(const Cut& cut, const CutRule& rule,
                      std::initializer_list<std::size_t> rebalances) {
        for (const std::size_t n_rebalanced : rebalances) {
            for (const bool balances_fill : {false, true}) {
                if (n_replicas_ > 1 || (!balances_fill && n_rebalanced == 0)) {
                    try_balance(cut, {{}, 0.0, rule, balances_fill, n_rebalanced});
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
            const bool balances_fill = plan.balances_fill && round == 0;
            tried.replicas = spread(cut, cutter_, extra_ms, slowness_, balances_fill);
            for (std::size_t r = 0; r < n_replicas_; ++r) {
                Windows& replica = tried.replicas[r];
                arrange(replica, cutter_, kEvenRise);
                const double ms = is_last ? best_makespan_ms(replica, r)
                                          : simulator_.makespan_ms(replica, kNever) * slowness_[r];
                tried.makespan_ms = std::max(tried.makespan_ms, ms);
                if (is_last && ms == kNever) {
                    return;
                }
                extra_ms[r] = ms / slowness_[r];
                for (const Window& window : replica) {
                    extra_ms[r] -= cutter_.work_ms(window);
                }
            }
            keep(std::move(tried));
        }
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
        const ConstructedPlan plan{{}, 0.0, {.longest_ms = longest_ms}, false, 0};
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
        for (std::size_t r = 0; r < n_replicas_; ++r) {
            plan.makespan_ms = std::max(plan.makespan_ms, best_makespan_ms(plan.replicas[r], r));
        }
        keep(std::move(plan));
    }

    /// One sample per micro-batch: it always fits.
    void try_samples_alone() {
        ConstructedPlan plan{Assignment(n_replicas_), 0.0, {.longest_ms = 0.0}, false, 0};
        for (std::uint32_t first = 0; first < windows_.n_samples(); ++first) {
            Window window{first, 1, static_cast<std::uint32_t>(windows_.n_modes)};
            cutter_.choose_mode(window, 0.0);
            if (window.mode == windows_.n_modes) {
                throw std::invalid_argument("sample " + std::to_string(first) +
                                            " alone may not be used");
            }
            plan.replicas[first % n_replicas_].push_back(window);
        }
        for (std::size_t r = 0; r < n_replicas_; ++r) {
            arrange(plan.replicas[r], cutter_, kEvenRise);
            const double ms = simulator_.makespan_ms(plan.replicas[r], kNever) * slowness_[r];
            plan.makespan_ms = std::max(plan.makespan_ms, ms);
        }
        keep(std::move(plan));
    }

    /// Infinite if it is certain to be worse than all plans that are kept.
    double best_makespan_ms(const Windows& replica, std::size_t r) {
        return simulator_.best_makespan_ms(replica, worst_kept_ms() / slowness_[r]) * slowness_[r];
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

    /// Plans that take equally long are most likely the same, found twice; that of the lowest price
    /// is kept, and one with a limit on kept memory, which has no price, replaces none.
    void keep(ConstructedPlan plan) {
        const auto is_not_longer = [&](const ConstructedPlan& kept) {
            return kept.makespan_ms >= plan.makespan_ms;
        };
        const auto place = std::find_if(best_.begin(), best_.end(), is_not_longer);
        if (place != best_.end() && place->makespan_ms == plan.makespan_ms) {
            if (plan.cut.most_kept_share == kNever &&
                plan.cut.memory_price < place->cut.memory_price) {
                *place = std::move(plan);
            }
            return;
        }
        if (plan.makespan_ms == kNever) {
            return;
        }
        best_.insert(place, std::move(plan));
        best_.resize(std::min(best_.size(), n_kept_));
    }

    WindowCosts windows_;
    PricedCutter cutter_;
    ReplicaSimulator& simulator_;
    PlanRefiner refiner_;
    std::span<const double> slowness_;  ///< per replica
    std::size_t n_replicas_;
    std::size_t n_kept_;
    std::size_t most_effort_;
    std::size_t most_to_refine_;
    std::vector<ConstructedPlan> best_;  ///< best first
};

}  // namespace

std::vector<ConstructedPlan> construct_plans(ReplicaSimulator& simulator,
                                             std::span<const double> slowness, std::size_t n_kept,
                                             std::size_t most_effort, std::size_t most_to_refine) {
    return Builder(simulator, slowness, n_kept, most_effort, most_to_refine).run();
}

}  // namespace dynapipe
