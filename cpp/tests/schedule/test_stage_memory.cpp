#include <cmath>
#include <limits>

#include "check.hpp"
#include "dynapipe/schedule/stage_memory.hpp"

using dynapipe::PassCode;
using dynapipe::PassCosts;
using Doubles = std::vector<double>;

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr PassCode F0 = 0, B0 = 1, W0 = 2, F1 = 3, B1 = 4, W1 = 5;
constexpr PassCosts kSmall{
    .stored_bytes = 10, .forward_transient_bytes = 4, .backward_transient_bytes = 3};
constexpr PassCosts kLarge{
    .stored_bytes = 20, .forward_transient_bytes = 1, .backward_transient_bytes = 5};

}  // namespace

int main() {
    const std::vector<PassCosts> entries{kSmall, kLarge, kLarge, kSmall};
    const dynapipe::StageCosts costs{entries, 2};

    const std::vector<PassCode> whole{F0, F1, B0, B1, F0, B0, F1, B1};
    CHECK((dynapipe::activation_peaks(costs, whole) == Doubles{10 + 20 + 3, 20 + 5}));
    const std::vector<PassCode> split{F0, B0, F1, W0, B1, W1, F0, B0, W0, F1, B1, W1};
    CHECK((dynapipe::activation_peaks(costs, split) == Doubles{10 + 20 + 3, 20 + 5}));

    const std::vector<PassCode> other_way{F1, F0, B1, B0, F0, F1, B1, B0};
    const std::vector<PassCosts> like{kLarge, kLarge, kSmall, kSmall};
    CHECK((dynapipe::activation_peaks({like, 2}, other_way) == Doubles{20 + 10 + 3, 20 + 10 + 4}));

    CHECK(!dynapipe::first_misfit(costs, Doubles{25, 25}));
    const auto second = dynapipe::first_misfit(costs, Doubles{24, 25});
    CHECK(second && second->microbatch == 1 && second->stage == 0 && second->needed_bytes == 25);
    const auto first = dynapipe::first_misfit(costs, Doubles{14, 24});
    CHECK(first && first->microbatch == 0 && first->stage == 1 && first->needed_bytes == 25);
    CHECK(dynapipe::first_misfit(costs, Doubles{13, 25})->needed_bytes == 14);

    std::vector<PassCosts> unknown = entries;
    unknown[3].stored_bytes = kInfinity;
    const auto third = dynapipe::first_misfit({unknown, 2}, Doubles{kInfinity, kInfinity});
    CHECK(third && third->microbatch == 1 && third->stage == 1 && std::isinf(third->needed_bytes));
    return check::finish();
}
