/// Plans that are constructed and improved hold every sample once, fit, and repeat.
#include <algorithm>
#include <cstdint>
#include <limits>
#include <vector>

#include "check.hpp"
#include "dynapipe/construct_plans.hpp"
#include "dynapipe/improve_plan.hpp"
#include "dynapipe/random.hpp"

namespace {

using dynapipe::Assignment;
using dynapipe::PassCosts;

constexpr double kNever = std::numeric_limits<double>::infinity();
constexpr std::size_t kSamples = 40;
constexpr std::size_t kStages = 3;
constexpr std::size_t kModes = 2;
constexpr std::size_t kMostSamples = 6;

/// Samples of falling length; a second mode is slower and keeps a quarter.
struct Problem {
    std::vector<PassCosts> costs;
    std::vector<std::int32_t> cells;
    std::vector<std::int64_t> spans;
    std::vector<std::int32_t> row_of_sample;

    explicit Problem(std::uint64_t seed) {
        dynapipe::Random random(seed);
        std::vector<double> length(kSamples);
        std::generate(length.begin(), length.end(),
                      [&] { return 1.0 + static_cast<double>(random.below(50)); });
        std::sort(length.rbegin(), length.rend());
        for (std::size_t mode = 0; mode < kModes; ++mode) {
            for (std::size_t row = 0; row < kSamples; ++row) {
                spans.push_back(static_cast<std::int64_t>(cells.size()));
                spans.push_back(static_cast<std::int64_t>(cells.size() + kMostSamples));
                for (std::size_t size = 1; size <= kMostSamples; ++size) {
                    const bool exists = row + size <= kSamples;
                    cells.push_back(exists ? static_cast<std::int32_t>(costs.size() / kStages)
                                           : -1);
                    const double tokens = length[row] * static_cast<double>(size);
                    const double ms = 2.0 + tokens;
                    const double bytes = mode == 0 ? tokens : tokens / 4;
                    const double back_ms = mode == 0 ? 2 * ms : 3 * ms;
                    for (std::size_t s = 0; s < kStages && exists; ++s) {
                        costs.push_back({ms, back_ms, ms, tokens, bytes, bytes / 2, bytes / 2});
                    }
                }
            }
        }
        for (std::size_t i = 0; i < kSamples; ++i) {
            row_of_sample.push_back(static_cast<std::int32_t>(i));
        }
    }

    [[nodiscard]] dynapipe::WindowCosts windows() const {
        return {{costs, kStages}, cells, spans, row_of_sample, kModes};
    }
};

bool holds_every_sample_once(const Assignment& replicas) {
    std::vector<int> times(kSamples, 0);
    for (const auto& replica : replicas) {
        for (const auto& window : replica) {
            for (std::size_t i = window.first; i < window.first + window.size; ++i) {
                ++times[i];
            }
        }
    }
    return std::all_of(times.begin(), times.end(), [](int n) { return n == 1; }) &&
           std::none_of(replicas.begin(), replicas.end(),
                        [](const auto& replica) { return replica.empty(); });
}

void check_search(std::uint64_t seed, std::size_t n_replicas, bool split_backward,
                  double limit_bytes) {
    const Problem problem(seed);
    const std::vector<double> limits(kStages, limit_bytes);
    const dynapipe::Link link{0.5, 10.0, seed % 2 == 0};
    const auto plans = dynapipe::construct_plans(problem.windows(), limits, link, n_replicas,
                                                 split_backward, 3, 2);
    std::vector<Assignment> starts;
    for (const auto& plan : plans) {
        CHECK(holds_every_sample_once(plan.replicas));
        starts.push_back(plan.replicas);
    }
    const auto improve = [&](std::size_t effort) {
        return dynapipe::improve_plan(problem.windows(), starts, limits, link, split_backward,
                                      effort, seed);
    };
    const auto found = improve(25'000);
    CHECK(holds_every_sample_once(found.back().replicas));
    CHECK(found.back().makespan_ms <= plans.front().makespan_ms);
    CHECK(improve(25'000).back().replicas == found.back().replicas);
    const auto less = improve(12'500);
    CHECK(less.size() <= found.size());
    for (std::size_t i = 0; i < less.size(); ++i) {
        CHECK(less[i].replicas == found[i].replicas);
    }
}

}  // namespace

int main() {
    for (std::uint64_t seed = 0; seed < 6; ++seed) {
        for (const bool split_backward : {false, true}) {
            for (const std::size_t n_replicas : {std::size_t{1}, std::size_t{3}, kSamples}) {
                check_search(seed, n_replicas, split_backward, 300.0);
                check_search(seed, n_replicas, split_backward, kNever);
            }
        }
    }
    return check::finish();
}
