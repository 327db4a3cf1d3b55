/// The stage with the least time is the first of those that a search through all of them finds.
#include <algorithm>
#include <limits>
#include <vector>

#include "check.hpp"
#include "dynapipe/schedule/soonest.hpp"
#include "dynapipe/search/random.hpp"

namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();

void it_is_what_a_search_finds(std::size_t n_stages) {
    dynapipe::Random random(n_stages);
    dynapipe::Soonest soonest(n_stages);
    std::vector<double> times_ms(n_stages, kNever);
    CHECK(soonest.stage() == 0);
    for (int change = 0; change < 300; ++change) {
        const std::size_t stage = random.below(n_stages);
        // Few different times, so that many are equal.
        const std::size_t drawn = random.below(8);
        times_ms[stage] = drawn == 7 ? kNever : static_cast<double>(drawn) / 3;
        soonest.set(stage, times_ms[stage]);
        const auto least = std::min_element(times_ms.begin(), times_ms.end());
        CHECK(soonest.stage() == static_cast<std::size_t>(least - times_ms.begin()));
        CHECK(soonest[stage] == times_ms[stage]);
    }
}

}  // namespace

int main() {
    for (std::size_t n_stages = 1; n_stages <= 17; ++n_stages) {
        it_is_what_a_search_finds(n_stages);
    }
    it_is_what_a_search_finds(64);
    return check::finish();
}
