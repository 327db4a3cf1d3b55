#include <pybind11/pybind11.h>

#include <cmath>
#include <cstdint>

#include "arrays.hpp"
#include "dynapipe/cost/estimate_costs.hpp"

namespace py = pybind11;

namespace {

using arrays::Doubles;
using Sides = py::array_t<std::int32_t, py::array::c_style>;
using RateValues = std::array<double, 6>;

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

void bind_estimate_costs(py::module_& m) {
    m.def("estimate_costs", &estimate, py::arg("sides").noconvert(), py::arg("windows").noconvert(),
          py::arg("needs").noconvert(), py::arg("own_bytes").noconvert(), py::arg("rates"),
          py::arg("counts").noconvert(), py::arg("boundaries").noconvert(),
          py::arg("n_rows").noconvert(), py::arg("row_tokens").noconvert(),
          py::arg("target_tokens").noconvert(), py::arg("input_rows").noconvert(),
          py::arg("costs").noconvert(),
          "Writes estimated costs of micro-batches to an array of shape (n_shapes, n_kinds, "
          "len(Cost)); see estimate_costs.hpp.");
    m.def("token_counts", &counts_of, py::arg("side"), py::arg("window"),
          py::arg("n_rows").noconvert(), py::arg("row_tokens").noconvert(),
          py::arg("target_tokens").noconvert(), py::arg("input_rows").noconvert(),
          "Tokens and pairs of tokens of micro-batches; see estimate_costs.hpp.");
}
