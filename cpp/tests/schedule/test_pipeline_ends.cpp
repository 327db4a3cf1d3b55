/// As many ends as asked for, which cost as little as the best of all.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <stdexcept>
#include <vector>

#include "check.hpp"
#include "dynapipe/schedule/pipeline_ends.hpp"
#include "dynapipe/search/random.hpp"

namespace {

using dynapipe::kEndBand;
using dynapipe::kMaxEndSize;

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

struct Problem {
    std::vector<double> body_ms, end_ms;
    std::vector<std::int32_t> row_of_sample;

    [[nodiscard]] dynapipe::EndCosts costs() const { return {body_ms, end_ms, row_of_sample}; }
};

/// Falling lengths, costs of a launch and of every padded token, noise on top.
Problem problem_of(std::size_t n, std::size_t n_lengths, double launch_ms, double noise,
                   dynapipe::Random& random) {
    std::vector<double> length(n);
    std::generate(length.begin(), length.end(),
                  [&] { return 1.0 + static_cast<double>(random.below(n_lengths)); });
    std::sort(length.rbegin(), length.rend());
    Problem problem;
    for (std::size_t i = 0; i < n; ++i) {
        if (i > 0 && length[i] == length[i - 1]) {
            problem.row_of_sample.push_back(problem.row_of_sample.back());
            continue;
        }
        problem.row_of_sample.push_back(i == 0 ? 0 : problem.row_of_sample.back() + 1);
        for (std::size_t size = 1; size <= kMaxEndSize; ++size) {
            const double ms = launch_ms + static_cast<double>(size) * length[i];
            problem.end_ms.push_back(ms * (1 + noise * random.share()));
        }
    }
    problem.body_ms.assign(n + 1, 0.0);
    for (std::size_t i = 1; i <= n; ++i) {
        problem.body_ms[i] = problem.body_ms[i - 1] + 0.8 * length[i - 1] + launch_ms / 30;
    }
    return problem;
}

double cost_ms(const Problem& problem, const dynapipe::Ends& ends) {
    double sum_ms = problem.body_ms[ends.first];
    std::size_t first = ends.first;
    for (const std::size_t size : ends.sizes) {
        sum_ms += problem.costs().from(first)[size - 1];
        first += size;
    }
    return first == problem.row_of_sample.size() ? sum_ms : kNever;
}

/// Sample by sample, for every number of ends.
double least_ms(const Problem& problem, std::size_t n_ends) {
    const std::size_t n = problem.row_of_sample.size();
    std::vector<double> rest_ms(n + 1, kNever);
    rest_ms.back() = 0.0;
    for (std::size_t end = 0; end < n_ends; ++end) {
        for (std::size_t i = 0; i <= n; ++i) {
            rest_ms[i] = kNever;
            for (std::size_t size = 1; size <= std::min(n - i, kMaxEndSize); ++size) {
                const double ms = problem.costs().from(i)[size - 1] + rest_ms[i + size];
                rest_ms[i] = std::min(rest_ms[i], ms);
            }
        }
    }
    double least = kNever;
    for (std::size_t i = 0; i <= n; ++i) {
        least = std::min(least, problem.body_ms[i] + rest_ms[i]);
    }
    return least;
}

/// Exactly where few are asked for; of many, a cut is rarely missed, and then by little.
void ends_cost_least() {
    dynapipe::Random random(1);
    for (int i = 0; i < 6; ++i) {
        const std::size_t n = 150 + random.below(250);
        const double noise = std::vector{0.0, 0.001, 0.3}[random.below(3)];
        const auto launch_ms = static_cast<double>(random.below(30));
        const Problem problem = problem_of(n, 1 + random.below(60), launch_ms, noise, random);
        for (const std::size_t n_ends : {std::size_t{2}, kEndBand - 1, kEndBand, n / 4, n / 2, n}) {
            const dynapipe::Ends found = dynapipe::cut_ends(problem.costs(), n_ends);
            CHECK(found.sizes.size() == n_ends);
            const double gap = cost_ms(problem, found) / least_ms(problem, n_ends) - 1;
            CHECK(gap < (n_ends < kEndBand ? 1e-12 : 1e-4));
        }
        CHECK(dynapipe::cut_ends(problem.costs(), n + 1).sizes.empty());
    }
}

/// Here an end less costs more than several ends more: no price per end has the right number.
void many_ends_cost_least_where_that_is_not_convex() {
    dynapipe::Random random(2);
    Problem problem = problem_of(700, 40, 3, 0.0, random);
    for (double& ms : problem.body_ms) {
        ms = 40 * std::sqrt(ms);
    }
    for (const std::size_t n_ends : {70U, 128U}) {
        const dynapipe::Ends found = dynapipe::cut_ends(problem.costs(), n_ends);
        CHECK(cost_ms(problem, found) / least_ms(problem, n_ends) - 1 < 1e-4);
    }
}

/// Costs that are no numbers end in no cut, in one without them, or in an exception.
void costs_may_be_no_numbers() {
    dynapipe::Random random(3);
    for (int i = 0; i < 100; ++i) {
        Problem problem = problem_of(100 + random.below(100), 20, 3, 0.0, random);
        for (std::vector<double>* costs : {&problem.body_ms, &problem.end_ms}) {
            for (std::size_t n = random.below(40); n > 0; --n) {
                (*costs)[random.below(costs->size())] = std::vector{kNaN, kNever}[random.below(2)];
            }
        }
        const std::size_t n_ends = std::vector<std::size_t>{1, 5, 64, 99}[random.below(4)];
        try {
            const dynapipe::Ends found = dynapipe::cut_ends(problem.costs(), n_ends);
            CHECK(found.sizes.size() < n_ends || cost_ms(problem, found) < kNever);
        } catch (const std::invalid_argument&) {
        }
    }
}

}  // namespace

int main() {
    ends_cost_least();
    many_ends_cost_least_where_that_is_not_convex();
    costs_may_be_no_numbers();
    return check::finish();
}
