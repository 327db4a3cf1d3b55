/// A refined plan holds the same samples, ends no later, and ends when it says.
#include <algorithm>
#include <limits>
#include <vector>

#include "check.hpp"
#include "dynapipe/search/arrange_windows.hpp"
#include "dynapipe/search/improve_plan.hpp"
#include "dynapipe/search/refine_plan.hpp"
#include "plan_problem.hpp"

namespace {

using dynapipe::Assignment;
using plan_problem::kStages;

constexpr double kNever = std::numeric_limits<double>::infinity();
constexpr dynapipe::Link kLink{0.5, 10.0, true};

/// Returns by how much the makespan has become less, relatively.
double refined(std::uint64_t seed, bool split_backward, const std::vector<double>& slowness) {
    const std::size_t n_replicas = slowness.size();
    const plan_problem::Problem problem(seed);
    const std::vector<double> limits(kStages, 300.0);
    dynapipe::PricedCutter cutter(problem.windows(), limits, kLink);
    dynapipe::ReplicaSimulator simulator(problem.windows(), limits, kLink, split_backward);
    dynapipe::PlanRefiner refiner(problem.windows(), cutter, simulator, slowness);
    const dynapipe::Cut cut = cutter.cut(0.0, kNever, 2 * n_replicas);
    const std::vector<double> loads(n_replicas, 0.0);
    Assignment plan = dynapipe::spread(cut, cutter, loads, slowness, false);
    const auto makespan_ms = [&](const Assignment& replicas) {
        dynapipe::ReplicaSimulator other(problem.windows(), limits, kLink, split_backward);
        return dynapipe::makespans_ms(other, std::vector<Assignment>{replicas}, slowness).front();
    };
    const double before_ms = makespan_ms(plan);
    const double found_ms = refiner.refine(plan);
    CHECK(plan_problem::holds_every_sample_once(plan));
    CHECK(found_ms == makespan_ms(plan));
    CHECK(found_ms <= before_ms);
    return 1 - found_ms / before_ms;
}

}  // namespace

int main() {
    double gain = 0;
    for (std::uint64_t seed = 0; seed < 6; ++seed) {
        for (const bool split_backward : {false, true}) {
            for (const std::vector<double>& slowness :
                 {std::vector{1.0}, std::vector{1.0, 1.0, 1.0}, std::vector{1.0, 1.5, 1.2}}) {
                gain = std::max(gain, refined(seed, split_backward, slowness));
            }
        }
    }
    CHECK(gain > 0.01);
    return check::finish();
}
