#include <pybind11/pybind11.h>

#include <algorithm>
#include <cstdint>

#include "arrays.hpp"
#include "dynapipe/cost/cost_grid.hpp"

namespace py = pybind11;

namespace {

using arrays::Doubles;
using Integers = py::array_t<std::int64_t, py::array::c_style>;

void check_axis(const Integers& axis, const char* name) {
    arrays::check_counts(axis, name);
    const std::span points = arrays::entries_of(axis);
    if (axis.ndim() != 1 || points.empty() ||
        std::adjacent_find(points.begin(), points.end(), std::greater_equal<>()) != points.end()) {
        throw py::value_error(std::string(name) + " must be ascending and have a point at least");
    }
}

dynapipe::CostGrid grid_of(const Integers& rows, const Integers& row_tokens,
                           const Integers& target_tokens, const Doubles& points,
                           const Doubles& most_tokens) {
    check_axis(rows, "rows");
    check_axis(row_tokens, "row_tokens");
    check_axis(target_tokens, "target_tokens");
    const py::ssize_t n_kinds = points.ndim() == 5 ? points.shape(3) : 0;
    arrays::check_shape(
        points, "points",
        {rows.size(), row_tokens.size(), target_tokens.size(), n_kinds, arrays::kCosts});
    arrays::check_shape(most_tokens, "most_tokens", {n_kinds});
    const auto* entries = reinterpret_cast<const dynapipe::PassCosts*>(points.data());
    return {arrays::entries_of(rows),
            arrays::entries_of(row_tokens),
            arrays::entries_of(target_tokens),
            std::span(entries, static_cast<std::size_t>(points.size() / arrays::kCosts)),
            static_cast<std::size_t>(n_kinds),
            arrays::entries_of(most_tokens)};
}

void interpolate(const Integers& rows, const Integers& row_tokens, const Integers& target_tokens,
                 const Doubles& points, const Doubles& most_tokens, const Doubles& boundary,
                 const Doubles& shape_rows, const Doubles& shape_row_tokens,
                 const Doubles& shape_target_tokens, Doubles& costs) {
    const dynapipe::CostGrid grid = grid_of(rows, row_tokens, target_tokens, points, most_tokens);
    const auto n_kinds = static_cast<py::ssize_t>(grid.n_kinds);
    arrays::check_shape(boundary, "boundary_bytes_per_token", {n_kinds, 2});
    static_assert(sizeof(dynapipe::Boundary) == 2 * sizeof(double));
    const std::span boundaries(reinterpret_cast<const dynapipe::Boundary*>(boundary.data()),
                               grid.n_kinds);
    arrays::check_shape(shape_rows, "n_rows", {shape_rows.size()});
    arrays::check_shape(shape_row_tokens, "shapes' row_tokens", {shape_rows.size()});
    arrays::check_shape(shape_target_tokens, "shapes' target_tokens", {shape_rows.size()});
    arrays::check_counts(shape_rows, "n_rows");
    arrays::check_counts(shape_row_tokens, "shapes' row_tokens");
    arrays::check_counts(shape_target_tokens, "shapes' target_tokens");
    const dynapipe::ShapeList shapes{arrays::entries_of(shape_rows),
                                     arrays::entries_of(shape_row_tokens),
                                     arrays::entries_of(shape_target_tokens)};
    arrays::check_shape(costs, "costs", {shape_rows.size(), n_kinds, arrays::kCosts});
    auto* entries = reinterpret_cast<dynapipe::PassCosts*>(costs.mutable_data());
    const std::span result(entries, static_cast<std::size_t>(costs.size() / arrays::kCosts));
    py::gil_scoped_release release;  // planner threads run side by side
    dynapipe::interpolate_costs(grid, boundaries, shapes, result);
}

void add(Doubles& costs, const Doubles& others) {
    if (costs.ndim() == 0 || costs.shape(costs.ndim() - 1) != arrays::kCosts) {
        throw py::value_error("costs must have " + std::to_string(arrays::kCosts) +
                              " columns, got shape " + arrays::text_of(arrays::shape_of(costs)));
    }
    arrays::check_shape(others, "others", arrays::shape_of(costs));
    const auto n = static_cast<std::size_t>(costs.size() / arrays::kCosts);
    const std::span sums(reinterpret_cast<dynapipe::PassCosts*>(costs.mutable_data()), n);
    const std::span added(reinterpret_cast<const dynapipe::PassCosts*>(others.data()), n);
    const py::gil_scoped_release release;  // planner threads run side by side
    dynapipe::add_costs(sums, added);
}

}  // namespace

void bind_cost_grid(py::module_& m) {
    m.def("interpolate_costs", &interpolate, py::arg("rows").noconvert(),
          py::arg("row_tokens").noconvert(), py::arg("target_tokens").noconvert(),
          py::arg("points").noconvert(), py::arg("most_tokens").noconvert(),
          py::arg("boundary_bytes_per_token").noconvert(), py::arg("shape_rows").noconvert(),
          py::arg("shape_row_tokens").noconvert(), py::arg("shape_target_tokens").noconvert(),
          py::arg("costs").noconvert(),
          "Writes costs of micro-batches between the points of a grid to an array of shape "
          "(n_shapes, n_kinds, len(Cost)); see cost_grid.hpp.");
    m.def("add_costs", &add, py::arg("costs").noconvert(), py::arg("others").noconvert(),
          "Adds the costs of other parts of the same stages; see cost_grid.hpp.");
}
