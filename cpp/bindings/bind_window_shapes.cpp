#include <pybind11/pybind11.h>

#include <cstdint>
#include <limits>
#include <tuple>

#include "arrays.hpp"
#include "dynapipe/window_shapes.hpp"

namespace py = pybind11;

namespace {

using Tokens = py::array_t<std::int64_t, py::array::c_style>;
using Cells = py::array_t<std::int32_t>;

/// The kernel relies on windows that end with the samples.
void check_windows(const Tokens& first, const Tokens& most, py::ssize_t n_samples) {
    if (first.ndim() != 1 || first.size() == 0) {
        throw py::value_error("first must have shape (n_rows,), n_rows >= 1, got " +
                              arrays::text_of(arrays::shape_of(first)));
    }
    arrays::check_shape(most, "most", arrays::shape_of(first));
    for (py::ssize_t row = 0; row < first.size(); ++row) {
        const std::int64_t start = first.at(row);
        const std::int64_t length = most.at(row);
        if (start < 0 || length < 0 || start > n_samples || length > n_samples - start) {
            throw py::value_error("a window of " + std::to_string(length) + " samples from " +
                                  std::to_string(start) + " lies outside of the " +
                                  std::to_string(n_samples) + " samples");
        }
    }
}

std::tuple<Cells, Tokens, Tokens, Tokens> shapes(const Tokens& row_tokens,
                                                 const Tokens& target_tokens, const Tokens& first,
                                                 const Tokens& most) {
    if (row_tokens.ndim() != 1) {
        throw py::value_error("row_tokens must have shape (n_samples,), got " +
                              arrays::text_of(arrays::shape_of(row_tokens)));
    }
    arrays::check_shape(target_tokens, "target_tokens", arrays::shape_of(row_tokens));
    check_windows(first, most, row_tokens.size());
    dynapipe::WindowShapes found;
    {
        const auto rows = arrays::entries_of(row_tokens);
        const auto targets = arrays::entries_of(target_tokens);
        const auto starts = arrays::entries_of(first);
        const auto lengths = arrays::entries_of(most);
        py::gil_scoped_release release;  // planner threads run side by side
        found = dynapipe::window_shapes(rows, targets, starts, lengths);
    }
    const auto n_rows = static_cast<std::size_t>(first.size());
    return {arrays::matrix(found.cells, n_rows), arrays::vector(found.shapes.n_rows),
            arrays::vector(found.shapes.row_tokens), arrays::vector(found.shapes.target_tokens)};
}

using Fits = py::array_t<bool, py::array::c_style>;

/// The kernel relies on shapes that exist.
void use(const py::array_t<std::int32_t, py::array::c_style>& shapes, const Fits& fits,
         const Tokens& largest, std::int32_t first,
         py::array_t<std::int32_t, py::array::c_style>& used) {
    if (shapes.ndim() != 2 || used.ndim() != 2 || shapes.shape(0) == 0 ||
        used.shape(0) != shapes.shape(0) || used.shape(1) < shapes.shape(1)) {
        throw py::value_error("used must have as many rows as shapes and no fewer columns, got " +
                              arrays::text_of(arrays::shape_of(used)) + " for " +
                              arrays::text_of(arrays::shape_of(shapes)));
    }
    arrays::check_shape(fits, "fits", {fits.size()});
    arrays::check_shape(largest, "largest", {shapes.shape(0)});
    for (const std::int32_t shape : arrays::entries_of(shapes)) {
        if (shape < -1 || shape >= fits.size()) {
            throw py::value_error("shapes holds " + std::to_string(shape) + ", but there are " +
                                  std::to_string(fits.size()));
        }
    }
    if (first < 0 || first > std::numeric_limits<std::int32_t>::max() - fits.size()) {
        throw py::value_error("too many shapes, " + std::to_string(fits.size()) + " from " +
                              std::to_string(first) + " on");
    }
    const auto known = arrays::entries_of(shapes);
    const auto can_run = arrays::entries_of(fits);
    const auto most = arrays::entries_of(largest);
    const std::span cells(used.mutable_data(), static_cast<std::size_t>(used.size()));
    py::gil_scoped_release release;  // planner threads run side by side
    dynapipe::use_windows(known, can_run, most, first, cells);
}

}  // namespace

void bind_window_shapes(py::module_& m) {
    m.def("window_shapes", &shapes, py::arg("row_tokens").noconvert(),
          py::arg("target_tokens").noconvert(), py::arg("first").noconvert(),
          py::arg("most").noconvert(),
          "Shapes of windows of neighbouring samples; see window_shapes.hpp.\n\n"
          "Returns (cells, n_rows, row_tokens, target_tokens).");
    m.def("use_windows", &use, py::arg("shapes").noconvert(), py::arg("fits").noconvert(),
          py::arg("largest").noconvert(), py::arg("first"), py::arg("used").noconvert(),
          "Writes which windows are used to an array that holds -1; see window_shapes.hpp.");
}
