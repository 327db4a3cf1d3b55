#include "dynapipe/window_shapes.hpp"

#include <algorithm>

namespace dynapipe {

WindowShapes window_shapes(std::span<const std::int64_t> row_tokens,
                           std::span<const std::int64_t> target_tokens,
                           std::span<const std::int64_t> first,
                           std::span<const std::int64_t> most) {
    const auto width = static_cast<std::size_t>(*std::max_element(most.begin(), most.end()));
    WindowShapes found{std::vector<std::int32_t>(first.size() * width, -1), {}, width};
    Shapes& shapes = found.shapes;
    for (std::size_t row = 0; row < first.size(); ++row) {
        std::int32_t* cells = found.cells.data() + row * width;  // may be none
        const std::int32_t* above = row > 0 ? cells - width : nullptr;
        std::int64_t longest_row = 0;
        std::int64_t longest_target = 0;
        for (std::size_t k = 0; k < static_cast<std::size_t>(most[row]); ++k) {
            const std::size_t sample = static_cast<std::size_t>(first[row]) + k;
            longest_row = std::max(longest_row, row_tokens[sample]);
            longest_target = std::max(longest_target, target_tokens[sample]);
            const std::int32_t last = above != nullptr ? above[k] : -1;
            const auto at = static_cast<std::size_t>(std::max(last, 0));
            if (last >= 0 && shapes.row_tokens[at] == longest_row &&
                shapes.target_tokens[at] == longest_target) {
                cells[k] = last;
                continue;
            }
            cells[k] = static_cast<std::int32_t>(shapes.n_rows.size());
            shapes.n_rows.push_back(static_cast<std::int64_t>(k + 1));
            shapes.row_tokens.push_back(longest_row);
            shapes.target_tokens.push_back(longest_target);
        }
    }
    return found;
}

void use_windows(std::span<const std::int32_t> shapes, std::span<const bool> fits,
                 std::span<const std::int64_t> largest, std::int32_t first,
                 std::span<std::int32_t> used) {
    const std::size_t n_rows = largest.size();
    const std::size_t width = shapes.size() / n_rows;
    for (std::size_t row = 0; row < n_rows; ++row) {
        const std::span<const std::int32_t> known = shapes.subspan(row * width, width);
        const std::span<std::int32_t> cells = used.subspan(row * (used.size() / n_rows), width);
        for (std::size_t k = 0; k < width && known[k] >= 0; ++k) {
            if (fits[static_cast<std::size_t>(known[k])]) {
                cells[k] = first + known[k];
            } else if (k >= static_cast<std::size_t>(largest[row])) {
                break;
            }
        }
    }
}

}  // namespace dynapipe
