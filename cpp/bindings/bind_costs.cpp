#include <pybind11/native_enum.h>
#include <pybind11/pybind11.h>

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "arrays.hpp"
#include "dynapipe/cost/cost_grid.hpp"
#include "dynapipe/cost/estimate_costs.hpp"
#include "dynapipe/cost/stage_costs.hpp"
#include "windows.hpp"

namespace py = pybind11;

namespace {

using arrays::Doubles;
using dynapipe::Cost;
using Integers = py::array_t<std::int64_t, py::array::c_style>;
using Sides = py::array_t<std::int32_t, py::array::c_style>;
using RateValues = std::array<double, 6>;

void check_axis(const Integers& axis, const char* name) {
    const auto points = arrays::counts_of(axis, name, axis.size());
    if (points.empty() ||
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
    const py::ssize_t n = shape_rows.size();
    const dynapipe::ShapeList shapes{
        arrays::counts_of(shape_rows, "n_rows", n),
        arrays::counts_of(shape_row_tokens, "shapes' row_tokens", n),
        arrays::counts_of(shape_target_tokens, "shapes' target_tokens", n)};
    arrays::check_shape(costs, "costs", {n, n_kinds, arrays::kCosts});
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

dynapipe::TokenSide side_of(std::int32_t side) {
    if (side < 0 || side > static_cast<std::int32_t>(dynapipe::TokenSide::longer)) {
        throw py::value_error("sides must hold 0 to 2, got " + std::to_string(side));
    }
    return static_cast<dynapipe::TokenSide>(side);
}

std::vector<dynapipe::MicroBatchShape> shapes_of(const Doubles& n_rows, const Doubles& row_tokens,
                                                 const Doubles& target_tokens,
                                                 const Doubles& input_rows) {
    for (const auto* column : {&n_rows, &row_tokens, &target_tokens, &input_rows}) {
        arrays::check_shape(*column, "sizes", {n_rows.size()});
    }
    std::vector<dynapipe::MicroBatchShape> shapes;
    shapes.reserve(static_cast<std::size_t>(n_rows.size()));
    for (py::ssize_t i = 0; i < n_rows.size(); ++i) {
        shapes.push_back({n_rows.at(i), row_tokens.at(i), target_tokens.at(i), input_rows.at(i)});
    }
    return shapes;
}

/// Layers by their arrays, of n_layers each.
std::vector<dynapipe::LayerNeeds> layers_of(const Sides& sides, const Doubles& windows,
                                            const Doubles& needs, const Doubles& bytes) {
    constexpr auto kCounts = static_cast<py::ssize_t>(dynapipe::kTokenCounts);
    const py::ssize_t n = sides.size();
    const py::ssize_t n_needs = needs.ndim() == 3 ? needs.shape(2) : 0;
    if (n_needs < static_cast<py::ssize_t>(dynapipe::passing_bytes)) {
        throw py::value_error("needs must have shape (n_layers, " + std::to_string(kCounts) +
                              ", n_needs), got " + arrays::text_of(arrays::shape_of(needs)));
    }
    arrays::check_shape(sides, "sides", {n});
    arrays::check_shape(windows, "windows", {n});
    arrays::check_shape(needs, "needs", {n, kCounts, n_needs});
    arrays::check_shape(bytes, "own_bytes", {n, 5});
    std::vector<dynapipe::LayerNeeds> layers;
    for (py::ssize_t i = 0; i < n; ++i) {
        const auto n_numbers = static_cast<std::size_t>(kCounts * n_needs);
        layers.push_back(
            {side_of(sides.at(i)),
             windows.at(i),
             arrays::entries_of(needs).subspan(static_cast<std::size_t>(i) * n_numbers, n_numbers),
             {bytes.at(i, 0), bytes.at(i, 1), bytes.at(i, 2), bytes.at(i, 3), bytes.at(i, 4)}});
    }
    return layers;
}

void estimate(const Sides& sides, const Doubles& windows, const Doubles& needs,
              const Doubles& bytes, const RateValues& rates, const Doubles& counts,
              const Doubles& boundaries, const Doubles& n_rows, const Doubles& row_tokens,
              const Doubles& target_tokens, const Doubles& input_rows, Doubles& costs) {
    const auto layers = layers_of(sides, windows, needs, bytes);
    const py::ssize_t n_kinds = boundaries.ndim() == 2 ? boundaries.shape(0) : 0;
    arrays::check_shape(counts, "counts", {sides.size(), n_kinds});
    arrays::check_shape(boundaries, "boundaries", {n_kinds, 2});
    const auto shapes = shapes_of(n_rows, row_tokens, target_tokens, input_rows);
    arrays::check_shape(costs, "costs", {n_rows.size(), n_kinds, arrays::kCosts});
    static_assert(sizeof(dynapipe::Boundary) == 2 * sizeof(double));
    const std::span sent(reinterpret_cast<const dynapipe::Boundary*>(boundaries.data()),
                         static_cast<std::size_t>(n_kinds));
    auto* entries = reinterpret_cast<dynapipe::PassCosts*>(costs.mutable_data());
    const std::span result(entries, static_cast<std::size_t>(n_rows.size() * n_kinds));
    const dynapipe::Rates machine{rates[0], rates[1], rates[2], rates[3], rates[4], rates[5]};
    const py::gil_scoped_release release;  // planner threads run side by side
    dynapipe::estimate_costs(layers, machine, {arrays::entries_of(counts), sent}, shapes, result);
}

py::array_t<double> counts_of(std::int32_t side, double window, const Doubles& n_rows,
                              const Doubles& row_tokens, const Doubles& target_tokens,
                              const Doubles& input_rows) {
    std::vector<double> counts;
    for (const auto& shape : shapes_of(n_rows, row_tokens, target_tokens, input_rows)) {
        const auto of_shape = dynapipe::token_counts(side_of(side), window, shape);
        counts.insert(counts.end(), of_shape.begin(), of_shape.end());
    }
    return py::array_t<double>({n_rows.size(), static_cast<py::ssize_t>(dynapipe::kTokenCounts)},
                               counts.data());
}

}  // namespace

void bind_costs(py::module_& m) {
    py::native_enum<Cost>(m, "Cost", "enum.IntEnum", "Columns of a table of costs.")
        .value("FORWARD_MS", Cost::forward_ms)
        .value("BACKWARD_MS", Cost::backward_ms)
        .value("WEIGHT_MS", Cost::weight_ms)
        .value("SPLITTING_MS", Cost::splitting_ms)
        .value("BOUNDARY_BYTES", Cost::boundary_bytes)
        .value("STORED_BYTES", Cost::stored_bytes)
        .value("FORWARD_TRANSIENT_BYTES", Cost::forward_transient_bytes)
        .value("BACKWARD_TRANSIENT_BYTES", Cost::backward_transient_bytes)
        .finalize();
    py::class_<arrays::HeldTable>(m, "CostTable",
                                  "Costs of micro-batches on every stage; see "
                                  "dynapipe/cost/stage_costs.hpp.\n\n"
                                  "The arrays become read-only.")
        .def(py::init<arrays::Doubles, arrays::Kinds>(), py::arg("costs"),
             py::arg("kind_of_stage") = py::none());
    py::class_<windows::HeldCosts>(m, "WindowCosts",
                                   "Costs of all micro-batches of neighbouring samples; see "
                                   "dynapipe/batch/window_costs.hpp.\n\n"
                                   "The arrays become read-only.")
        .def(py::init<arrays::HeldTable, windows::Integers, windows::Spans, windows::Integers,
                      windows::Integers, windows::Counts>(),
             py::arg("costs"), py::arg("cells"), py::arg("spans"), py::arg("row_of_sample"),
             py::arg("first_slice") = windows::Integers(0),
             py::arg("later_slices") = windows::Counts(0));
    m.def("interpolate_costs", &interpolate, py::arg("rows"), py::arg("row_tokens"),
          py::arg("target_tokens"), py::arg("points"), py::arg("most_tokens"),
          py::arg("boundary_bytes_per_token"), py::arg("shape_rows"), py::arg("shape_row_tokens"),
          py::arg("shape_target_tokens"), py::arg("costs"),
          "Writes costs of micro-batches between the points of a grid to an array of shape "
          "(n_shapes, n_kinds, len(Cost)); see cost_grid.hpp.");
    m.def("add_costs", &add, py::arg("costs"), py::arg("others"),
          "Adds the costs of other parts of the same stages; see cost_grid.hpp.");
    m.def("estimate_costs", &estimate, py::arg("sides"), py::arg("windows"), py::arg("needs"),
          py::arg("own_bytes"), py::arg("rates"), py::arg("counts"), py::arg("boundaries"),
          py::arg("n_rows"), py::arg("row_tokens"), py::arg("target_tokens"), py::arg("input_rows"),
          py::arg("costs"),
          "Writes estimated costs of micro-batches to an array of shape (n_shapes, n_kinds, "
          "len(Cost)); see estimate_costs.hpp.");
    m.def("token_counts", &counts_of, py::arg("side"), py::arg("window"), py::arg("n_rows"),
          py::arg("row_tokens"), py::arg("target_tokens"), py::arg("input_rows"),
          "Tokens and pairs of tokens of micro-batches; see estimate_costs.hpp.");
}
