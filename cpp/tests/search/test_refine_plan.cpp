/// A refined plan holds the same samples, ends no later, and ends when it says; and to split one of
/// the first windows of a replica does not make it better.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "check.hpp"
#include "dynapipe/search/arrange_windows.hpp"
#include "dynapipe/search/refine_plan.hpp"
#include "plan_problem.hpp"

namespace {

using dynapipe::Window;

/// The splits of the first four windows: the last 35 % of their samples come before the rest.
std::vector<std::vector<Window>> splits_of(const std::vector<Window>& replica) {
    std::vector<std::vector<Window>> found;
    for (std::size_t i = 0; i < replica.size() && i < 4; ++i) {
        const std::uint32_t n = replica[i].size;
        const auto n_first = static_cast<std::uint32_t>(std::ceil(0.35 * n));
        if (n > n_first) {
            found.push_back(replica);
            found.back()[i] = {replica[i].first, n - n_first, replica[i].mode};
            found.back().insert(found.back().begin() + static_cast<std::ptrdiff_t>(i),
                                {replica[i].first + n - n_first, n_first, replica[i].mode});
        }
    }
    return found;
}

/// What was found in all plans.
struct Refined {
    double gain = 0;              ///< by how much a makespan has become less at most, relatively
    std::size_t n_windows = 0;    ///< more than there were
    std::size_t n_not_split = 0;  ///< splits of first windows that would not help
};

void check_refined(std::uint64_t seed, bool split_backward, const std::vector<double>& slowness,
                   Refined& all) {
    const plan_problem::Problem problem(seed);
    dynapipe::PricedCutter cutter = problem.cutter();
    dynapipe::ReplicaSimulator simulator = problem.simulator(split_backward);
    const dynapipe::Cut cut = cutter.cut({}, 2 * slowness.size());
    dynapipe::Assignment plan = dynapipe::spread(cut, cutter, slowness, false);
    for (std::vector<Window>& replica : plan) {
        const double before_ms = simulator.best_makespan_ms(replica, kNever);
        const double found_ms = dynapipe::refine_replica(cutter, simulator, replica);
        auto afresh = problem.simulator(split_backward);
        CHECK(found_ms == afresh.best_makespan_ms(replica, kNever));
        CHECK(found_ms <= before_ms);
        all.gain = std::max(all.gain, 1 - found_ms / before_ms);
    }
    CHECK(plan_problem::holds_every_sample_once(plan));
    for (const std::vector<Window>& replica : plan) {
        all.n_windows += replica.size();
        const double ms = simulator.best_makespan_ms(replica, kNever);
        for (const std::vector<Window>& split : splits_of(replica)) {
            CHECK(simulator.best_makespan_ms(split, kNever) >= ms);
            ++all.n_not_split;
        }
    }
    all.n_windows -= cut.body.size() + cut.ends.size();
}

}  // namespace

int main() {
    Refined all;
    for (std::uint64_t seed = 0; seed < 6; ++seed) {
        for (const bool split_backward : {false, true}) {
            for (const std::vector<double>& slowness :
                 {std::vector{1.0}, std::vector{1.0, 1.0, 1.0}, std::vector{1.0, 1.5, 1.2}}) {
                check_refined(seed, split_backward, slowness, all);
            }
        }
    }
    CHECK(all.gain > 0.01);
    CHECK(all.n_windows > 0 && all.n_not_split > 0);
    return check::finish();
}
