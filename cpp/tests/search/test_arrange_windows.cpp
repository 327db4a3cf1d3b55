/// Windows are spread evenly over replicas, and rise and fall in each.
#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <vector>

#include "check.hpp"
#include "dynapipe/search/arrange_windows.hpp"
#include "plan_problem.hpp"

namespace {

using dynapipe::Assignment;
using dynapipe::Cut;
using dynapipe::PricedCutter;
using dynapipe::Window;
using plan_problem::kSamples;
using plan_problem::kStages;

constexpr double kNever = std::numeric_limits<double>::infinity();
constexpr dynapipe::Link kLink{0.5, 10.0, true};
constexpr std::array kThree = {1.0, 1.0, 1.0};

double work_ms(const PricedCutter& cutter, const std::vector<Window>& replica) {
    double sum_ms = 0;
    for (const Window& window : replica) {
        sum_ms += cutter.work_ms(window);
    }
    return sum_ms;
}

/// No replica could give its shortest window to the least loaded one and both gain.
void spreading_is_even(const PricedCutter& cutter, const Cut& cut, std::size_t n_replicas) {
    const std::vector<double> alike(n_replicas, 1.0);
    const Assignment replicas = dynapipe::spread(cut, cutter, alike, false);
    CHECK(plan_problem::holds_every_sample_once(replicas));
    double least_ms = kNever;
    double longest_ms = 0;
    for (const auto& replica : replicas) {
        least_ms = std::min(least_ms, work_ms(cutter, replica));
        for (const Window& window : replica) {
            longest_ms = std::max(longest_ms, cutter.work_ms(window));
        }
    }
    for (const auto& replica : replicas) {
        CHECK(work_ms(cutter, replica) <= least_ms + 2 * longest_ms);
    }
}

/// Half as fast, a replica has about half as much to do; the last window may go to either.
void a_slower_replica_has_less_to_do(const PricedCutter& cutter, const Cut& cut) {
    const Assignment replicas = dynapipe::spread(cut, cutter, std::array{1.0, 2.0}, false);
    CHECK(plan_problem::holds_every_sample_once(replicas));
    double longest_ms = 0;
    for (const Window& window : cut.body) {
        longest_ms = std::max(longest_ms, cutter.work_ms(window));
    }
    const double fast_ms = work_ms(cutter, replicas[0]);
    const double slow_ms = work_ms(cutter, replicas[1]);
    CHECK(std::abs(fast_ms - 2 * slow_ms) <= 2 * longest_ms);
    CHECK(slow_ms < fast_ms);
}

void the_longest_fill_counts_once(const PricedCutter& cutter, const Cut& cut) {
    const Assignment by_work = dynapipe::spread(cut, cutter, kThree, false);
    const Assignment by_fill = dynapipe::spread(cut, cutter, kThree, true);
    CHECK(plan_problem::holds_every_sample_once(by_fill));
    CHECK(by_fill != by_work);
}

void work_rises_and_falls(const PricedCutter& cutter, const Cut& cut, double rise) {
    std::vector<Window> replica = cut.body;
    const Window first = replica.front();
    const Window last = replica.back();
    dynapipe::arrange(replica, cutter, rise);
    CHECK(replica.front() == first && replica.back() == last);
    const auto shorter = [&](const Window& a, const Window& b) {
        return cutter.work_ms(a) < cutter.work_ms(b);
    };
    const auto begin = replica.begin() + 1;
    const auto end = replica.end() - 1;
    const auto longest = std::max_element(begin, end, shorter);
    CHECK(std::is_sorted(begin, longest, shorter));
    CHECK(std::is_sorted(std::make_reverse_iterator(end), std::make_reverse_iterator(longest),
                         shorter));
    const double share = static_cast<double>(longest - begin) / static_cast<double>(end - begin);
    CHECK(std::abs(share - rise) <= 0.25);
}

}  // namespace

int main() {
    for (std::uint64_t seed = 0; seed < 6; ++seed) {
        const plan_problem::Problem problem(seed);
        const std::vector<double> limits(kStages, 400.0);
        PricedCutter cutter(problem.windows(), limits, kLink);
        for (const std::size_t n_replicas : {2U, 3U}) {
            const Cut cut = cutter.cut({1.0}, 2 * n_replicas);
            CHECK(cut.body.size() > 4);
            spreading_is_even(cutter, cut, n_replicas);
        }
        a_slower_replica_has_less_to_do(cutter, cutter.cut({1.0}, 4));
        the_longest_fill_counts_once(cutter, cutter.cut({1.0}, 6));
        for (const double rise : {0.3, 0.5, 0.7}) {
            work_rises_and_falls(cutter, cutter.cut({3.0}, 0), rise);
        }
    }
    return check::finish();
}
