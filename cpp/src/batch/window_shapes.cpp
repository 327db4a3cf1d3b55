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
            const auto n_rows = static_cast<double>(begin[bundle + 1] - begin[start]);
            const MicroBatchShape shape{n_rows, static_cast<double>(longest_row),
                                        static_cast<double>(longest_target), n_rows};
            const std::int32_t last = k < n_above ? windows.cells[above + k] : -1;
            const auto at = static_cast<std::size_t>(std::max(last, 0));
            if (last >= 0 && shapes.n_rows[at] == shape.n_rows &&
                shapes.row_tokens[at] == shape.row_tokens &&
                shapes.target_tokens[at] == shape.target_tokens) {
                windows.cells.push_back(last);
                continue;
            }
            windows.cells.push_back(static_cast<std::int32_t>(shapes.size()));
            shapes.push_back(shape);
        }
        n_above = static_cast<std::size_t>(most[row]);
    }
    return windows;
}

}  // namespace dynapipe
