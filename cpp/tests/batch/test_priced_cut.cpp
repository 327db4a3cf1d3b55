/// Cuts at a price cost as little as the cheapest of all cuts that there are.
#include <cmath>
#include <limits>
#include <stdexcept>
#include <vector>

#include "check.hpp"
#include "cut_problem.hpp"
#include "dynapipe/batch/priced_cut.hpp"
#include "dynapipe/search/random.hpp"
#include "every_cut.hpp"

namespace {

using cut_problem::Problem;
using dynapipe::Cut;
using dynapipe::CutRule;
using dynapipe::kMaxEndSize;
using dynapipe::PassCosts;
using dynapipe::Window;
using every_cut::kLink;
using every_cut::Prices;

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

bool holds_samples_in_order(const Cut& cut, std::size_t n_samples) {
    std::size_t next = 0;
    for (const auto& windows : {cut.body, cut.ends}) {
        for (const Window& window : windows) {
            if (window.first != next || window.size == 0) {
                return false;
            }
            next += window.size;
        }
    }
    return next == n_samples;
}

/// Returns whether there is a cut.
bool check_cut(dynapipe::PricedCutter& cutter, const Prices& prices, std::size_t n_ends) {
    const std::size_t n_samples = prices.problem.row_of_sample.size();
    const double least_ms = every_cut::least_by_recurrence(prices, n_samples, n_ends);
    if (n_samples < 7) {
        Cut none;
        const double found_ms =
            every_cut::least_of_every_cut_and_mode(prices, 0, n_samples, n_ends, none);
        CHECK(found_ms == least_ms || std::abs(found_ms - least_ms) <= 1e-12 * least_ms);
    }
    const Cut found = cutter.cut(prices.rule, n_ends);
    if (least_ms == kNever) {
        CHECK(found.body.empty() && found.ends.empty());
        return false;
    }
    CHECK(holds_samples_in_order(found, n_samples));
    CHECK(found.ends.size() == n_ends);
    CHECK(std::abs(prices.cut_ms(found) - least_ms) <= 1e-12 * least_ms);
    for (Window window : found.body) {
        const double cost_ms = prices.body_ms(window);
        cutter.choose_mode(window, prices.rule.memory_price);
        CHECK(prices.body_ms(window) == cost_ms || prices.rule.longest_ms < kNever ||
              prices.rule.most_kept_share < kNever || prices.rule.mode);
    }
    return true;
}

/// One cutter for all questions, as where it is used: no cut changes a later one.
void cuts_cost_least() {
    dynapipe::Random random(1);
    std::size_t n_found = 0;
    std::size_t n_checked = 0;
    for (int i = 0; i < 60; ++i) {
        const double limit = std::vector{60.0, 150.0, 1000.0, kNever}[random.below(4)];
        const std::size_t n_samples = i % 6 < 2 ? 30 + random.below(40) : 1 + random.below(9);
        const Problem problem(n_samples, 1 + random.below(3), i % 2 == 1, limit, random);
        dynapipe::PricedCutter cutter(problem.windows(), problem.limit_bytes, kLink);
        for (const double price : {0.0, 0.3, 1.0, 3.0, 100.0, 0.0}) {
            for (const CutRule& rule : {CutRule{price}, CutRule{price, 40 * problem.launch_ms},
                                        CutRule{.memory_price = price, .most_kept_share = 0.3},
                                        CutRule{.memory_price = price, .mode = 1}}) {
                for (const std::size_t n_ends : {0U, 2U, 4U}) {
                    ++n_checked;
                    n_found += check_cut(cutter, {problem, rule}, n_ends) ? 1 : 0;
                }
            }
        }
    }
    CHECK(n_found > n_checked / 2 && n_found < n_checked);
}

/// NaNs make windows unusable, or are refused; they never make a cut hang.
void costs_may_be_no_numbers() {
    dynapipe::Random random(2);
    for (int i = 0; i < 200; ++i) {
        Problem problem(10 + random.below(20), 1 + random.below(3), i % 2 == 1, 1000.0, random);
        for (std::size_t n = random.below(20); n > 0; --n) {
            PassCosts& cost = problem.costs[random.below(problem.costs.size())];
            const double wrong = random.below(2) == 0 ? kNever : kNaN;
            (random.below(2) == 0 ? cost.forward_ms : cost.stored_bytes) = wrong;
        }
        problem.limit_bytes[0] = std::vector{0.0, kNever, kNaN, 1000.0}[random.below(4)];
        const dynapipe::Link link{random.below(4) == 0 ? kNaN : 0.25, 40.0, true};
        dynapipe::PricedCutter cutter(problem.windows(), problem.limit_bytes, link);
        try {
            const CutRule rule{std::vector{0.0, 1.0, kNever, kNaN}[random.below(4)],
                               random.below(2) == 0 ? kNever : kNaN};
            const Cut found = cutter.cut(rule, random.below(5));
            CHECK((found.body.empty() && found.ends.empty()) ||
                  holds_samples_in_order(found, problem.row_of_sample.size()));
        } catch (const std::invalid_argument&) {
        }
    }
}

/// Windows that all cost the same: the fewest are best, if an end could hold them.
void an_end_is_short() {
    constexpr std::uint32_t n = 30;
    const std::vector<PassCosts> costs{{1, 1, 0, 0, 0, 0, 0, 0}};
    const std::vector<double> limits{kNever};
    std::vector<std::int32_t> row_of_sample(n), cells(n, 0);
    const std::vector<std::int64_t> spans{0, n};
    dynapipe::PricedCutter cutter({{costs, 1}, cells, spans, row_of_sample, 1}, limits, kLink);
    const Cut found = cutter.cut({}, 1);
    CHECK(found.body.size() == 1 && found.ends.size() == 1);
    CHECK(found.ends.front().size <= kMaxEndSize);
}

}  // namespace

int main() {
    cuts_cost_least();
    costs_may_be_no_numbers();
    an_end_is_short();
    return check::finish();
}
