#include <cmath>

#include "check.hpp"
#include "dynapipe/schedule/simulate.hpp"

using dynapipe::Link;
using dynapipe::PassCode;
using dynapipe::Timeline;
using Doubles = std::vector<double>;

namespace {

constexpr Link kInstant{.latency_ms = 0, .bytes_per_ms = 1, .full_duplex = true};
constexpr PassCode F0 = 0, B0 = 1, W0 = 2, F1 = 3, B1 = 4, W1 = 5;

/// Two micro-batches that take 1 ms and 2 ms, store 10 bytes and need 1 and 5 more.
Timeline run(const std::vector<PassCode>& order, std::size_t n_stages, const Link& link,
             double boundary_bytes) {
    const dynapipe::PassCosts each{.forward_ms = 1,
                                   .backward_ms = 2,
                                   .weight_ms = 1,
                                   .splitting_ms = 0.5,
                                   .boundary_bytes = boundary_bytes,
                                   .stored_bytes = 10,
                                   .forward_transient_bytes = 1,
                                   .backward_transient_bytes = 5};
    const std::vector<dynapipe::PassCosts> costs(2 * n_stages, each);
    const Doubles fixed(n_stages, 100.0);
    dynapipe::Simulator simulator({costs, n_stages}, fixed, link);
    const double makespan_ms = simulator.run(order).makespan_ms;
    if (std::isfinite(makespan_ms)) {
        CHECK(simulator.run(order, makespan_ms).makespan_ms == makespan_ms);
        CHECK(std::isinf(simulator.run(order, 0.999 * makespan_ms).makespan_ms));
        CHECK(simulator.run(order, 0.5 * makespan_ms).n_started.back() < order.size() / n_stages);
        if (n_stages > 1 && order.size() == 2 * costs.size()) {  // the last stage already shows it
            CHECK(simulator.run(order, 0.999 * makespan_ms).n_started.front() < 4);
        }
    }
    return simulator.run(order);  // a used one finds the same
}

}  // namespace

int main() {
    const std::vector<PassCode> two_stages{F0, F1, B0, B1, F0, B0, F1, B1};

    const Timeline quick = run(two_stages, 2, kInstant, 0);
    CHECK((quick.start_ms == Doubles{0, 1, 4, 7, 1, 2, 4, 5}));
    CHECK((quick.end_ms == Doubles{1, 2, 6, 9, 2, 4, 5, 7}));
    CHECK((quick.busy_ms == Doubles{6, 6}));
    CHECK((quick.peak_bytes == Doubles{125, 115}));
    CHECK((quick.n_started == std::vector<std::size_t>{4, 4}));

    const Timeline slow =
        run(two_stages, 2, {.latency_ms = 1, .bytes_per_ms = 5, .full_duplex = 1}, 10);
    CHECK((Doubles(slow.send_start_ms.begin(), slow.send_start_ms.begin() + 2) == Doubles{1, 4}));
    CHECK((Doubles(slow.send_end_ms.begin(), slow.send_end_ms.begin() + 2) == Doubles{4, 7}));
    CHECK(std::isnan(slow.send_start_ms[2]));
    CHECK((slow.peak_bytes == quick.peak_bytes));

    const Timeline alone =
        run({F0, B0, F1, B1}, 1, {.latency_ms = 9, .bytes_per_ms = 1, .full_duplex = 1}, 9);
    CHECK((alone.end_ms == Doubles{1, 3, 4, 6}));

    const Timeline stuck = run({F0, B1, F1, B0, F0, F1, B0, B1}, 2, kInstant, 0);
    CHECK((stuck.n_started == std::vector<std::size_t>{1, 1}));
    CHECK(std::isnan(stuck.end_ms[1]));

    const Timeline split = run({F0, F1, B0, W0, B1, W1, F0, B0, F1, B1, W0, W1}, 2, kInstant, 0);
    CHECK((split.start_ms == Doubles{0, 1, 3.5, 5, 6, 7.5, 1, 2, 3.5, 4.5, 6, 7}));
    CHECK((split.peak_bytes == Doubles{125, 125}));
    CHECK((split.busy_ms == Doubles{7, 7}));
    CHECK(split.makespan_ms == 8.5);
    return check::finish();
}
