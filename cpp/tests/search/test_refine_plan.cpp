/// A refined plan holds the same samples, ends no later, and ends when it says; and to split one of
/// the first windows of a replica does not make it better.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "check.hpp"
#include "dynapipe/search/arrange_windows.hpp"
#include "dynapipe/search/refine_plan.hpp"
#include "plan_problem.hpp"

namespace {

using dynapipe::Assignment;
using dynapipe::Window;
using plan_problem::kStages;

constexpr double kNever = std::numeric_limits<double>::infinity();
constexpr dynapipe::Link kLink{0.5, 10.0, true};

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

struct Refined {
    double gain;              ///< by how much the makespan has become less, relatively
    std::size_t n_windows;    ///< more than there were
    std::size_t n_not_split;  ///< splits of first windows that would not help
};

Refined refined(std::uint64_t seed, bool split_backward, const std::vector<double>& slowness) {
    const std::size_t n_replicas = slowness.size();
    const plan_problem::Problem problem(seed);
    const std::vector<double> limits(kStages, 300.0);
    dynapipe::PricedCutter cutter(problem.windows(), limits, kLink);
    dynapipe::ReplicaSimulator simulator(problem.windows(), limits, kLink, split_backward);
    dynapipe::PlanRefiner refiner(cutter, simulator, slowness);
    const dynapipe::Cut cut = cutter.cut({}, 2 * n_replicas);
    Assignment plan = dynapipe::spread(cut, cutter, slowness, false);
    const auto makespan_ms = [&](const Assignment& replicas) {
        dynapipe::ReplicaSimulator other(problem.windows(), limits, kLink, split_backward);
        double slowest_ms = 0.0;
        for (std::size_t r = 0; r < replicas.size(); ++r) {
            const double ms =
                other.best_makespan_ms(replicas[r], kNever, dynapipe::kFirstInFirstOut);
            slowest_ms = std::max(slowest_ms, ms * slowness[r]);
        }
        return slowest_ms;
    };
    const double before_ms = makespan_ms(plan);
    const double found_ms = refiner.refine(plan);
    CHECK(plan_problem::holds_every_sample_once(plan));
    CHECK(found_ms == makespan_ms(plan));
    CHECK(found_ms <= before_ms);
    Refined how{1 - found_ms / before_ms, 0, 0};
    for (const std::vector<Window>& replica : plan) {
        how.n_windows += replica.size();
        const double ms = simulator.best_makespan_ms(replica, kNever, dynapipe::kFirstInFirstOut);
        for (const std::vector<Window>& split : splits_of(replica)) {
            CHECK(simulator.best_makespan_ms(split, kNever, dynapipe::kFirstInFirstOut) >= ms);
            ++how.n_not_split;
        }
    }
    how.n_windows -= cut.body.size() + cut.ends.size();
    return how;
}

}  // namespace

int main() {
    double gain = 0;
    std::size_t n_split = 0;
    std::size_t n_not_split = 0;
    for (std::uint64_t seed = 0; seed < 6; ++seed) {
        for (const bool split_backward : {false, true}) {
            for (const std::vector<double>& slowness :
                 {std::vector{1.0}, std::vector{1.0, 1.0, 1.0}, std::vector{1.0, 1.5, 1.2}}) {
                const Refined how = refined(seed, split_backward, slowness);
                gain = std::max(gain, how.gain);
                n_split += how.n_windows;
                n_not_split += how.n_not_split;
            }
        }
    }
    CHECK(gain > 0.01);
    CHECK(n_split > 0 && n_not_split > 0);
    return check::finish();
}
