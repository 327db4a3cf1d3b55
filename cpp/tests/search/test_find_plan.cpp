/// Plans that are constructed and improved hold every sample once, fit, and repeat.
#include <algorithm>
#include <cstdint>
#include <limits>
#include <set>
#include <vector>

#include "check.hpp"
#include "dynapipe/search/construct_plans.hpp"
#include "dynapipe/search/improve_plan.hpp"
#include "plan_problem.hpp"

namespace {

using dynapipe::Assignment;
using dynapipe::ConstructedPlan;
using plan_problem::holds_every_sample_once;
using plan_problem::kSamples;
using plan_problem::kStages;
using plan_problem::Problem;

constexpr double kNever = std::numeric_limits<double>::infinity();
void check_search(std::uint64_t seed, const std::vector<double>& slowness, bool split_backward,
                  double limit_bytes) {
    const Problem problem(seed);
    const std::vector<double> limits(kStages, limit_bytes);
    const dynapipe::Link link{0.5, 10.0, seed % 2 == 0};
    dynapipe::ReplicaSimulator simulator(problem.windows(), limits, link, split_backward);
    const auto plans = dynapipe::construct_plans(simulator, slowness, 3);
    std::vector<Assignment> starts;
    for (const auto& plan : plans) {
        CHECK(holds_every_sample_once(plan.replicas));
        starts.push_back(plan.replicas);
    }
    dynapipe::ReplicaSimulator knows_nothing(problem.windows(), limits, link, split_backward);
    dynapipe::PlanSearch other(knows_nothing, starts, slowness, seed);
    const auto search = [&] { return dynapipe::PlanSearch(simulator, starts, slowness, seed); };
    const std::size_t constructed = simulator.effort();
    search();
    CHECK(simulator.effort() - constructed < knows_nothing.effort());
    const auto improve = [&](std::size_t effort) { return search().improve(effort); };
    const auto found = improve(25'000);
    CHECK(holds_every_sample_once(found.back().replicas));
    CHECK(found.back().makespan_ms <= plans.front().makespan_ms);
    CHECK(improve(25'000).back().replicas == found.back().replicas);
    CHECK(other.improve(25'000).back().replicas == found.back().replicas);
    const auto less = improve(12'500);
    CHECK(less.size() <= found.size());
    for (std::size_t i = 0; i < less.size(); ++i) {
        CHECK(less[i].replicas == found[i].replicas);
    }
    auto stopped = search();
    CHECK(stopped.improve(0).size() == 1);
    CHECK(stopped.improve(12'500).size() == less.size());
    const auto resumed = stopped.improve(25'000);
    CHECK(resumed.size() == found.size());
    CHECK(resumed.back().replicas == found.back().replicas);
    CHECK(stopped.improve(12'500).back().replicas == less.back().replicas);
}

/// What plans are there that must not be there once as many passes are simulated as may be.
struct Varied {
    bool by_rules = false;  ///< a plan that was rebalanced, or has a price and a longest window
    std::set<double> most_kept;  ///< limits on what windows keep
};

/// Once as many passes are simulated as may be, only cuts of one price and of equal sizes are left.
void check_limited_effort(std::uint64_t seed, std::size_t n_replicas, Varied& varied) {
    const Problem problem(seed);
    const std::vector<double> limits(kStages, 300.0);
    const std::vector<double> alike(n_replicas, 1.0);
    const auto construct = [&](std::size_t most_effort) {
        dynapipe::ReplicaSimulator simulator(problem.windows(), limits, {0.5, 10.0, false}, false);
        return dynapipe::construct_plans(simulator, alike, 1'000, most_effort);
    };
    const auto is_varied = [](const ConstructedPlan& plan) {
        return plan.n_rebalanced > 0 ||
               (plan.cut.memory_price > 0.0 && plan.cut.longest_ms < kNever);
    };
    const auto prices_of = [](const std::vector<ConstructedPlan>& plans) {
        std::set<double> prices;
        for (const ConstructedPlan& plan : plans) {
            if (plan.cut.longest_ms == kNever) {
                prices.insert(plan.cut.memory_price);
            }
        }
        return prices;
    };
    const auto all = construct(1'000'000);
    const auto few = construct(1);
    CHECK(prices_of(all).size() > 1);
    CHECK(std::none_of(few.begin(), few.end(), is_varied));
    CHECK(prices_of(few).size() == 1);
    CHECK(few.front().makespan_ms >= all.front().makespan_ms);
    for (const ConstructedPlan& plan : few) {
        CHECK(holds_every_sample_once(plan.replicas));
        CHECK(plan.cut.most_kept == kNever);
    }
    for (const ConstructedPlan& plan : all) {
        varied.by_rules |= is_varied(plan);
        varied.most_kept.insert(plan.cut.most_kept);
    }
}

}  // namespace

int main() {
    Varied varied;
    for (std::uint64_t seed = 0; seed < 6; ++seed) {
        for (const bool split_backward : {false, true}) {
            for (const std::size_t n_replicas : {std::size_t{1}, std::size_t{3}, kSamples}) {
                const std::vector<double> alike(n_replicas, 1.0);
                check_search(seed, alike, split_backward, 300.0);
                check_search(seed, alike, split_backward, kNever);
            }
            check_search(seed, {1.0, 1.5}, split_backward, 300.0);
        }
        for (const std::size_t n_replicas : {std::size_t{1}, std::size_t{3}}) {
            check_limited_effort(seed, n_replicas, varied);
        }
    }
    CHECK(varied.by_rules);
    CHECK((varied.most_kept == std::set<double>{1 / (1.25 * kStages), 1.0 / kStages, kNever}));
    return check::finish();
}
