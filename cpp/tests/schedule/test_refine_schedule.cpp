#include <limits>

#include "check.hpp"
#include "dynapipe/schedule/refine_schedule.hpp"
#include "dynapipe/schedule/simulate.hpp"

using dynapipe::PassCode;
using dynapipe::PassCosts;

namespace {

constexpr dynapipe::Link kInstant{.latency_ms = 0, .bytes_per_ms = 1, .full_duplex = true};
constexpr double kNoLimit = std::numeric_limits<double>::infinity();
constexpr PassCode F0 = 0, B0 = 1, W0 = 2, F1 = 3, B1 = 4, W1 = 5;

/// The makespan of two micro-batches on two stages after 400 moves; each stores a byte.
double refined_ms(const std::vector<PassCode>& start, double limit_bytes) {
    const PassCosts each{.forward_ms = 1, .backward_ms = 2, .weight_ms = 1, .stored_bytes = 1};
    const std::vector<PassCosts> costs(4, each);
    const std::vector<double> limits(2, limit_bytes), nothing(2, 0.0);
    const auto found = dynapipe::refine_schedule(start, {costs, 2}, limits, kInstant, 400, 0);
    return dynapipe::Simulator({costs, 2}, nothing, kInstant).run(found).makespan_ms;
}

}  // namespace

int main() {
    const std::vector<PassCode> whole{F0, B0, F1, B1, F0, B0, F1, B1};
    CHECK(refined_ms(whole, kNoLimit) == 9);
    CHECK(refined_ms(whole, 1) == 12);
    const std::vector<PassCode> split{F0, B0, W0, F1, B1, W1, F0, B0, W0, F1, B1, W1};
    CHECK(refined_ms(split, kNoLimit) == 7);
    return check::finish();
}
