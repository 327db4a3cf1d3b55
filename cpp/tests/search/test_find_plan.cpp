/// Plans that are constructed and improved hold every sample once, fit, and repeat.
#include <algorithm>
#include <array>
#include <limits>
#include <set>
#include <utility>
#include <vector>

#include "check.hpp"
#include "dynapipe/search/construct_plans.hpp"
#include "dynapipe/search/find_plan.hpp"
#include "dynapipe/search/refine_plan.hpp"
#include "plan_problem.hpp"

namespace {

using dynapipe::ConstructedPlan;
using dynapipe::FoundPlan;
using dynapipe::ReplicaSimulator;
using plan_problem::holds_every_sample_once;
using plan_problem::kLink;
using plan_problem::kSamples;
using plan_problem::kStages;
using plan_problem::Problem;

/// Links of which only one direction can be used at a time.
constexpr dynapipe::Link kHalfDuplex{0.5, 10.0, false};

void check_search(std::uint64_t seed, const std::vector<double>& slowness, bool split_backward,
                  double limit_bytes) {
    Problem problem(seed);
    problem.limit_bytes.assign(kStages, limit_bytes);
    const dynapipe::Link& link = seed % 2 == 0 ? kLink : kHalfDuplex;
    ReplicaSimulator for_starts = problem.simulator(split_backward, link);
    const auto plans = dynapipe::construct_plans(for_starts, slowness);
    for (const auto& plan : plans) {
        CHECK(holds_every_sample_once(plan.replicas));
    }
    const auto find = [&](std::size_t effort) {
        ReplicaSimulator fresh = problem.simulator(split_backward, link);
        return dynapipe::find_plans(std::array{&fresh}, slowness, effort, seed).front();
    };
    const auto found = find(25'000);
    CHECK(found.front().effort == 0);
    CHECK(found.front().makespan_ms == plans.front().makespan_ms);
    CHECK(holds_every_sample_once(found.back().replicas));
    CHECK(std::is_sorted(found.begin(), found.end(), [](const FoundPlan& a, const FoundPlan& b) {
        return a.makespan_ms > b.makespan_ms;
    }));
    CHECK(find(25'000).back().replicas == found.back().replicas);
    for (const FoundPlan& plan : found) {
        const double ms = plan_problem::makespan_ms(problem.simulator(split_backward, link),
                                                    plan.replicas, slowness);
        CHECK(plan.effort == 0 ? ms == plan.makespan_ms : ms <= plan.makespan_ms);
    }
    const auto less = find(12'500);
    CHECK(less.size() <= found.size());
    for (std::size_t i = 0; i < less.size(); ++i) {
        CHECK(less[i].replicas == found[i].replicas);
    }
    CHECK(find(0).size() == 1);
}

/// Once as many passes are simulated as may be, only cuts of one price and of equal sizes are left.
/// Returns whether more passes find a plan that has a price and a longest window.
bool check_limited_effort(std::uint64_t seed, std::size_t n_replicas) {
    const Problem problem(seed);
    const std::vector<double> alike(n_replicas, 1.0);
    const auto construct = [&](std::size_t max_effort) {
        ReplicaSimulator simulator = problem.simulator(false, kHalfDuplex);
        return dynapipe::construct_plans(simulator, alike, 1'000, max_effort, 0);
    };
    const auto is_varied = [](const ConstructedPlan& plan) {
        return plan.cut.memory_price > 0.0 && plan.cut.longest_ms < kNever;
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
    }
    return std::any_of(all.begin(), all.end(), is_varied);
}

/// Whether a plan whose windows were cut in one mode is among the best.
bool keeps_a_plan_of_one_mode(std::uint64_t seed) {
    Problem problem(seed);
    for (dynapipe::PassCosts& cost : problem.costs) {  // recomputation that takes hardly longer
        cost.backward_ms = 2 * cost.forward_ms + (cost.stored_bytes < cost.boundary_bytes ? 1 : 0);
    }
    problem.limit_bytes.assign(kStages, 120.0);
    ReplicaSimulator simulator = problem.simulator(seed % 2 == 0);
    const auto plans = dynapipe::construct_plans(simulator, std::array{1.0}, 1'000);
    return std::any_of(plans.begin(), plans.end(), [](const ConstructedPlan& plan) {
        CHECK(holds_every_sample_once(plan.replicas));
        return plan.cut.mode.has_value();
    });
}

/// The best plans are refined until so many windows on stages are. Returns whether any gets better.
bool check_refined(std::uint64_t seed) {
    const Problem problem(seed);
    const std::vector<double> alike(2, 1.0);
    ReplicaSimulator simulator = problem.simulator(true, kHalfDuplex);
    const auto construct = [&](std::size_t max_to_refine) {
        return dynapipe::construct_plans(simulator, alike, 3, 1'000'000, max_to_refine);
    };
    std::vector<double> plain_ms, refined_ms;
    const dynapipe::PricedCutter cutter = problem.cutter(kHalfDuplex);
    std::vector<ConstructedPlan> plans = construct(0);
    std::size_t size = 0;
    for (const auto& replica : plans.front().replicas) {
        size += replica.size() * kStages;
    }
    for (ConstructedPlan& plan : plans) {
        plain_ms.push_back(plan.makespan_ms);
        double slowest_ms = 0.0;
        for (std::vector<dynapipe::Window>& replica : plan.replicas) {
            slowest_ms = std::max(slowest_ms, dynapipe::refine_replica(cutter, simulator, replica));
        }
        refined_ms.push_back(slowest_ms);
    }
    const auto check_first = [&](std::size_t n_refined, std::size_t max_to_refine) {
        std::vector<double> found_ms;
        for (const ConstructedPlan& plan : construct(max_to_refine)) {
            found_ms.push_back(plan.makespan_ms);
        }
        CHECK(std::is_sorted(found_ms.begin(), found_ms.end()));
        for (std::size_t i = 0; i < plans.size(); ++i) {
            const double ms = i < n_refined ? refined_ms[i] : plain_ms[i];
            // The exact split may be better.
            CHECK(std::count(found_ms.begin(), found_ms.end(), ms) > 0 || ms >= found_ms.back());
        }
    };
    CHECK(plans.size() == 3);
    check_first(1, 1);
    check_first(1, size);
    check_first(2, size + 1);
    check_first(3, std::numeric_limits<std::size_t>::max());
    return refined_ms != plain_ms;
}

Problem slower(Problem problem, double factor) {
    for (dynapipe::PassCosts& cost : problem.costs) {
        cost.forward_ms *= factor;
        cost.backward_ms *= factor;
    }
    return problem;
}

/// Of two tables one is twice as slow: it is left after two rounds, whatever the effort. If its
/// first sample alone takes longer than a plan of the one before, it is left out.
void tables_that_are_behind_are_left() {
    const Problem problem(1);
    const Problem slow = slower(problem, 2), slowest = slower(problem, 100);
    const std::vector<double> alike(1, 1.0);
    const auto efforts = [&](std::size_t effort) {
        ReplicaSimulator one = problem.simulator(false), other = slow.simulator(false);
        dynapipe::find_plans(std::array{&other, &one}, alike, effort, 1);
        return std::pair(one.effort(), other.effort());
    };
    const auto less = efforts(12'500), more = efforts(50'000);
    CHECK(more.first > less.first + 10'000);
    CHECK(more.second == less.second);
    ReplicaSimulator one = problem.simulator(false), other = slowest.simulator(false);
    const auto found = dynapipe::find_plans(std::array{&one, &other}, alike, 12'500, 1);
    CHECK(!found[0].empty() && found[1].empty() && other.effort() == 0);
}

}  // namespace

int main() {
    tables_that_are_behind_are_left();
    bool is_any_varied = false, is_any_refined = false, is_any_of_one_mode = false;
    for (std::uint64_t seed = 0; seed < 6; ++seed) {
        for (const bool split_backward : {false, true}) {
            for (const std::size_t n_replicas : {std::size_t{1}, std::size_t{3}, kSamples}) {
                const std::vector<double> alike(n_replicas, 1.0);
                check_search(seed, alike, split_backward, 300.0);
                check_search(seed, alike, split_backward, kNever);
            }
            check_search(seed, {1.0, 1.5}, split_backward, 300.0);
        }
        is_any_refined |= check_refined(seed);
        is_any_of_one_mode |= keeps_a_plan_of_one_mode(seed);
        for (const std::size_t n_replicas : {std::size_t{1}, std::size_t{3}}) {
            is_any_varied |= check_limited_effort(seed, n_replicas);
        }
    }
    CHECK(is_any_refined);
    CHECK(is_any_of_one_mode);
    CHECK(is_any_varied);
    return check::finish();
}
