/// A simulator that knows what it has simulated answers like one that knows nothing.
#include <limits>
#include <vector>

#include "check.hpp"
#include "dynapipe/schedule/replica_simulator.hpp"
#include "plan_problem.hpp"

namespace {

using dynapipe::Precedence;
using dynapipe::ReplicaSimulator;
using dynapipe::Window;
using plan_problem::kStages;

constexpr double kNever = std::numeric_limits<double>::infinity();
constexpr dynapipe::Link kLink{0.5, 10.0, true};

std::vector<Window> drawn_replica(dynapipe::Random& random) {
    std::vector<Window> replica;
    for (std::uint32_t first = 0; first < 4; ++first) {
        replica.push_back({first, static_cast<std::uint32_t>(1 + random.below(2)), 0});
    }
    std::swap(replica.front(), replica[random.below(replica.size())]);
    return replica;
}

void it_answers_like_a_new_one(std::uint64_t seed) {
    const plan_problem::Problem problem(seed);
    const std::vector<double> limits(kStages, 300.0);
    const auto simulator = [&] {
        return ReplicaSimulator(problem.windows(), limits, kLink, seed % 2 == 0);
    };
    ReplicaSimulator knowing = simulator();
    dynapipe::Random random(seed);
    for (int i = 0; i < 400; ++i) {
        const std::vector<Window> replica = drawn_replica(random);
        const auto precedence = static_cast<Precedence>(random.below(3));
        const double whole_ms = simulator().makespan_ms(replica, kNever, precedence);
        const double give_up_ms =
            random.below(4) == 0 ? kNever
                                 : whole_ms * (0.7 + 0.1 * static_cast<double>(random.below(7)));
        const double found_ms = knowing.makespan_ms(replica, give_up_ms, precedence);
        CHECK(found_ms == (whole_ms <= give_up_ms ? whole_ms : kNever));
    }
    CHECK(knowing.effort() < 400 * 4 * 3 * kStages);  // it did not simulate everything
}

}  // namespace

int main() {
    for (std::uint64_t seed = 0; seed < 10; ++seed) {
        it_answers_like_a_new_one(seed);
    }
    return check::finish();
}
