/// A list that is run from where it parts from a recorded one takes exactly as long as from its
/// start, whatever has changed.
#include <algorithm>
#include <limits>
#include <vector>

#include "check.hpp"
#include "dynapipe/schedule/list_scheduler.hpp"
#include "dynapipe/search/random.hpp"

namespace {

using dynapipe::ListScheduler;
using dynapipe::PassCosts;
using dynapipe::Random;

constexpr double kNever = std::numeric_limits<double>::infinity();
constexpr std::size_t kMicrobatches = 20;
constexpr std::size_t kLongest = 30;
constexpr std::size_t kChanges = 300;

std::vector<PassCosts> random_costs(Random& random, std::size_t n_stages) {
    std::vector<PassCosts> costs;
    for (std::size_t i = 0; i < kMicrobatches * n_stages; ++i) {
        const double ms = 1.0 + random.share();
        costs.push_back({ms, 2 * ms, ms, 0.1 * ms, 10.0, 50.0 + 50 * random.share(), 5.0, 10.0});
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
                   double limit_bytes) {
    Random random(seed);
    const std::vector<PassCosts> costs = random_costs(random, n_stages);
    const std::vector<double> limits(n_stages, limit_bytes);
    const dynapipe::Link link{0.1, 50.0, seed % 2 == 0};
    ListScheduler plain({costs, n_stages}, limits, link, kLongest, split_backward);
    ListScheduler resuming({costs, n_stages}, limits, link, kLongest, split_backward);
    dynapipe::ListRecording recording;
    std::vector<std::uint32_t> list(kLongest / 2, 0);
    for (std::size_t n = 0; n < kChanges; ++n) {
        std::vector<std::uint32_t> changed = list;
        change(changed, random);
        const bool alternates = random.below(2) == 0;
        const double whole_ms = plain.run(changed, kNever, alternates);
        const double give_up_ms = random.below(2) == 0 ? kNever : whole_ms * (0.9 + random.share());
        CHECK(resuming.run(changed, give_up_ms, alternates, recording) ==
              (whole_ms <= give_up_ms ? whole_ms : kNever));
        if (random.below(2) == 0) {
            list = changed;
        }
    }
    CHECK(resuming.effort() < plain.effort());
}

}  // namespace

int main() {
    for (std::uint64_t seed = 0; seed < 8; ++seed) {
        for (const bool split_backward : {false, true}) {
            for (const double limit_bytes : {150.0, 300.0, kNever}) {
                check_changes(seed, 2 + seed % 3, split_backward, limit_bytes);
            }
        }
    }
    return check::finish();
}
