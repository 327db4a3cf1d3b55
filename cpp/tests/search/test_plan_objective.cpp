/// The objective weighs the slowest replica against the mean, and its limits are tight.
#include <cmath>
#include <vector>

#include "check.hpp"
#include "dynapipe/search/plan_objective.hpp"
#include "dynapipe/search/random.hpp"

namespace {

using dynapipe::Replica;

std::vector<Replica> ending_at(const std::vector<double>& ends_ms) {
    std::vector<Replica> replicas;
    for (const double ms : ends_ms) {
        replicas.push_back({{}, dynapipe::Precedence::kBackward, ms});
    }
    return replicas;
}

void four_fifths_are_of_the_slowest() {
    CHECK(std::abs(dynapipe::objective_ms(ending_at({10, 30, 20})) - (0.8 * 30 + 0.2 * 20)) <
          1e-12);
    CHECK(dynapipe::slowest_ms(ending_at({10, 30, 20})) == 30);
}

/// A replica that ends then reaches the limit exactly, whether it is the slowest or not.
void the_latest_end_reaches_the_limit(dynapipe::Random& random) {
    std::vector<double> ends_ms(1 + random.below(5));
    for (double& ms : ends_ms) {
        ms = random.share();
    }
    ends_ms[0] = 0;
    const double limit_ms =
        dynapipe::objective_ms(ending_at(ends_ms)) + 2 * random.share() / 10 + 0.01;
    ends_ms[0] = dynapipe::latest_end_ms(ending_at(ends_ms), limit_ms);
    CHECK(ends_ms[0] > 0);
    CHECK(std::abs(dynapipe::objective_ms(ending_at(ends_ms)) - limit_ms) < 1e-12);
}

}  // namespace

int main() {
    four_fifths_are_of_the_slowest();
    dynapipe::Random random(1);
    for (int i = 0; i < 500; ++i) {
        the_latest_end_reaches_the_limit(random);
    }
    return check::finish();
}
