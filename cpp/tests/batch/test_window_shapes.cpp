/// Windows are padded to their longest samples, and there may be none.
#include <cstdint>
#include <vector>

#include "check.hpp"
#include "dynapipe/batch/window_shapes.hpp"

namespace {

using Numbers = std::vector<std::int64_t>;
using Sizes = std::vector<double>;

void windows_are_padded_to_their_longest() {
    const auto found = dynapipe::window_shapes(Numbers{24, 8, 16}, Numbers{0, 8, 0},
                                               Numbers{0, 1, 2, 3}, Numbers{0, 1}, Numbers{3, 1});
    CHECK((found.cells == std::vector<std::int32_t>{0, 1, 2, 3}));
    CHECK((found.shapes.n_rows == Sizes{1, 2, 3, 1}));
    CHECK((found.shapes.row_tokens == Sizes{24, 24, 24, 8}));
    CHECK((found.shapes.target_tokens == Sizes{0, 8, 8, 8}));
}

/// Bundles of 2, 1 and 1 samples: windows of as many bundles are alike only if they have as many
/// samples.
void windows_of_bundles_have_all_their_samples() {
    const auto found =
        dynapipe::window_shapes(Numbers{8, 8, 8}, Numbers{0, 0, 0}, Numbers{0, 2, 3, 4},
                                Numbers{0, 1, 2}, Numbers{3, 2, 1});
    CHECK((found.cells == std::vector<std::int32_t>{0, 1, 2, 3, 4, 3}));
    CHECK((found.shapes.n_rows == Sizes{2, 3, 4, 1, 2}));
}

/// As of a mode in which no sample fits alone.
void no_window_has_no_shape() {
    const auto found = dynapipe::window_shapes(Numbers{8192, 8192}, Numbers{0, 0}, Numbers{0, 1, 2},
                                               Numbers{0, 1}, Numbers{0, 0});
    CHECK(found.cells.empty() && found.shapes.n_rows.empty());
}

}  // namespace

int main() {
    windows_are_padded_to_their_longest();
    windows_of_bundles_have_all_their_samples();
    no_window_has_no_shape();
    return check::finish();
}
