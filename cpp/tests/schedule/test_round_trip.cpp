/// The bound that no plan beats, for tables small enough to add up by hand.
#include <vector>

#include "check.hpp"
#include "dynapipe/schedule/round_trip.hpp"

namespace {

using dynapipe::PassCosts;

constexpr std::size_t kStages = 2;
constexpr dynapipe::Link kLink{1.0, 10.0, true};

/// Windows of some samples, each of its own row, in one mode.
struct Table {
    std::vector<PassCosts> costs;
    std::vector<std::int32_t> cells;
    std::vector<std::int64_t> spans;
    std::vector<std::int32_t> row_of_sample;

    void add_row(std::vector<std::int32_t> row) {
        row_of_sample.push_back(static_cast<std::int32_t>(row_of_sample.size()));
        spans.push_back(static_cast<std::int64_t>(cells.size()));
        cells.insert(cells.end(), row.begin(), row.end());
        spans.push_back(static_cast<std::int64_t>(cells.size()));
    }

    void add_costs(double forward_ms, double backward_ms, double weight_ms) {
        for (std::size_t s = 0; s < kStages; ++s) {
            costs.push_back({forward_ms, backward_ms, weight_ms, 0.0, 20.0, 40.0, 10.0, 30.0});
        }
    }

    [[nodiscard]] dynapipe::WindowCosts windows() const {
        return {{costs, kStages}, cells, spans, row_of_sample, 1};
    }
};

/// F, a transfer of 3 ms, F and B, a transfer back and B; B of weights comes last, on either stage.
void a_round_trip_ends_with_the_last_pass() {
    Table table;
    table.add_row({0});
    table.add_costs(5, 8, 2);
    CHECK(dynapipe::least_round_trip_ms(table.windows(), kLink, false) == 2 * (5 + 8) + 2 * 3);
    CHECK(dynapipe::least_round_trip_ms(table.windows(), kLink, true) == 2 * (5 + 6) + 2 * 3 + 2);
    table.costs.back().weight_ms = 8;  // on the last stage, B takes nothing and W 8 ms
    CHECK(dynapipe::least_round_trip_ms(table.windows(), kLink, true) ==
          (5 + 6) + (5 + 0) + 2 * 3 + 2);
    table.costs.front() = {5, 3, 2, 0.0, 20.0, 40.0, 10.0, 30.0};  // W waits longer on the last
    table.costs.back() = {5, 30, 28, 0.0, 20.0, 40.0, 10.0, 30.0};
    CHECK(dynapipe::least_round_trip_ms(table.windows(), kLink, true) == 5 + 3 + 5 + 2 + 28);
}

/// A stage reduces its gradients after its last pass, beside the passes of those before it.
void a_round_trip_ends_with_the_last_reduction() {
    Table table;
    table.add_row({0});
    table.add_costs(5, 8, 2);
    const auto trip_ms = [&](bool split_backward, double first_ms, double last_ms) {
        const std::vector<double> reduce_ms{first_ms, last_ms};
        return dynapipe::least_round_trip_ms(table.windows(), kLink, split_backward, reduce_ms);
    };
    CHECK(trip_ms(false, 7, 0) == 2 * (5 + 8) + 2 * 3 + 7);
    CHECK(trip_ms(false, 0, 10) == 2 * (5 + 8) + 2 * 3);
    CHECK(trip_ms(false, 0, 12) == 2 * (5 + 8) + 2 * 3 + 1);
    CHECK(trip_ms(true, 7, 0) == 2 * (5 + 6) + 2 * 3 + 2 + 7);
    CHECK(trip_ms(true, 0, 12) == 2 * (5 + 6) + 2 * 3 - 6 - 3 + 2 + 12);
}

/// The second sample takes longest alone, and less with the first.
void company_may_shorten_the_way_of_the_longest() {
    Table table;
    table.add_row({0, 2});
    table.add_row({1});
    table.add_costs(1, 2, 0);
    table.add_costs(10, 20, 0);
    table.add_costs(4, 8, 0);
    CHECK(dynapipe::least_round_trip_ms(table.windows(), kLink, false) == 2 * (4 + 8) + 2 * 3);
    table.cells[1] = -1;
    CHECK(dynapipe::least_round_trip_ms(table.windows(), kLink, false) == 2 * (10 + 20) + 2 * 3);
}

}  // namespace

int main() {
    a_round_trip_ends_with_the_last_pass();
    a_round_trip_ends_with_the_last_reduction();
    company_may_shorten_the_way_of_the_longest();
    return check::finish();
}
