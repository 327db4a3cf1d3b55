/// Every move leaves each sample in one window that may be used, and can be undone.
#include <algorithm>
#include <cstdint>
#include <vector>

#include "check.hpp"
#include "dynapipe/search/plan_moves.hpp"

namespace {

using dynapipe::PassCosts;
using dynapipe::PlanMoves;
using dynapipe::Replica;

constexpr std::size_t kSamples = 30;
constexpr std::size_t kModes = 2;
constexpr std::size_t kMaxSamples = 4;
constexpr std::size_t kTries = 2000;

/// Any window of up to four samples, but that the second mode holds no more than three.
struct Problem {
    std::vector<PassCosts> costs = std::vector<PassCosts>(1);
    std::vector<std::int32_t> cells;
    std::vector<std::int64_t> spans;
    std::vector<std::int32_t> row_of_sample;

    Problem() {
        for (std::size_t mode = 0; mode < kModes; ++mode) {
            for (std::size_t row = 0; row < kSamples; ++row) {
                spans.push_back(static_cast<std::int64_t>(cells.size()));
                spans.push_back(static_cast<std::int64_t>(cells.size() + kMaxSamples));
                for (std::size_t size = 1; size <= kMaxSamples; ++size) {
                    const bool fits = row + size <= kSamples && (mode == 0 || size < 4);
                    cells.push_back(fits ? 0 : -1);
                }
            }
        }
        for (std::size_t i = 0; i < kSamples; ++i) {
            row_of_sample.push_back(static_cast<std::int32_t>(i));
        }
    }

    [[nodiscard]] dynapipe::WindowCosts windows() const {
        return {{costs, 1}, cells, spans, row_of_sample, kModes};
    }

    [[nodiscard]] bool is_plan(const std::vector<Replica>& replicas) const {
        std::vector<int> times(kSamples, 0);
        for (const Replica& replica : replicas) {
            for (const dynapipe::Window& window : replica.windows) {
                if (windows().cell(window.first, window.size, window.mode) < 0) {
                    return false;
                }
                for (std::size_t i = window.first; i < window.first + window.size; ++i) {
                    ++times[i];
                }
            }
        }
        return std::all_of(times.begin(), times.end(), [](int n) { return n == 1; }) &&
               std::none_of(replicas.begin(), replicas.end(),
                            [](const Replica& replica) { return replica.windows.empty(); });
    }
};

bool are_equal(const std::vector<Replica>& a, const std::vector<Replica>& b) {
    return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                      [](const Replica& one, const Replica& other) {
                          return one.windows == other.windows && one.precedence == other.precedence;
                      });
}

std::vector<Replica> three_replicas() {
    std::vector<Replica> replicas(3);
    for (std::uint32_t i = 0; i < kSamples; i += 2) {
        replicas[i % 3].windows.push_back({i, 2, 0});
    }
    return replicas;
}

void check_move(const PlanMoves::WeightedMove& kind) {
    const Problem problem;
    PlanMoves moves(problem.windows(), 1);
    moves.set_precedences(dynapipe::kPrecedences);
    moves.begin(three_replicas());
    std::size_t n_made = 0;
    for (std::size_t n = 0; n < kTries; ++n) {
        moves.make_any();
        moves.accept();
        const std::vector<Replica> before = moves.replicas();
        if (!moves.make(kind.move)) {
            CHECK(are_equal(moves.replicas(), before));
            continue;
        }
        ++n_made;
        CHECK(problem.is_plan(moves.replicas()));
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
    for (const PlanMoves::WeightedMove& kind : PlanMoves::kMoves) {
        check_move(kind);
    }
    return check::finish();
}
