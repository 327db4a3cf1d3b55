/// Plans that are constructed and improved hold every sample once, fit, and repeat.
#include <cstdint>
#include <limits>
#include <vector>

#include "check.hpp"
#include "dynapipe/search/construct_plans.hpp"
#include "dynapipe/search/improve_plan.hpp"
#include "plan_problem.hpp"

namespace {

using dynapipe::Assignment;
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
    const auto plans =
        dynapipe::construct_plans(problem.windows(), limits, link, slowness, split_backward, 3, 2);
    std::vector<Assignment> starts;
    for (const auto& plan : plans) {
        CHECK(holds_every_sample_once(plan.replicas));
        starts.push_back(plan.replicas);
    }
    const dynapipe::WindowCosts windows = problem.windows();
    const auto search = [&] {
        return dynapipe::PlanSearch(windows, starts, limits, link, split_backward, slowness, seed);
    };
    const auto improve = [&](std::size_t effort) { return search().improve(effort); };
    const auto found = improve(25'000);
    CHECK(holds_every_sample_once(found.back().replicas));
    CHECK(found.back().makespan_ms <= plans.front().makespan_ms);
    CHECK(improve(25'000).back().replicas == found.back().replicas);
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

}  // namespace

int main() {
    for (std::uint64_t seed = 0; seed < 6; ++seed) {
        for (const bool split_backward : {false, true}) {
            for (const std::size_t n_replicas : {std::size_t{1}, std::size_t{3}, kSamples}) {
                const std::vector<double> alike(n_replicas, 1.0);
                check_search(seed, alike, split_backward, 300.0);
                check_search(seed, alike, split_backward, kNever);
            }
            check_search(seed, {1.0, 1.5}, split_backward, 300.0);
        }
    }
    return check::finish();
}
