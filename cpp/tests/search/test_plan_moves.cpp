/// Every move leaves each sample in one window that may be used, and can be undone.
#include <algorithm>
#include <cstdint>
#include <vector>

#include "check.hpp"
#include "dynapipe/search/plan_moves.hpp"
#include "plan_problem.hpp"

namespace {

using dynapipe::PlanMoves;
using dynapipe::Replica;
using plan_problem::kMaxSamples;
using plan_problem::kSamples;
using plan_problem::Problem;

bool is_plan(const dynapipe::WindowCosts& costs, const std::vector<Replica>& replicas) {
    dynapipe::Assignment plan;
    for (const Replica& replica : replicas) {
        plan.push_back(replica.windows);
        for (const dynapipe::Window& window : replica.windows) {
            if (costs.cell(window.first, window.size, window.mode) < 0) {
                return false;
            }
        }
    }
    return plan_problem::holds_every_sample_once(plan);
}

bool are_equal(const std::vector<Replica>& a, const std::vector<Replica>& b) {
    return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                      [](const Replica& one, const Replica& other) {
                          return one.windows == other.windows && one.alternates == other.alternates;
                      });
}

void check_move(const Problem& problem, const PlanMoves::WeightedMove& kind) {
    PlanMoves moves(problem.windows(), 1);
    std::vector<Replica> replicas(3);
    for (std::uint32_t i = 0; i < kSamples; i += 2) {
        replicas[i % 3].windows.push_back({i, 2, 0});
    }
    moves.begin(replicas);
    std::size_t n_made = 0;
    for (std::size_t n = 0; n < 2000; ++n) {
        moves.make_any();
        moves.accept();
        const std::vector<Replica> before = moves.replicas();
        if (!moves.make(kind.move)) {
            CHECK(are_equal(moves.replicas(), before));
            continue;
        }
        ++n_made;
        CHECK(is_plan(problem.windows(), moves.replicas()));
        CHECK(!moves.changed().empty());
        if (n % 2 == 0) {
            moves.undo();
            CHECK(are_equal(moves.replicas(), before));
        } else {
            moves.accept();
        }
    }
    CHECK(n_made > 0);
}

}  // namespace

int main() {
    Problem problem(1);
    // Windows of the second mode hold no more than three samples.
    for (std::size_t i = problem.cells.size() / 2; i < problem.cells.size(); ++i) {
        problem.cells[i] = i % kMaxSamples < 3 ? problem.cells[i] : -1;
    }
    for (const PlanMoves::WeightedMove& kind : PlanMoves::kMoves) {
        check_move(problem, kind);
    }
    return check::finish();
}
