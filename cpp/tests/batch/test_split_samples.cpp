/// The split that takes least: of entries that may be used, of rows as long as they are.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <vector>

#include "check.hpp"
#include "dynapipe/batch/split_samples.hpp"
#include "dynapipe/search/random.hpp"

namespace {

struct Case {
    std::vector<std::int32_t> row_of_sample;
    std::vector<double> work_ms, fill_ms;
    std::vector<std::int64_t> begin;
    std::size_t n_replicas;
    std::vector<std::size_t> sizes;  ///< that are expected; none where no split is allowed
    double objective_ms;
};

/// Sizes of the micro-batches that are found.
std::vector<std::size_t> split(const Case& c) {
    std::vector<std::int64_t> spans;
    for (std::size_t row = 0; row + 1 < c.begin.size(); ++row) {
        spans.insert(spans.end(), {c.begin[row], c.begin[row + 1]});
    }
    std::vector<std::int32_t> cells(c.work_ms.size());
    std::iota(cells.begin(), cells.end(), 0);
    std::vector<dynapipe::Rating> ratings(cells.size());
    for (std::size_t i = 0; i < ratings.size(); ++i) {
        ratings[i] = {c.work_ms[i], c.fill_ms[i], 0.0};
    }
    dynapipe::PricedCutter cutter({{}, cells, spans, c.row_of_sample, 1}, ratings);
    std::vector<std::size_t> sizes;
    std::size_t next = 0;
    for (const dynapipe::Window& window : dynapipe::split_samples(cutter, {}, c.n_replicas)) {
        CHECK(window.first == next);
        sizes.push_back(window.size);
        next += window.size;
    }
    CHECK(sizes.empty() || next == c.row_of_sample.size());
    return sizes;
}

/// The objective of a split, straight from the definition; infinite if an entry may not be used.
double objective_ms(const Case& c, const std::vector<std::size_t>& sizes) {
    double work_ms = 0, fill_ms = 0;
    std::size_t first = 0;
    for (const std::size_t size : sizes) {
        const auto row = static_cast<std::size_t>(c.row_of_sample[first]);
        const auto entry = static_cast<std::size_t>(c.begin[row]) + size - 1;
        if (entry >= static_cast<std::size_t>(c.begin[row + 1])) {
            return kNever;
        }
        work_ms += c.work_ms[entry];
        fill_ms = std::max(fill_ms, c.fill_ms[entry]);
        first += size;
    }
    return fill_ms + work_ms / static_cast<double>(c.n_replicas);
}

/// Any tables: not even more samples need to cost more, any entry may be forbidden, and rows may
/// have none. Returns whether there is a split.
bool the_split_is_the_best_of_every_one(dynapipe::Random& random) {
    const auto drawn_ms = [&] {
        return std::vector{static_cast<double>(random.below(13)), 100 * random.share(),
                           kNever}[random.below(3)];
    };
    Case c{{}, {}, {}, {0}, 1 + random.below(4), {}, kNever};
    const std::size_t n_rows = 1 + random.below(4), n = 1 + random.below(9);
    for (std::size_t row = 0; row < n_rows; ++row) {
        c.begin.push_back(c.begin.back() + static_cast<std::int64_t>(random.below(10)));
    }
    for (std::int64_t entry = 0; entry < c.begin.back(); ++entry) {
        c.work_ms.push_back(drawn_ms());
        c.fill_ms.push_back(drawn_ms());
    }
    for (std::size_t i = 0; i < n; ++i) {
        c.row_of_sample.push_back(static_cast<std::int32_t>(random.below(n_rows)));
    }
    for (unsigned borders = 0; borders < 1U << (n - 1); ++borders) {
        std::vector<std::size_t> sizes{1};
        for (std::size_t i = 1; i < n; ++i) {
            if ((borders >> (i - 1) & 1U) != 0) {
                sizes.push_back(0);
            }
            ++sizes.back();
        }
        c.objective_ms = std::min(c.objective_ms, objective_ms(c, sizes));
    }
    const std::vector<std::size_t> sizes = split(c);
    const double found_ms = sizes.empty() ? kNever : objective_ms(c, sizes);
    CHECK(found_ms == c.objective_ms || std::abs(found_ms - c.objective_ms) <= 1e-12 * found_ms);
    return !sizes.empty();
}

/// More samples than one can enumerate, each with a row of its own: for every fill, the least work
/// of the splits that fill no more. Windows of half the samples fill less than their halves, though
/// these take less work now and then.
void a_split_of_long_windows_is_the_best(dynapipe::Random& random) {
    const std::size_t n = 50 + 2 * random.below(10);
    Case c{{}, {}, {}, {0}, 1, {}, kNever};
    for (std::size_t row = 0; row < n; ++row) {
        c.row_of_sample.push_back(static_cast<std::int32_t>(row));
        for (std::size_t size = 1; row + size <= n; ++size) {
            c.work_ms.push_back(2 * static_cast<double>(size) + 3 * random.share());
            c.fill_ms.push_back((size == n / 2 ? 10 : 100) * (1 + random.share()));
        }
        c.begin.push_back(static_cast<std::int64_t>(c.work_ms.size()));
    }
    for (const double most_ms : c.fill_ms) {
        std::vector<double> rest_ms(n + 1, 0);
        for (std::size_t i = n; i-- > 0;) {
            rest_ms[i] = kNever;
            for (std::size_t size = 1; i + size <= n; ++size) {
                const auto entry = static_cast<std::size_t>(c.begin[i]) + size - 1;
                if (c.fill_ms[entry] <= most_ms) {
                    rest_ms[i] = std::min(rest_ms[i], c.work_ms[entry] + rest_ms[i + size]);
                }
            }
        }
        c.objective_ms = std::min(c.objective_ms, most_ms + rest_ms[0]);
    }
    CHECK(std::abs(objective_ms(c, split(c)) - c.objective_ms) <= 1e-12 * c.objective_ms);
}

}  // namespace

int main() {
    dynapipe::Random random(1);
    for (int i = 0; i < 10; ++i) {
        a_split_of_long_windows_is_the_best(random);
    }
    int n_found = 0;
    for (int i = 0; i < 3000; ++i) {
        n_found += the_split_is_the_best_of_every_one(random) ? 1 : 0;
    }
    CHECK(n_found > 500 && n_found < 2500);
    const std::vector<double> pairs_ms{4, 5, 6, 7}, four_stages_ms{12, 15, 18, 21};
    for (const Case& c : std::vector<Case>{
             // One stage takes all at once, four take pairs; replicas share work, but no fill.
             {{0, 0, 0, 0}, {2, 3, 4, 5}, {0, 0, 0, 0}, {0, 4}, 1, {4}, 5},
             {{0, 0, 0, 0}, pairs_ms, four_stages_ms, {0, 4}, 1, {2, 2}, 15 + 5 + 5},
             {{0, 0, 0, 0}, pairs_ms, four_stages_ms, {0, 4}, 4, {1, 1, 1, 1}, 12 + 16.0 / 4},
         }) {
        CHECK(split(c) == c.sizes);
        CHECK(objective_ms(c, c.sizes) == c.objective_ms);
    }
    return check::finish();
}
