/// A list that is run from where it parts from a recorded one takes exactly as long as from its
/// start, whatever has changed; stages that run side by side run what they run one after the other;
/// samples that run as slices count as one micro-batch.
#include <algorithm>
#include <array>
#include <numeric>
#include <vector>

#include "check.hpp"
#include "dynapipe/schedule/list_scheduler.hpp"
#include "dynapipe/schedule/simulate.hpp"
#include "dynapipe/search/random.hpp"
#include "reductions.hpp"

namespace {

using dynapipe::ListScheduler;
using dynapipe::PassCosts;
using dynapipe::Random;

constexpr std::size_t kMicrobatches = 20;
constexpr std::size_t kLongest = 30;
constexpr std::size_t kManyStages = 16;

/// Two samples run as slices, five and two.
std::vector<std::uint32_t> later_slices() {
    std::vector<std::uint32_t> later(kMicrobatches, 0);
    std::copy_n(std::array{4U, 3U, 2U, 1U, 0U, 1U}.begin(), 6, later.begin());
    return later;
}

/// Slices follow the first of their sample; in their own places they are none.
std::vector<std::uint32_t> with_slices(std::span<const std::uint32_t> list) {
    const std::vector<std::uint32_t> later = later_slices();
    std::vector<std::uint32_t> expanded;
    for (const std::uint32_t each : list) {
        if (each == 0 || each == 5 || each > 6) {
            for (std::uint32_t slice = each; slice <= each + later[each]; ++slice) {
                expanded.push_back(slice);
            }
        }
    }
    return expanded;
}

std::vector<PassCosts> random_costs(Random& random, std::size_t n_stages) {
    std::vector<PassCosts> costs;
    for (std::size_t i = 0; i < kMicrobatches * n_stages; ++i) {
        const double ms = 1.0 + random.share();
        const double sent_bytes = 40 * random.share();
        costs.push_back(
            {ms, 2 * ms, ms, 0.1 * ms, sent_bytes, 50.0 + 50 * random.share(), 5.0, 10.0});
    }
    return costs;
}

void change(std::vector<std::uint32_t>& list, Random& random) {
    const std::size_t place = random.below(list.size());
    const auto at = list.begin() + static_cast<std::ptrdiff_t>(place);
    const auto microbatch = static_cast<std::uint32_t>(random.below(kMicrobatches));
    switch (random.below(4)) {
        case 0:
            list[place] = microbatch;
            break;
        case 1:
            std::swap(list[place], list[random.below(list.size())]);
            break;
        case 2:
            if (list.size() < kLongest) {
                list.insert(at, microbatch);
            }
            break;
        default:
            if (list.size() > 1) {
                list.erase(at);
            }
    }
}

void check_changes(std::uint64_t seed, std::size_t n_stages, bool split_backward,
                   double limit_bytes, bool has_slices) {
    Random random(seed);
    const std::vector<PassCosts> costs = random_costs(random, n_stages);
    const std::vector<double> limits(n_stages, limit_bytes);
    const dynapipe::Link link{0.1, 50.0, seed % 2 == 0};
    const std::vector<double> reduce_ms = reductions::drawn(random, n_stages);
    const std::vector<std::uint32_t> later = has_slices ? later_slices() : decltype(later){};
    ListScheduler plain({costs, n_stages}, limits, link, split_backward, reduce_ms, later);
    ListScheduler resuming({costs, n_stages}, limits, link, split_backward, reduce_ms, later);
    dynapipe::ListRecording recording;
    std::vector<std::uint32_t> units(kLongest / 2, 0);
    for (std::size_t n = 0; n < 300; ++n) {
        std::vector<std::uint32_t> changed_units = units;
        change(changed_units, random);
        const auto changed = has_slices ? with_slices(changed_units) : changed_units;
        if (changed.empty()) {
            continue;
        }
        const bool alternates = random.below(2) == 0;
        const double whole_ms = plain.run(changed, kNever, alternates);
        const std::array limits_ms{kNever, whole_ms, whole_ms * (0.9 + random.share())};
        const double give_up_ms = limits_ms[random.below(limits_ms.size())];
        CHECK(resuming.run(changed, give_up_ms, alternates, recording) ==
              (whole_ms <= give_up_ms ? whole_ms : kNever));
        if (random.below(2) == 0) {
            units = changed_units;
        }
    }
    CHECK(resuming.effort() < plain.effort());
}

/// Whole numbers, so that much happens at the same time, and micro-batches that differ a lot.
std::vector<PassCosts> costs_with_ties(Random& random, std::size_t n_stages) {
    std::vector<PassCosts> costs;
    for (std::size_t i = 0; i < kMicrobatches; ++i) {
        const double longest_ms = random.below(4) == 0 ? 12.0 : 2.0;
        for (std::size_t s = 0; s < n_stages; ++s) {
            const double ms = 1.0 + static_cast<double>(random.below(2)) * longest_ms;
            const double weight_ms = static_cast<double>(random.below(3));
            costs.push_back({ms, ms + weight_ms, weight_ms, 0.0, 10.0, 30.0 * ms, 5.0, 10.0});
        }
    }
    return costs;
}

/// A run that is recorded takes the passes of all stages in the order of time.
void check_side_by_side(std::uint64_t seed, std::size_t n_stages, bool split_backward,
                        double limit_bytes, bool has_slices) {
    Random random(seed);
    const std::vector<PassCosts> costs = costs_with_ties(random, n_stages);
    const std::vector<double> limits(n_stages, limit_bytes);
    const std::vector<double> no_bytes(n_stages, 0.0);
    const dynapipe::Link link{seed % 3 == 0 ? 0.0 : 1.0, 10.0, seed % 2 == 0};
    const std::vector<double> reduce_ms = reductions::drawn(random, n_stages);
    const std::vector<std::uint32_t> later = has_slices ? later_slices() : decltype(later){};
    ListScheduler scheduler({costs, n_stages}, limits, link, split_backward, reduce_ms, later);
    std::vector<std::uint32_t> list(kMicrobatches);
    std::iota(list.begin(), list.end(), 0U);
    for (const bool alternates : {false, true}) {
        dynapipe::ListRecording recording;
        const std::size_t before = scheduler.effort();
        const double in_order_ms = scheduler.run(list, kNever, alternates, recording);
        const std::vector<dynapipe::PassCode> in_order = scheduler.order();
        const std::size_t between = scheduler.effort();
        CHECK(scheduler.run(list, in_order_ms, alternates) == in_order_ms);
        CHECK(scheduler.order() == in_order);
        CHECK(scheduler.effort() - between == between - before);
        const dynapipe::Timeline timeline =
            dynapipe::simulate(in_order, {costs, n_stages}, no_bytes, link);
        CHECK(reductions::end_ms(timeline, reduce_ms) == in_order_ms);
        for (const double bytes : timeline.peak_bytes) {
            CHECK(bytes <= limit_bytes);
        }
        CHECK(scheduler.run(list, in_order_ms - 0.5, alternates) == kNever);
    }
}

/// Two micro-batches of F 1 and B 2 ms on two stages end after 9 ms. What a stage reduces then is
/// known before the first pass: a run that ends too late begins none.
void reductions_are_foreseen() {
    const std::vector<PassCosts> costs(4, {1.0, 2.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0});
    const std::vector<double> limits(2, kNever);
    const std::array list{0U, 1U};
    const auto begins_nothing = [&](std::vector<double> reduce_ms, double makespan_ms) {
        ListScheduler scheduler({costs, 2}, limits, {0.0, kNever, true}, false, reduce_ms);
        CHECK(scheduler.run(list) == makespan_ms);
        const std::size_t before = scheduler.effort();
        CHECK(scheduler.run(list, makespan_ms - 0.5) == kNever);
        return scheduler.effort() - before == list.size();
    };
    CHECK(begins_nothing({0.0, 0.0}, 9.0));
    CHECK(begins_nothing({4.0, 0.0}, 13.0));
    CHECK(begins_nothing({0.0, 4.0}, 11.0));
    CHECK(begins_nothing({3.0, 5.0}, 12.0));
}

/// A micro-batch that fits nowhere ends the run.
void what_cannot_run_has_no_end() {
    const std::vector<PassCosts> costs(kManyStages, {1.0, 2.0, 1.0, 0.0, 1.0, 9.0, 2.0, 2.0});
    const std::vector<double> limits(kManyStages, 10.0);
    ListScheduler scheduler({costs, kManyStages}, limits, {0.0, 1.0, true});
    CHECK(scheduler.run(std::array{0U}) == kNever);
}

/// Fractions of bytes, of which some sample alone takes the whole limit: sums are rounded, but
/// every list runs to its end.
void rounding_stops_nothing(std::uint64_t seed) {
    Random random(seed);
    const std::size_t n_stages = 1 + seed % 4;
    const std::vector<std::uint32_t> later = later_slices();
    std::vector<PassCosts> costs;
    double limit_bytes = 0.0;
    double sample_bytes = 0.0;
    double heavy_bytes = 0.0;
    for (std::size_t i = 0; i < kMicrobatches; ++i) {
        const double tokens = 1.0 + static_cast<double>(random.below(60));
        const bool is_first = i == 0 || later[i - 1] == 0;
        heavy_bytes = !is_first ? heavy_bytes : random.below(4) == 0 ? 0.1 * tokens : 0.0;
        sample_bytes = (is_first ? 0.0 : sample_bytes) + 0.1 * tokens;
        for (std::size_t s = 0; s < n_stages; ++s) {
            costs.push_back({tokens, 2 * tokens, tokens, 0.0, 0.0, 0.1 * tokens, 0.0, heavy_bytes});
        }
        limit_bytes = std::max(limit_bytes, sample_bytes + heavy_bytes);
    }
    const std::vector<double> limits(n_stages, limit_bytes);
    std::vector<std::uint32_t> list(kMicrobatches);
    std::iota(list.begin(), list.end(), 0U);
    for (const bool split_backward : {false, true}) {
        const dynapipe::Link instant{0.0, kNever, true};
        ListScheduler scheduler({costs, n_stages}, limits, instant, split_backward, {}, later);
        CHECK(scheduler.run(list) < kNever);
        ListScheduler whole({costs, n_stages}, limits, instant, split_backward);
        CHECK(whole.run(list) < kNever);
    }
}

}  // namespace

int main() {
    what_cannot_run_has_no_end();
    reductions_are_foreseen();
    for (std::uint64_t seed = 0; seed < 400; ++seed) {
        rounding_stops_nothing(seed);
    }
    for (std::uint64_t seed = 0; seed < 24; ++seed) {
        const bool split_backward = seed % 2 == 0;
        for (const bool has_slices : {false, true}) {
            // The slices of a sample have to fit together.
            const double more_bytes = has_slices ? 4.0 : 1.0;
            for (const double limit_bytes : {500.0, 1500.0, kNever}) {
                check_side_by_side(seed, kManyStages + seed / 2, split_backward,
                                   limit_bytes * more_bytes, has_slices);
            }
            for (const double limit_bytes : {150.0, 300.0, kNever}) {
                check_changes(seed, 2 + seed % 3, split_backward, limit_bytes * more_bytes,
                              has_slices);
            }
        }
    }
    return check::finish();
}
