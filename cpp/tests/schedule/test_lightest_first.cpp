/// Light micro-batches overtake heavy ones within memory; of equals, none overtakes another.
#include <algorithm>
#include <iterator>
#include <limits>
#include <numeric>
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
using dynapipe::PassKind;
using dynapipe::Random;

constexpr double kNever = std::numeric_limits<double>::infinity();
constexpr std::size_t kMicrobatches = 16;
constexpr dynapipe::Link kInstant{0.0, kNever, true};

std::vector<std::uint32_t> first_ones(std::size_t n) {
    std::vector<std::uint32_t> list(n);
    std::iota(list.begin(), list.end(), 0U);
    return list;
}

/// F and B of 1 and 2 ms, and 2 bytes each but for what a heavy B needs besides.
PassCosts costing(double scale, double transient_bytes) {
    return {scale, 2 * scale, 0.0, 0.0, 0.0, 2.0, 0.0, transient_bytes};
}

/// Whole numbers, so that much happens at the same time, and micro-batches that differ a lot.
std::vector<PassCosts> random_costs(Random& random, std::size_t n_stages, bool are_all_light) {
    std::vector<PassCosts> costs;
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
    return costs;
}

struct Case {
    std::size_t n_stages;
    bool split_backward;
    double limit_bytes;
    dynapipe::Link link;
};

Case drawn_case(std::uint64_t seed) {
    const double limit_bytes =
        seed % 3 == 0 ? kNever : 140.0 + 20.0 * static_cast<double>(seed % 5);
    return {
        1 + seed % 5, seed % 2 == 0, limit_bytes, {seed % 4 == 0 ? 0.0 : 1.0, 10.0, seed % 7 < 4}};
}

void among_equals_the_first_goes_first(std::uint64_t seed) {
    Random random(seed);
    const Case drawn = drawn_case(seed);
    const std::vector<PassCosts> costs = random_costs(random, drawn.n_stages, true);
    const std::vector<double> limits(drawn.n_stages, drawn.limit_bytes);
    LightestFirst lightest({costs, drawn.n_stages}, limits, drawn.link, drawn.split_backward);
    ListScheduler in_order({costs, drawn.n_stages}, limits, drawn.link, drawn.split_backward);
    const std::vector<std::uint32_t> list = first_ones(kMicrobatches);
    CHECK(lightest.run(list) == in_order.run(list));
    CHECK(lightest.order() == in_order.order());
    CHECK(lightest.effort() == in_order.effort() || !drawn.split_backward);
}

/// The most that is kept at once while a stage runs its passes, transient memory included.
double peak_bytes(std::span<const PassCode> passes, std::span<const PassCosts> costs,
                  std::size_t n_stages, std::size_t stage, PassKind last) {
    double kept_bytes = 0.0;
    double peak_bytes = 0.0;
    for (const PassCode code : passes) {
        const PassCosts& cost = costs[dynapipe::microbatch_of(code) * n_stages + stage];
        const PassKind kind = dynapipe::kind_of(code);
        const bool enters = kind == PassKind::kForward;
        kept_bytes += enters ? cost.stored_bytes : 0.0;
        const double transient_bytes =
            enters ? cost.forward_transient_bytes : cost.backward_transient_bytes;
        peak_bytes = std::max(peak_bytes, kept_bytes + transient_bytes);
        kept_bytes -= kind == last ? cost.stored_bytes : 0.0;
    }
    return peak_bytes;
}

/// Returns whether a micro-batch has overtaken another.
bool it_keeps_within_memory_and_ends_when_it_says(std::uint64_t seed) {
    Random random(seed);
    const Case drawn = drawn_case(seed);
    const std::vector<PassCosts> costs = random_costs(random, drawn.n_stages, false);
    const std::vector<double> limits(drawn.n_stages, drawn.limit_bytes);
    const std::vector<double> no_bytes(drawn.n_stages, 0.0);
    const std::vector<double> reduce_ms = reductions::drawn(random, drawn.n_stages);
    LightestFirst scheduler({costs, drawn.n_stages}, limits, drawn.link, drawn.split_backward, {},
                            reduce_ms);
    dynapipe::Simulator simulator({costs, drawn.n_stages}, no_bytes, drawn.link);
    const std::vector<std::uint32_t> list = first_ones(kMicrobatches);
    const double makespan_ms = scheduler.run(list);
    const std::vector<PassCode> order = scheduler.order();
    CHECK(makespan_ms < kNever);
    CHECK(reductions::end_ms(simulator.run(order), reduce_ms) == makespan_ms);
    CHECK(scheduler.run(list, makespan_ms) == makespan_ms);
    CHECK(scheduler.run(list, makespan_ms - 0.5) == kNever);
    const std::size_t n_passes = order.size() / drawn.n_stages;
    const PassKind last = drawn.split_backward ? PassKind::kWeight : PassKind::kBackward;
    std::vector<PassCode> returning;
    for (std::size_t s = 0; s < drawn.n_stages; ++s) {
        const auto passes = std::span(order).subspan(s * n_passes, n_passes);
        CHECK(peak_bytes(passes, costs, drawn.n_stages, s, last) <= drawn.limit_bytes);
    }
    std::copy_if(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(n_passes),
                 std::back_inserter(returning),
                 [](PassCode code) { return dynapipe::kind_of(code) == PassKind::kBackward; });
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
    CHECK(scheduler.run(first_ones(kMicrobatches)) < kNever);
}

/// A micro-batch that fits nowhere ends the run.
void what_cannot_run_has_no_end() {
    const std::vector<PassCosts> costs = {costing(1, 9), costing(1, 9)};
    const std::vector<double> limits(2, 10.0);
    LightestFirst scheduler({costs, 2}, limits, kInstant, false);
    CHECK(scheduler.run(first_ones(1)) == kNever);
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
