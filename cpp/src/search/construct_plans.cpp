#include "dynapipe/search/construct_plans.hpp"

#include <algorithm>
#include <array>
#include <limits>
#include <stdexcept>
#include <utility>

#include "dynapipe/batch/balance_work.hpp"
#include "dynapipe/batch/split_samples.hpp"
#include "dynapipe/search/arrange_windows.hpp"
#include "dynapipe/search/refine_plan.hpp"

namespace dynapipe {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();
/// Numbers of windows that a stage can keep at once, per stage.
constexpr std::array kInFlightPerStage = {1.0, 1.25};
/// Limits on windows, as shares of the longest window of the best cut.
constexpr std::array kLongestShares = {0.85, 0.7, 0.5};
/// Memory price of windows that all run in one mode.
constexpr double kPriceOfMode = 0.6;

using Windows = std::vector<Window>;

/// Builds plans in which passes go first in, first out, and keeps the best.
class Builder {
  public:
    Builder(ReplicaSimulator& simulator, std::span<const double> slowness, std::size_t n_kept,
            std::size_t max_effort)
        : windows_(simulator.windows()),
          cutter_(simulator.windows(), simulator.limit_bytes(), simulator.link()),
          simulator_(simulator),
          slowness_(slowness),
          n_replicas_(slowness.size()),
          n_kept_(n_kept),
          max_effort_(max_effort) {}

    std::vector<ConstructedPlan> run(std::size_t max_to_refine) {
        for (const double price : kMemoryPrices) {
            if (best_.empty() || may_go_on()) {
                try_rule({.memory_price = price});
            }
        }
        std::size_t size = (windows_.n_samples() + n_replicas_ - 1) / n_replicas_;
        try_equal_sizes(size);
        while (size > 1) {
            size = (size + 1) / 2;
            try_equal_sizes(size);
        }
        if (best_.empty()) {
            throw std::invalid_argument("a sample alone needs more than the limit of a stage");
        }
        if (may_go_on()) {
            for (const double per_stage : kInFlightPerStage) {
                const auto n_stages = static_cast<double>(windows_.costs.n_stages);
                try_rule({.most_kept_share = 1 / (per_stage * n_stages)});
            }
            vary_best();
        }
        refine(max_to_refine);
        if (may_go_on()) {
            try_exact_split();
        }
        for (std::uint32_t mode = 0; windows_.n_modes > 1 && mode < windows_.n_modes; ++mode) {
            if (may_go_on()) {
                try_mode(mode, max_to_refine);
            }
        }
        return std::move(best_);
    }

  private:
    [[nodiscard]] bool may_go_on() const { return simulator_.effort() < max_effort_; }

    /// As many samples in every window, so that each replica has some windows.
    void try_equal_sizes(std::size_t size) {
        Cut cut;
        double longest_ms = 0.0;
        for (std::size_t first = 0; first < windows_.n_samples(); first += size) {
            Window window{static_cast<std::uint32_t>(first),
                          static_cast<std::uint32_t>(std::min(size, windows_.n_samples() - first)),
                          static_cast<std::uint32_t>(windows_.n_modes)};
            cutter_.choose_mode(window, 0.0);
            if (window.mode == windows_.n_modes) {
                return;
            }
            longest_ms = std::max(longest_ms, cutter_.work_ms(window));
            cut.body.push_back(window);
        }
        if (cut.body.size() >= n_replicas_) {
            const std::size_t each = cut.body.size() >= 2 * n_replicas_ ? 2 : 1;
            const auto ends = cut.body.end() - static_cast<std::ptrdiff_t>(each * n_replicas_);
            cut.ends.assign(ends, cut.body.end());
            cut.body.erase(ends, cut.body.end());
            try_cut(cut, {.longest_ms = longest_ms});
        }
    }

    /// Tries to limit the work of the windows of the best cut.
    void vary_best() {
        CutRule rule = best_.front().cut;
        double longest_ms = 0.0;
        for (const Windows& replica : best_.front().replicas) {
            for (const Window& window : replica) {
                longest_ms = std::max(longest_ms, window.size > 1 ? cutter_.work_ms(window) : 0.0);
            }
        }
        for (const double share : kLongestShares) {
            rule.longest_ms = share * longest_ms;
            try_rule(rule);
        }
    }

    /// Refines by size, not by effort, which depends on the simulations that came before.
    void refine(std::size_t max_to_refine) {
        std::size_t refined_size = 0;
        for (ConstructedPlan& plan : std::exchange(best_, {})) {
            if (refined_size < max_to_refine) {
                plan.makespan_ms = 0.0;
                for (std::size_t r = 0; r < n_replicas_; ++r) {
                    Windows& replica = plan.replicas[r];
                    refined_size += replica.size() * windows_.costs.n_stages;
                    const double ms = refine_replica(cutter_, simulator_, replica);
                    plan.makespan_ms = std::max(plan.makespan_ms, ms * slowness_[r]);
                }
            }
            keep(std::move(plan));
        }
    }

    void try_exact_split() {
        const double share = 1.0 / static_cast<double>(windows_.costs.n_stages);
        const Windows split = split_samples(cutter_, {.most_kept_share = share}, n_replicas_);
        if (split.size() < n_replicas_) {
            return;
        }
        std::vector<double> work_ms;
        for (const Window& window : split) {
            work_ms.push_back(cutter_.work_ms(window));
        }
        Assignment replicas;
        for (const std::vector<std::uint32_t>& places : balance_work(work_ms, n_replicas_)) {
            Windows& replica = replicas.emplace_back();
            for (const std::uint32_t place : places) {
                replica.push_back(split[place]);
            }
        }
        try_plan(std::move(replicas), {});
    }

    /// Refines a plan whose windows all run in one mode, unless its work alone takes longer than
    /// the best plan.
    void try_mode(std::uint32_t mode, std::size_t max_to_refine) {
        const CutRule rule{.memory_price = kPriceOfMode, .mode = mode};
        const Cut cut = cutter_.cut(rule, 2 * n_replicas_);
        double work_ms = 0.0;
        for (const Windows* windows : {&cut.body, &cut.ends}) {
            for (const Window& window : *windows) {
                work_ms += cutter_.work_ms(window);
            }
        }
        if (work_ms / static_cast<double>(n_replicas_) < best_.front().makespan_ms) {
            std::vector<ConstructedPlan> others = std::exchange(best_, {});
            try_cut(cut, rule);
            refine(max_to_refine);
            for (ConstructedPlan& plan : std::exchange(best_, std::move(others))) {
                keep(std::move(plan));
            }
        }
    }

    void try_rule(const CutRule& rule) { try_cut(cutter_.cut(rule, 2 * n_replicas_), rule); }

    void try_cut(const Cut& cut, const CutRule& rule) {
        if (cut.ends.empty()) {
            return;  // there is no such cut
        }
        for (const bool balances_fill : {true, false}) {
            Assignment replicas = spread(cut, cutter_, slowness_, balances_fill);
            for (Windows& replica : replicas) {
                arrange(replica, cutter_, kEvenRise);
            }
            try_plan(std::move(replicas), rule);
            if (n_replicas_ == 1) {
                return;  // it has all either way
            }
        }
    }

    void try_plan(Assignment replicas, const CutRule& rule) {
        double slowest_ms = 0.0;
        const double give_up_ms = best_.size() < n_kept_ ? kNever : best_.back().makespan_ms;
        for (std::size_t r = 0; r < n_replicas_; ++r) {
            const double ms = simulator_.best_makespan_ms(replicas[r], give_up_ms / slowness_[r]);
            slowest_ms = std::max(slowest_ms, ms * slowness_[r]);
        }
        keep({std::move(replicas), slowest_ms, rule});
    }

    /// Plans that take equally long are most likely the same, found twice.
    void keep(ConstructedPlan plan) {
        const auto place = std::find_if(
            best_.begin(), best_.end(),
            [&](const ConstructedPlan& kept) { return kept.makespan_ms >= plan.makespan_ms; });
        const bool is_known = place != best_.end() && place->makespan_ms == plan.makespan_ms;
        if (!is_known && plan.makespan_ms < kNever) {
            best_.insert(place, std::move(plan));
            best_.resize(std::min(best_.size(), n_kept_));
        }
    }

    const WindowCosts& windows_;
    PricedCutter cutter_;
    ReplicaSimulator& simulator_;
    std::span<const double> slowness_;  ///< per replica
    std::size_t n_replicas_;
    std::size_t n_kept_;
    std::size_t max_effort_;
    std::vector<ConstructedPlan> best_;  ///< best first
};

}  // namespace

std::vector<ConstructedPlan> construct_plans(ReplicaSimulator& simulator,
                                             std::span<const double> slowness, std::size_t n_kept,
                                             std::size_t max_effort, std::size_t max_to_refine) {
    return Builder(simulator, slowness, n_kept, max_effort).run(max_to_refine);
}

}  // namespace dynapipe
