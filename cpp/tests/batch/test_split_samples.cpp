/// The split that takes least: of entries that may be used, of rows as long as they are.
#include <cstdint>
#include <limits>
#include <vector>

#include "check.hpp"
#include "dynapipe/batch/split_samples.hpp"

namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();

struct Case {
    std::vector<std::int32_t> row_of_sample;
    std::vector<double> work_ms, fill_ms;
    std::vector<std::int64_t> begin;
    std::size_t n_replicas;
    std::vector<std::size_t> sizes;  ///< that are expected; none where no split is allowed
    double objective_ms;
};

}  // namespace

int main() {
    const std::vector<double> pairs_ms{4, 5, 6, 7}, four_stages_ms{12, 15, 18, 21};
    const std::vector<double> none_ms(4, 0.0);
    for (const Case& c : std::vector<Case>{
             // One stage takes all at once, four take pairs; replicas share work, but no fill.
             {{0, 0, 0, 0}, {2, 3, 4, 5}, none_ms, {0, 4}, 1, {4}, 5},
             {{0, 0, 0, 0}, pairs_ms, four_stages_ms, {0, 4}, 1, {2, 2}, 15 + 5 + 5},
             {{0, 0, 0, 0}, pairs_ms, four_stages_ms, {0, 4}, 4, {1, 1, 1, 1}, 12 + 16.0 / 4},
             // What is infinite is not used, whether work or fill.
             {{0, 1, 1},
              {10, kNever, 1, 7, 2, 3},
              {0, 0, kNever, 0, 0, 0},
              {0, 3, 6},
              1,
              {1, 2},
              12},
             {{0, 1}, {1, kNever}, {1, 1}, {0, 1, 2}, 1, {}, kNever},
             // Rows have as many entries as they need, even none.
             {{1, 2, 2}, {10, 7, 2, 3}, none_ms, {0, 0, 1, 4}, 1, {1, 2}, 12},
             {{1, 0}, {10, 7, 2, 3}, none_ms, {0, 0, 1, 4}, 1, {}, kNever},
         }) {
        const dynapipe::Split split =
            dynapipe::split_samples(c.row_of_sample, {c.work_ms, c.fill_ms, c.begin}, c.n_replicas);
        CHECK(split.sizes == c.sizes);
        CHECK(split.objective_ms == c.objective_ms);
    }
    return check::finish();
}
