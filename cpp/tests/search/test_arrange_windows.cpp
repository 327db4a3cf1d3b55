/// Windows are spread evenly over replicas, and rise and fall in each.
#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "check.hpp"
#include "dynapipe/search/arrange_windows.hpp"
#include "plan_problem.hpp"

namespace {

using dynapipe::Assignment;
using dynapipe::Cut;
using dynapipe::PricedCutter;
using dynapipe::Window;

/// Work of all windows of a replica with the longest fill, and of its longest.
struct Work {
    double sum_ms = 0, longest_ms = 0;

    Work(const PricedCutter& cutter, const std::vector<Window>& windows) {
        double fill_ms = 0;
        for (const Window& window : windows) {
            sum_ms += cutter.work_ms(window);
            fill_ms = std::max(fill_ms, cutter.fill_ms(window));
            longest_ms = std::max(longest_ms, cutter.work_ms(window) + cutter.fill_ms(window));
        }
        sum_ms += fill_ms;
    }
};

/// No replica could give its shortest window to the least loaded one and both gain.
void spreading_is_even(const PricedCutter& cutter, const Cut& cut, std::size_t n_replicas) {
    const std::vector<double> alike(n_replicas, 1.0);
    const Assignment replicas = dynapipe::spread(cut, cutter, alike, true);
    CHECK(plan_problem::holds_every_sample_once(replicas));
    double least_ms = kNever, most_ms = 0, longest_ms = 0;
    for (const auto& replica : replicas) {
        const Work work(cutter, replica);
        least_ms = std::min(least_ms, work.sum_ms);
        most_ms = std::max(most_ms, work.sum_ms);
        longest_ms = std::max(longest_ms, work.longest_ms);
    }
    CHECK(most_ms <= least_ms + 2 * longest_ms);
}

/// Half as fast, a replica has about half as much to do; the last window may go to either.
void a_slower_replica_has_less_to_do(const PricedCutter& cutter, const Cut& cut) {
    const Assignment replicas = dynapipe::spread(cut, cutter, std::array{1.0, 2.0}, true);
    CHECK(plan_problem::holds_every_sample_once(replicas));
    const double fast_ms = Work(cutter, replicas[0]).sum_ms;
    const double slow_ms = Work(cutter, replicas[1]).sum_ms;
    CHECK(std::abs(fast_ms - 2 * slow_ms) <= 2 * Work(cutter, cut.body).longest_ms);
    CHECK(slow_ms < fast_ms);
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
        plan_problem::Problem problem(seed);
        problem.limit_bytes.assign(plan_problem::kStages, 400.0);
        PricedCutter cutter = problem.cutter();
        for (const std::size_t n_replicas : {2U, 3U}) {
            const Cut cut = cutter.cut({1.0}, 2 * n_replicas);
            CHECK(cut.body.size() > 4);
            spreading_is_even(cutter, cut, n_replicas);
        }
        a_slower_replica_has_less_to_do(cutter, cutter.cut({1.0}, 4));
        for (const double rise : {0.3, 0.5, 0.7}) {
            work_rises_and_falls(cutter, cutter.cut({3.0}, 0), rise);
        }
    }
    return check::finish();
}
