/// Plans of random schedules pass; changed at random, they are refused or pass, and whatever is in
/// their rows, nothing else happens: this is for the sanitizers. Whether the check is right is
/// tested in Python, against an execution of the plans.
///
///     test_check_pipeline [number of plans, 2000]

#include <algorithm>
#include <cstdlib>
#include <random>

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

Entries entries_of(const std::vector<dynapipe::Row>& rows) {
    Entries entries;
    for (const auto& row : rows) {
        entries.insert(entries.end(),
                       {static_cast<std::uint32_t>(row.kind), row.microbatch,
                        static_cast<std::uint32_t>(row.payload), row.peer, row.slot});
    }
    return entries;
}

/// Runs passes in any order in which their inputs allow it; the clock ticks once per pass.
Plan random_plan(Random& random) {
    const std::size_t n_stages = 1 + below(random, 5), n = below(random, 6);
    const std::size_t n_kinds = 1 + below(random, 3);
    std::vector<std::vector<dynapipe::PassCode>> order(n_stages);
    std::vector<std::vector<double>> end_ms(n_stages);
    std::vector<bool> done(n_stages * n * 3, false);
    const auto at = [&](std::size_t s, std::size_t i,
                        std::size_t kind) -> std::vector<bool>::reference {
        return done[(s * n + i) * 3 + kind];
    };
    for (double clock_ms = 1; clock_ms <= static_cast<double>(n_stages * n * n_kinds);) {
        const std::size_t s = below(random, n_stages), i = below(random, n);
        const std::size_t kind = below(random, n_kinds);
        const bool ready = kind == 0   ? s == 0 || at(s - 1, i, 0)
                           : kind == 1 ? at(s, i, 0) && (s + 1 == n_stages || at(s + 1, i, 1))
                                       : at(s, i, 1);
        if (ready && !at(s, i, kind)) {
            at(s, i, kind) = true;
            order[s].push_back(static_cast<dynapipe::PassCode>(3 * i + kind));
            end_ms[s].push_back(clock_ms++);
        }
    }
    Plan plan{.rows = {}, .ranks = {}, .n_microbatches = n};
    std::vector<dynapipe::PassCode> orders;
    std::vector<double> ends_ms;
    for (std::size_t s = 0; s < n_stages; ++s) {
        orders.insert(orders.end(), order[s].begin(), order[s].end());
        ends_ms.insert(ends_ms.end(), end_ms[s].begin(), end_ms[s].end());
        plan.ranks.push_back(static_cast<std::uint32_t>(7 + s));
    }
    for (const auto& rows : dynapipe::place_transfers(orders, ends_ms, plan.ranks)) {
        plan.rows.push_back(entries_of(rows));
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
