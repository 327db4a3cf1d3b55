#include "dynapipe/batch/window_shapes.hpp"

#include <algorithm>
#include <numeric>

namespace dynapipe {

WindowShapes window_shapes(std::span<const std::int64_t> row_tokens,
                           std::span<const std::int64_t> target_tokens,
                           std::span<const std::int64_t> begin, std::span<const std::int64_t> first,
                           std::span<const std::int64_t> most) {
    WindowShapes windows;
    windows.cells.reserve(std::accumulate(most.begin(), most.end(), std::size_t{0}));
    Shapes& shapes = windows.shapes;
    std::size_t n_above = 0;  // cells of the row before
    for (std::size_t row = 0; row < first.size(); ++row) {
        const std::size_t above = windows.cells.size() - n_above;
        const auto start = static_cast<std::size_t>(first[row]);
        std::int64_t longest_row = 0;
        std::int64_t longest_target = 0;
        for (std::size_t k = 0; k < static_cast<std::size_t>(most[row]); ++k) {
            const std::size_t bundle = start + k;
            longest_row = std::max(longest_row, row_tokens[bundle]);
            longest_target = std::max(longest_target, target_tokens[bundle]);
            const std::int64_t n_samples = begin[bundle + 1] - begin[start];
            const std::int32_t last = k < n_above ? windows.cells[above + k] : -1;
            const auto at = static_cast<std::size_t>(std::max(last, 0));
            if (last >= 0 && shapes.n_rows[at] == n_samples &&
                shapes.row_tokens[at] == longest_row &&
                shapes.target_tokens[at] == longest_target) {
                windows.cells.push_back(last);
                continue;
            }
            windows.cells.push_back(static_cast<std::int32_t>(shapes.n_rows.size()));
            shapes.n_rows.push_back(n_samples);
            shapes.row_tokens.push_back(longest_row);
            shapes.target_tokens.push_back(longest_target);
        }
        n_above = static_cast<std::size_t>(most[row]);
    }
    return windows;
}

void use_windows(std::span<std::int32_t> cells, std::span<const std::int64_t> most,
                 std::span<const bool> fits, std::span<const std::int64_t> largest,
                 std::int32_t first) {
    std::size_t begin = 0;
    for (std::size_t row = 0; row < most.size(); ++row) {
        const auto n_cells = static_cast<std::size_t>(most[row]);
        bool is_behind = false;  // a window beyond `largest` that does not fit
        for (std::size_t k = 0; k < n_cells; ++k) {
            std::int32_t& cell = cells[begin + k];
            const bool can_run = fits[static_cast<std::size_t>(cell)];
            is_behind = is_behind || (!can_run && k >= static_cast<std::size_t>(largest[row]));
            cell = can_run && !is_behind ? first + cell : -1;
        }
        begin += n_cells;
    }
}

}  // namespace dynapipe
