/// Light micro-batches overtake heavy ones within memory; of equals, none overtakes another.
#include <algorithm>
#include <array>
#include <vector>

#include "check.hpp"
#include "dynapipe/schedule/lightest_first.hpp"
#include "dynapipe/schedule/list_scheduler.hpp"
#include "dynapipe/schedule/simulate.hpp"
#include "dynapipe/search/random.hpp"
#include "reductions.hpp"

namespace {

using dynapipe::LightestFirst;
using dynapipe::ListScheduler;
using dynapipe::PassCode;
using dynapipe::PassCosts;
using dynapipe::Random;

constexpr std::array kList{0U, 1U, 2U, 3U, 4U, 5U, 6U, 7U, 8U, 9U, 10U, 11U, 12U, 13U, 14U, 15U};
constexpr std::size_t kMicrobatches = kList.size();
constexpr dynapipe::Link kInstant{0.0, kNever, true};

/// Whole numbers, so that much happens at the same time, and micro-batches that differ a lot.
struct Case {
    std::size_t n_stages;
    bool split_backward;
    dynapipe::Link link;
    std::vector<double> limits;
    std::vector<PassCosts> costs;

    Case(std::uint64_t seed, bool are_all_light, Random& random)
        : n_stages(1 + seed % 5),
          split_backward(seed % 2 == 0),
          link{seed % 4 == 0 ? 0.0 : 1.0, 10.0, seed % 7 < 4},
          limits(n_stages, seed % 3 == 0 ? kNever : 140.0 + 20.0 * static_cast<double>(seed % 5)) {
        for (std::size_t i = 0; i < kMicrobatches; ++i) {
            const double heavy_bytes = are_all_light || random.below(4) != 0 ? 10.0 : 100.0;
            for (std::size_t s = 0; s < n_stages; ++s) {
                const double ms = 1.0 + static_cast<double>(random.below(4));
                const double weight_ms = static_cast<double>(random.below(3));
                const double stored_bytes = 10.0 + static_cast<double>(random.below(30));
                costs.push_back(
                    {ms, ms + weight_ms, weight_ms, 1.0, 10.0, stored_bytes, 5.0, heavy_bytes});
            }
        }
    }

    [[nodiscard]] dynapipe::StageCosts table() const { return {costs, n_stages}; }
};

void among_equals_the_first_goes_first(std::uint64_t seed) {
    Random random(seed);
    const Case drawn(seed, true, random);
    LightestFirst lightest(drawn.table(), drawn.limits, drawn.link, drawn.split_backward);
    ListScheduler in_order(drawn.table(), drawn.limits, drawn.link, drawn.split_backward);
    CHECK(lightest.run(kList) == in_order.run(kList));
    CHECK(lightest.order() == in_order.order());
    CHECK(lightest.effort() == in_order.effort() || !drawn.split_backward);
}

/// Returns whether a micro-batch has overtaken another.
bool it_keeps_within_memory_and_ends_when_it_says(std::uint64_t seed) {
    Random random(seed);
    const Case drawn(seed, false, random);
    const std::vector<double> no_bytes(drawn.n_stages, 0.0);
    const std::vector<double> reduce_ms = reductions::drawn(random, drawn.n_stages);
    LightestFirst scheduler(drawn.table(), drawn.limits, drawn.link, drawn.split_backward, {},
                            reduce_ms);
    dynapipe::Simulator simulator(drawn.table(), no_bytes, drawn.link);
    const double makespan_ms = scheduler.run(kList);
    const std::vector<PassCode> order = scheduler.order();
    const dynapipe::Timeline& timeline = simulator.run(order);
    CHECK(makespan_ms < kNever);
    CHECK(reductions::end_ms(timeline, reduce_ms) == makespan_ms);
    CHECK(scheduler.run(kList, makespan_ms) == makespan_ms);
    CHECK(scheduler.run(kList, makespan_ms - 0.5) == kNever);
    for (const double bytes : timeline.peak_bytes) {
        CHECK(bytes <= drawn.limits.front());
    }
    std::vector<PassCode> returning;
    for (const PassCode code : std::span(order).first(order.size() / drawn.n_stages)) {
        if (dynapipe::kind_of(code) == dynapipe::PassKind::kBackward) {
            returning.push_back(code);
        }
    }
    return !std::is_sorted(returning.begin(), returning.end());
}

/// Fractions of bytes, of which some sample alone takes the whole limit: sums are rounded, but
/// every list runs to its end.
void rounding_stops_nothing(std::uint64_t seed) {
    Random random(seed);
    const std::size_t n_stages = 1 + seed % 4;
    std::vector<PassCosts> costs;
    double limit_bytes = 0.0;
    for (std::size_t i = 0; i < kMicrobatches; ++i) {
        const double tokens = 1.0 + static_cast<double>(random.below(60));
        const double heavy_bytes = random.below(4) == 0 ? 0.1 * tokens : 0.0;
        for (std::size_t s = 0; s < n_stages; ++s) {
            costs.push_back({tokens, 2 * tokens, tokens, 0.0, 0.0, 0.1 * tokens, 0.0, heavy_bytes});
        }
        limit_bytes = std::max(limit_bytes, 0.1 * tokens + heavy_bytes);
    }
    const std::vector<double> limits(n_stages, limit_bytes);
    LightestFirst scheduler({costs, n_stages}, limits, kInstant, seed % 2 == 0);
    CHECK(scheduler.run(kList) < kNever);
}

/// A micro-batch that fits nowhere ends the run.
void what_cannot_run_has_no_end() {
    const std::vector<PassCosts> costs(2, {1.0, 2.0, 0.0, 0.0, 0.0, 2.0, 0.0, 9.0});
    const std::vector<double> limits(2, 10.0);
    LightestFirst scheduler({costs, 2}, limits, kInstant, false);
    CHECK(scheduler.run(std::array{0U}) == kNever);
}

}  // namespace

int main() {
    what_cannot_run_has_no_end();
    std::size_t n_overtaking = 0;
    for (std::uint64_t seed = 0; seed < 400; ++seed) {
        among_equals_the_first_goes_first(seed);
        rounding_stops_nothing(seed);
        n_overtaking += it_keeps_within_memory_and_ends_when_it_says(seed) ? 1 : 0;
    }
    CHECK(n_overtaking > 100);
    return check::finish();
}
