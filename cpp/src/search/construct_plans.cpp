#include "dynapipe/search/construct_plans.hpp"

#include <algorithm>
#include <array>
#include <iterator>
#include <stdexcept>

#include "dynapipe/batch/balance_work.hpp"
#include "dynapipe/batch/split_samples.hpp"
#include "dynapipe/search/arrange_windows.hpp"
#include "dynapipe/search/priced_cuts.hpp"
#include "dynapipe/search/refine_plan.hpp"

namespace dynapipe {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();
/// Numbers of windows that fit at once, per stage.
constexpr std::array kInFlightPerStage = {1.0, 1.25};
/// Limits on windows, as shares of the longest window of the best cut.
constexpr std::array kLongestShares = {0.85, 0.7, 0.5};

/// Memory prices of windows that all run in one mode.
constexpr std::array kPricesOfMode = {0.0, 0.6, 3.0};

using Windows = std::vector<Window>;

/// Builds plans in which passes go first in, first out, and keeps the best.
class Builder {
  public:
    Builder(ReplicaSimulator& simulator, PricedCutter& cutter, std::span<const double> slowness,
            std::size_t n_kept, std::size_t max_effort, std::size_t max_to_refine)
        : windows_(simulator.windows()),
          cutter_(cutter),
          simulator_(simulator),
          refiner_(cutter, simulator, slowness),
          slowness_(slowness),
          n_replicas_(slowness.size()),
          n_kept_(n_kept),
          max_effort_(simulator.effort() + max_effort),
          max_to_refine_(max_to_refine) {}

    std::vector<ConstructedPlan> run(std::span<const PricedCut> cuts) {
        try_prices(cuts);
        for (std::size_t each = 1; n_replicas_ * each <= windows_.n_samples(); each *= 2) {
            try_equal_sizes(each);
        }
        if (best_.empty()) {
            try_samples_alone();
        }
        if (best_.empty()) {
            throw std::invalid_argument("a sample alone needs more than the limit of a stage");
        }
        if (simulator_.effort() < max_effort_) {
            try_numbers_in_flight();
            vary_best();
        }
        return refined();
    }

    /// The same from priced cuts alone.
    std::vector<ConstructedPlan> run_prices(std::span<const PricedCut> cuts) {
        try_prices(cuts);
        return refined();
    }

  private:
    /// Tries the largest windows of which a number fit at once, but for their transient memory.
    void try_numbers_in_flight() {
        for (const double per_stage : kInFlightPerStage) {
            const auto n_stages = static_cast<double>(windows_.costs.n_stages);
            try_cut({.max_kept_share = 1 / (per_stage * n_stages)});
        }
    }

    /// Tries to limit the work of the windows of the best cut.
    void vary_best() {
        CutRule rule = best_.front().cut;
        const double longest_ms = longest_window_ms(best_.front().replicas);
        for (const double share : kLongestShares) {
            rule.longest_ms = share * longest_ms;
            try_cut(rule);
        }
    }

    /// Refines by size, not by effort, which depends on the simulations that came before.
    std::vector<ConstructedPlan> refined() {
        std::vector<ConstructedPlan> plans = std::move(best_);
        best_.clear();
        std::size_t refined_size = 0;
        for (ConstructedPlan& plan : plans) {
            if (refined_size < max_to_refine_) {
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
    void try_prices(std::span<const PricedCut> cuts) {
        for (const PricedCut& priced : cuts) {
            if (!best_.empty() && simulator_.effort() >= max_effort_) {
                break;
            }
            try_balances(priced.cut, priced.rule);
        }
    }

    void try_cut(const CutRule& rule) { try_balances(cutter_.cut(rule, 2 * n_replicas_), rule); }

    void try_balances(const Cut& cut, const CutRule& rule) {
        for (const bool balances_fill : {false, true}) {
            if (n_replicas_ > 1 || !balances_fill) {
                try_balance(cut, {{}, 0.0, rule, balances_fill});
            }
        }
    }

    void try_balance(const Cut& cut, ConstructedPlan plan) {
        if (cut.ends.size() != 2 * n_replicas_) {
            return;
        }
        plan.replicas = spread(cut, cutter_, slowness_, plan.balances_fill);
        for (std::size_t r = 0; r < n_replicas_; ++r) {
            arrange(plan.replicas[r], cutter_, kEvenRise);
            plan.makespan_ms = std::max(plan.makespan_ms, best_makespan_ms(plan.replicas[r], r));
        }
        keep(std::move(plan));
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
        const ConstructedPlan plan{{}, 0.0, {.longest_ms = longest_ms}, false};
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
        ConstructedPlan plan{Assignment(n_replicas_), 0.0, {.longest_ms = 0.0}, false};
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
            plan.makespan_ms = std::max(plan.makespan_ms, best_makespan_ms(plan.replicas[r], r));
        }
        keep(std::move(plan));
    }

    /// Infinite if it is certain to be worse than all plans that are kept.
    double best_makespan_ms(const Windows& replica, std::size_t r) {
        return simulator_.best_makespan_ms(replica, worst_kept_ms() / slowness_[r],
                                           kFirstInFirstOut) *
               slowness_[r];
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
            if (plan.cut.max_kept_share == kNever &&
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

    const WindowCosts& windows_;
    PricedCutter& cutter_;
    ReplicaSimulator& simulator_;
    PlanRefiner refiner_;
    std::span<const double> slowness_;  ///< per replica
    std::size_t n_replicas_;
    std::size_t n_kept_;
    std::size_t max_effort_;
    std::size_t max_to_refine_;
    std::vector<ConstructedPlan> best_;  ///< best first
};

/// Exact splits into windows that may keep all of a stage's memory, or an equal share of it: in the
/// order of the samples, and arranged.
std::vector<ConstructedPlan> split_plans(ReplicaSimulator& simulator, const PricedCutter& cutter,
                                         std::span<const double> slowness) {
    const WindowCosts& windows = simulator.windows();
    std::vector<ConstructedPlan> plans;
    for (const double share : {1.0, 1.0 / static_cast<double>(windows.costs.n_stages)}) {
        const Windows split = split_windows(windows, cutter.ratings(), share, slowness.size());
        if (split.size() < slowness.size()) {
            continue;
        }
        std::vector<double> work_ms;
        for (const Window& window : split) {
            work_ms.push_back(cutter.work_ms(window));
        }
        ConstructedPlan plan{{}, 0.0, {}, false};
        for (const std::vector<std::uint32_t>& places : balance_work(work_ms, slowness.size())) {
            Windows& replica = plan.replicas.emplace_back();
            for (const std::uint32_t place : places) {
                replica.push_back(split[place]);
            }
        }
        for (const bool is_arranged : {false, true}) {
            for (Windows& replica : plan.replicas) {
                if (is_arranged) {
                    arrange(replica, cutter, kEvenRise);
                }
            }
            plan.makespan_ms = simulator.slowest_ms(plan.replicas, slowness, kNever);
            if (plan.makespan_ms < kNever) {
                plans.push_back(plan);
            }
        }
    }
    return plans;
}

/// Modes in which every sample may run alone, if there are several modes.
std::vector<std::uint32_t> single_modes(const WindowCosts& windows) {
    std::vector<std::uint32_t> modes;
    for (std::uint32_t mode = 0; windows.n_modes > 1 && mode < windows.n_modes; ++mode) {
        std::size_t first = 0;
        while (first < windows.n_samples() && windows.cell(first, 1, mode) >= 0) {
            ++first;
        }
        if (first == windows.n_samples()) {
            modes.push_back(mode);
        }
    }
    return modes;
}

void keep_best(std::vector<ConstructedPlan>& plans, std::vector<ConstructedPlan> others,
               std::size_t n_kept) {
    std::move(others.begin(), others.end(), std::back_inserter(plans));
    std::stable_sort(plans.begin(), plans.end(),
                     [](const ConstructedPlan& a, const ConstructedPlan& b) {
                         return a.makespan_ms < b.makespan_ms;
                     });
    const auto is_same = [](const ConstructedPlan& a, const ConstructedPlan& b) {
        return a.replicas == b.replicas;
    };
    plans.erase(std::unique(plans.begin(), plans.end(), is_same), plans.end());
    plans.resize(std::min(plans.size(), n_kept));
}

}  // namespace

std::vector<ConstructedPlan> construct_plans(ReplicaSimulator& simulator,
                                             std::span<const double> slowness, std::size_t n_kept,
                                             std::size_t max_effort, std::size_t max_to_refine) {
    PricedCutter cutter(simulator.windows(), simulator.limit_bytes(), simulator.link());
    const std::vector<PricedCut> cuts = priced_cuts(cutter, slowness.size());
    Builder builder(simulator, cutter, slowness, n_kept, max_effort, max_to_refine);
    std::vector<ConstructedPlan> plans = builder.run(cuts);
    if (simulator.effort() < max_effort) {
        keep_best(plans, split_plans(simulator, cutter, slowness), n_kept);
    }
    for (const std::uint32_t mode : single_modes(simulator.windows())) {
        if (simulator.effort() >= max_effort) {
            break;
        }
        PricedCutter of_mode = cutter.of_mode(mode);
        Builder one(simulator, of_mode, slowness, 1, max_effort - simulator.effort(), 1);
        keep_best(plans, one.run_prices(priced_cuts(of_mode, slowness.size(), kPricesOfMode)),
                  n_kept);
    }
    return plans;
}

}  // namespace dynapipe
