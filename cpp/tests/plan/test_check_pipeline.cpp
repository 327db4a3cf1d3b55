/// Plans of random schedules pass; changed at random, they are refused or pass, and whatever is in
/// their rows, nothing else happens: this is for the sanitizers. Whether the check is right is
/// tested in Python, against an execution of the plans.
///
///     test_check_pipeline [number of plans, 2000]

#include <array>
#include <cstdlib>
#include <numeric>
#include <random>
#include <set>

#include "check.hpp"
#include "dynapipe/plan/check_pipeline.hpp"
#include "dynapipe/plan/place_transfers.hpp"

namespace {

using Entries = std::vector<std::uint32_t>;
using Random = std::minstd_rand;

std::size_t below(Random& random, std::size_t n) { return random() % n; }

struct Plan {
    std::vector<Entries> rows;
    std::vector<std::uint32_t> ranks;
    std::size_t n_microbatches;
};

/// Runs passes in any order in which their inputs allow it; the clock ticks once per pass.
Plan random_plan(Random& random) {
    const std::size_t n_stages = 1 + below(random, 5), n = below(random, 6);
    const std::size_t n_kinds = 1 + below(random, 3), n_passes = n * n_kinds;
    std::vector<dynapipe::PassCode> order(n_stages * n_passes);
    std::vector<double> end_ms(n_stages * n_passes);
    std::vector<std::size_t> n_run(n_stages, 0);
    std::set<std::array<std::size_t, 3>> done;  // stage, micro-batch, kind
    while (done.size() < n_stages * n_passes) {
        const std::size_t s = below(random, n_stages), i = below(random, n);
        const std::size_t kind = below(random, n_kinds);
        const bool has_output_gradient = s + 1 == n_stages || done.contains({s + 1, i, 1});
        const bool ready = kind == 0   ? s == 0 || done.contains({s - 1, i, 0})
                           : kind == 1 ? done.contains({s, i, 0}) && has_output_gradient
                                       : done.contains({s, i, 1});
        if (ready && done.insert({s, i, kind}).second) {
            const std::size_t place = s * n_passes + n_run[s]++;
            order[place] = static_cast<dynapipe::PassCode>(3 * i + kind);
            end_ms[place] = static_cast<double>(done.size());
        }
    }
    Plan plan{.rows = {}, .ranks = std::vector<std::uint32_t>(n_stages), .n_microbatches = n};
    std::iota(plan.ranks.begin(), plan.ranks.end(), 7U);
    for (const auto& rows : dynapipe::place_transfers(order, end_ms, plan.ranks)) {
        Entries& entries = plan.rows.emplace_back();
        for (const dynapipe::Row& row : rows) {
            entries.insert(entries.end(),
                           {static_cast<std::uint32_t>(row.kind), row.microbatch,
                            static_cast<std::uint32_t>(row.payload), row.peer, row.slot});
        }
    }
    return plan;
}

/// Drops, repeats or changes rows; numbers are small, or any.
void change(Plan& plan, Random& random) {
    Entries& rows = plan.rows[below(random, plan.rows.size())];
    if (rows.empty()) {
        return;
    }
    const auto row = static_cast<std::ptrdiff_t>(below(random, rows.size() / 5) * 5);
    switch (below(random, 4)) {
        case 0:
            rows.erase(rows.begin() + row, rows.begin() + row + 5);
            break;
        case 1: {
            const Entries again(rows.begin() + row, rows.begin() + row + 5);
            const auto to = static_cast<std::ptrdiff_t>(below(random, rows.size() / 5) * 5);
            rows.insert(rows.begin() + to, again.begin(), again.end());
            break;
        }
        case 2:
            rows[below(random, rows.size())] = static_cast<std::uint32_t>(below(random, 12));
            break;
        default:
            rows[below(random, rows.size())] = static_cast<std::uint32_t>(random());
    }
}

bool passes(const Plan& plan, std::int64_t bytes) {
    const std::vector<std::int64_t> sizes(plan.n_microbatches, bytes);
    std::vector<dynapipe::StagePlan> stages;
    for (std::size_t s = 0; s < plan.rows.size(); ++s) {
        stages.push_back(
            {dynapipe::Rows(plan.rows[s]), plan.ranks[s], INT64_MAX, 0, sizes, sizes, sizes});
        CHECK(dynapipe::peak_bytes(stages.back()) >= 0);
    }
    std::vector<std::uint32_t> no_slices(plan.n_microbatches);
    std::iota(no_slices.begin(), no_slices.end(), 0U);
    return !dynapipe::check_pipeline(stages, no_slices);
}

}  // namespace

int main(int argc, char** argv) {
    const int n_plans = argc > 1 ? std::atoi(argv[1]) : 2000;
    Random random(1);
    int n_refused = 0;
    for (int k = 0; k < n_plans; ++k) {
        Plan plan = random_plan(random);
        CHECK(passes(plan, 10));
        for (int times = 0; times < 3; ++times) {
            change(plan, random);
            n_refused += passes(plan, times == 0 ? INT64_MAX : 10) ? 0 : 1;
        }
    }
    std::cerr << n_plans << " plans, " << n_refused << " of " << 3 * n_plans
              << " changes refused\n";
    CHECK(n_refused > n_plans);
    return check::finish();
}
