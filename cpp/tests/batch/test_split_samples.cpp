#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "check.hpp"
#include "dynapipe/batch/split_samples.hpp"

using dynapipe::MicroBatchTables;
using dynapipe::Split;
using dynapipe::split_samples;

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

using Sizes = std::vector<std::size_t>;
const std::vector<std::int64_t> kOneRow{0, 4};

void one_stage_takes_all_at_once() {
    const std::vector<double> work_ms{2, 3, 4, 5};
    const std::vector<double> fill_ms{0, 0, 0, 0};
    const Split split = split_samples(std::vector{0, 0, 0, 0}, {work_ms, fill_ms, kOneRow}, 1);
    CHECK(split.sizes == Sizes{4});
    CHECK(split.objective_ms == 5);
}

void four_stages_take_pairs() {
    const std::vector<double> work_ms{4, 5, 6, 7};
    const std::vector<double> fill_ms{12, 15, 18, 21};
    const Split split = split_samples(std::vector{0, 0, 0, 0}, {work_ms, fill_ms, kOneRow}, 1);
    CHECK((split.sizes == Sizes{2, 2}));
    CHECK(split.objective_ms == 15 + 5 + 5);
}

void replicas_share_the_work_but_not_the_fill() {
    const std::vector<double> work_ms{4, 5, 6, 7};
    const std::vector<double> fill_ms{12, 15, 18, 21};
    const Split split = split_samples(std::vector{0, 0, 0, 0}, {work_ms, fill_ms, kOneRow}, 4);
    CHECK((split.sizes == Sizes{1, 1, 1, 1}));
    CHECK(split.objective_ms == 12 + 16.0 / 4);
}

void an_infinite_entry_is_not_used() {
    const std::vector<double> work_ms{10, kInfinity, 1, 7, 2, 3};
    const std::vector<double> fill_ms{0, 0, kInfinity, 0, 0, 0};
    const std::vector<std::int64_t> begin{0, 3, 6};
    const Split split = split_samples(std::vector{0, 1, 1}, {work_ms, fill_ms, begin}, 1);
    CHECK((split.sizes == Sizes{1, 2}));
    CHECK(split.objective_ms == 12);
}

void rows_have_as_many_entries_as_they_need() {
    const std::vector<double> work_ms{10, 7, 2, 3};
    const std::vector<double> fill_ms(4, 0);
    const std::vector<std::int64_t> begin{0, 0, 1, 4};
    const Split split = split_samples(std::vector{1, 2, 2}, {work_ms, fill_ms, begin}, 1);
    CHECK((split.sizes == Sizes{1, 2}));
    CHECK(split.objective_ms == 12);
    CHECK(split_samples(std::vector{1, 0}, {work_ms, fill_ms, begin}, 1).sizes.empty());
}

void no_allowed_split_is_reported() {
    const std::vector<double> work_ms{1, kInfinity};
    const std::vector<double> fill_ms{1, 1};
    const std::vector<std::int64_t> begin{0, 1, 2};
    const Split split = split_samples(std::vector{0, 1}, {work_ms, fill_ms, begin}, 1);
    CHECK(split.sizes.empty());
    CHECK(std::isinf(split.objective_ms));
}

}  // namespace

int main() {
    one_stage_takes_all_at_once();
    four_stages_take_pairs();
    replicas_share_the_work_but_not_the_fill();
    an_infinite_entry_is_not_used();
    rows_have_as_many_entries_as_they_need();
    no_allowed_split_is_reported();
    return check::finish();
}
