#include <pybind11/pybind11.h>

#include <algorithm>
#include <cstdint>
#include <limits>

#include "arrays.hpp"
#include "dynapipe/batch/window_shapes.hpp"

namespace py = pybind11;

namespace {

using Tokens = py::array_t<std::int64_t, py::array::c_style>;
using dynapipe::WindowShapes;

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

void check_begin(const Tokens& begin, py::ssize_t n_bundles) {
    arrays::check_shape(begin, "begin", {n_bundles + 1});
    const auto places = arrays::entries_of(begin);
    if (places.front() != 0 || !std::is_sorted(places.begin(), places.end())) {
        throw py::value_error("begin must ascend from 0");
    }
}

WindowShapes shapes(const Tokens& row_tokens, const Tokens& target_tokens, const Tokens& begin,
                    const Tokens& first, const Tokens& most) {
    if (row_tokens.ndim() != 1) {
        throw py::value_error("row_tokens must have shape (n_samples,), got " +
                              arrays::text_of(arrays::shape_of(row_tokens)));
    }
    arrays::check_shape(target_tokens, "target_tokens", arrays::shape_of(row_tokens));
    check_begin(begin, row_tokens.size());
    check_windows(first, most, row_tokens.size());
    const auto rows = arrays::entries_of(row_tokens);
    const auto targets = arrays::entries_of(target_tokens);
    const auto bundles = arrays::entries_of(begin);
    const auto starts = arrays::entries_of(first);
    const auto lengths = arrays::entries_of(most);
    const py::gil_scoped_release release;  // planner threads run side by side
    return dynapipe::window_shapes(rows, targets, bundles, starts, lengths);
}

/// A column of the shapes.
auto of_shapes(std::vector<std::int64_t> dynapipe::Shapes::* member) {
    return [member](const py::object& self) {
        const auto& sizes = self.cast<const WindowShapes&>().shapes.*member;
        return py::array_t<std::int64_t>(sizes.size(), sizes.data(), self);
    };
}

using Fits = py::array_t<bool, py::array::c_style>;

/// The kernel relies on rows that make up the cells, and on shapes that exist.
void use(py::array_t<std::int32_t, py::array::c_style>& cells, const Tokens& most, const Fits& fits,
         const Tokens& largest, std::int32_t first) {
    arrays::check_shape(cells, "cells", {cells.size()});
    arrays::check_shape(most, "most", {most.size()});
    arrays::check_shape(fits, "fits", {fits.size()});
    arrays::check_shape(largest, "largest", {most.size()});
    py::ssize_t n_left = cells.size();
    for (const std::int64_t n_cells : arrays::entries_of(most)) {
        if (n_cells < 0 || n_cells > n_left) {
            throw py::value_error("most holds " + std::to_string(n_cells) + ", but " +
                                  std::to_string(n_left) + " cells are left");
        }
        n_left -= n_cells;
    }
    if (n_left != 0) {
        throw py::value_error("most leaves " + std::to_string(n_left) + " cells over");
    }
    for (const std::int32_t shape : arrays::entries_of(cells)) {
        if (shape < 0 || shape >= fits.size()) {
            throw py::value_error("cells holds " + std::to_string(shape) + ", but there are " +
                                  std::to_string(fits.size()) + " shapes");
        }
    }
    if (first < 0 || first > std::numeric_limits<std::int32_t>::max() - fits.size()) {
        throw py::value_error("too many shapes, " + std::to_string(fits.size()) + " from " +
                              std::to_string(first) + " on");
    }
    const std::span windows(cells.mutable_data(), static_cast<std::size_t>(cells.size()));
    const auto n_cells = arrays::entries_of(most);
    const auto can_run = arrays::entries_of(fits);
    const auto sure = arrays::entries_of(largest);
    py::gil_scoped_release release;  // planner threads run side by side
    dynapipe::use_windows(windows, n_cells, can_run, sure, first);
}

}  // namespace

void bind_window_shapes(py::module_& m) {
    py::class_<WindowShapes>(m, "WindowShapes", "See dynapipe/batch/window_shapes.hpp.")
        .def_property_readonly("cells", arrays::shown(&WindowShapes::cells))
        .def_property_readonly("n_rows", of_shapes(&dynapipe::Shapes::n_rows))
        .def_property_readonly("row_tokens", of_shapes(&dynapipe::Shapes::row_tokens))
        .def_property_readonly("target_tokens", of_shapes(&dynapipe::Shapes::target_tokens));
    m.def("window_shapes", &shapes, py::arg("row_tokens").noconvert(),
          py::arg("target_tokens").noconvert(), py::arg("begin").noconvert(),
          py::arg("first").noconvert(), py::arg("most").noconvert(),
          "Shapes of windows of neighbouring samples; see window_shapes.hpp.");
    m.def("use_windows", &use, py::arg("cells").noconvert(), py::arg("most").noconvert(),
          py::arg("fits").noconvert(), py::arg("largest").noconvert(), py::arg("first"),
          "Leaves out windows that are not used, in place; see window_shapes.hpp.");
}
