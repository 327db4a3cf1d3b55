/// A simulator that knows what it has simulated answers like one that knows nothing.
#include <vector>

#include "check.hpp"
#include "dynapipe/schedule/replica_simulator.hpp"
#include "plan_problem.hpp"
#include "reductions.hpp"

namespace {

using dynapipe::ReplicaSimulator;
using dynapipe::Window;
using plan_problem::kStages;

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
    dynapipe::Random random(seed);
    const std::vector<double> reduce_ms = reductions::drawn(random, kStages);
    const auto simulator = [&] {
        return problem.simulator(seed % 2 == 0, plan_problem::kLink, reduce_ms);
    };
    ReplicaSimulator knowing = simulator();
    for (int i = 0; i < 400; ++i) {
        const std::vector<Window> replica = drawn_replica(random);
        const bool alternates = random.below(2) == 0;
        const double whole_ms = simulator().makespan_ms(replica, kNever, alternates);
        const bool gives_up = random.below(4) != 0;
        const double give_up_ms =
            gives_up ? whole_ms * (0.7 + 0.1 * static_cast<double>(random.below(7))) : kNever;
        const double too_soon_ms = random.below(2) == 0 ? 0.0 : -1.0;
        CHECK(knowing.makespan_ms(replica, too_soon_ms, alternates) == kNever);
        const double found_ms = knowing.makespan_ms(replica, give_up_ms, alternates);
        CHECK(found_ms == (whole_ms <= give_up_ms ? whole_ms : kNever));
    }
    CHECK(knowing.effort() < 400 * 4 * 3 * kStages);  // it did not simulate everything
}

/// With a recording, lists take as long.
void lists_are_run_as_asked(std::uint64_t seed) {
    const plan_problem::Problem problem(seed);
    ReplicaSimulator simulator = problem.simulator(seed % 2 == 0);
    dynapipe::Random random(seed);
    const std::vector<Window> replica = drawn_replica(random);
    std::vector<std::uint32_t> list;
    for (const Window& window : replica) {
        list.push_back(problem.windows().microbatch(window));
    }
    double best_ms = kNever;
    for (const bool alternates : {false, true}) {
        dynapipe::ListRecording recording;
        const std::size_t before = simulator.effort();
        const double found_ms = simulator.run(list, kNever, alternates, recording);
        CHECK(simulator.effort() - before >= 2 * list.size() * kStages);
        CHECK(found_ms == simulator.makespan_ms(replica, kNever, alternates));
        best_ms = std::min(best_ms, found_ms);
    }
    CHECK(simulator.best_makespan_ms(replica, kNever) == best_ms);
}

}  // namespace

int main() {
    for (std::uint64_t seed = 0; seed < 10; ++seed) {
        it_answers_like_a_new_one(seed);
        lists_are_run_as_asked(seed);
    }
    return check::finish();
}
