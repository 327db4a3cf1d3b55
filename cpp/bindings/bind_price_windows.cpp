#include <pybind11/functional.h>
#include <pybind11/pybind11.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <tuple>
#include <utility>

#include "arrays.hpp"
#include "dynapipe/batch/price_windows.hpp"

namespace py = pybind11;

namespace {

using arrays::Doubles;
using Counts = py::array_t<std::int64_t, py::array::c_style>;
using Known = std::tuple<double, double, double>;

/// Sums of these stay exact.
constexpr double kMostPairs = 4e18;

dynapipe::KnownRows known_of(const Known& known) {
    return {std::get<0>(known), std::get<1>(known), std::get<2>(known)};
}

dynapipe::OrderedSamples samples_of(const Counts& inputs, const Counts& targets,
                                    const Counts& n_documents, const Counts& pairs,
                                    const Counts& begin) {
    const auto n_samples = static_cast<std::int64_t>(inputs.size());
    double n_pairs = 0.0;
    for (const auto& [column, name] : {std::pair(&inputs, "inputs"), std::pair(&targets, "targets"),
                                       std::pair(&n_documents, "n_documents")}) {
        arrays::counts_of(*column, name, inputs.size());
    }
    arrays::check_shape(pairs, "pairs", arrays::shape_of(inputs));
    for (py::ssize_t i = 0; i < inputs.size(); ++i) {
        const auto both = static_cast<double>(inputs.at(i) + targets.at(i));
        n_pairs += std::max(static_cast<double>(pairs.at(i)), both * both);
        if (inputs.at(i) < 1 || pairs.at(i) < 1) {
            throw py::value_error("inputs and pairs must hold numbers from 1");
        }
    }
    if (!(n_pairs < kMostPairs)) {
        throw py::value_error("the samples have too many pairs of tokens");
    }
    const auto places = arrays::entries_of(begin);
    if (begin.ndim() != 1 || places.size() < 2 || places.front() != 0 ||
        places.back() != n_samples ||
        std::adjacent_find(places.begin(), places.end(), std::greater_equal<>()) != places.end()) {
        throw py::value_error(
            "begin must ascend from 0 to the number of samples, of which there "
            "must be one");
    }
    return {arrays::entries_of(inputs), arrays::entries_of(targets),
            arrays::entries_of(n_documents), arrays::entries_of(pairs), places};
}

dynapipe::StageRoom room_of(const Doubles& room_bytes, const arrays::Kinds& kind_of_stage) {
    if (room_bytes.ndim() != 1 || room_bytes.size() == 0) {
        throw py::value_error("room_bytes must have shape (n_stages,), n_stages >= 1, got " +
                              arrays::text_of(arrays::shape_of(room_bytes)));
    }
    dynapipe::StageRoom stages{arrays::entries_of(room_bytes)};
    if (kind_of_stage) {
        const auto most = static_cast<std::int32_t>(room_bytes.size() - 1);
        stages.kind_of_stage =
            arrays::checked(*kind_of_stage, "kind_of_stage", arrays::shape_of(room_bytes), 0, most);
        stages.n_kinds = 1 + static_cast<std::size_t>(*std::max_element(
                                 stages.kind_of_stage.begin(), stages.kind_of_stage.end()));
    }
    return stages;
}

/// Costs as an array that keeps their table: whoever prices may keep the array, too.
py::array_t<double> view(const dynapipe::CostBlock& costs, std::size_t n_costs,
                         const dynapipe::StageRoom& stages) {
    using Table = std::shared_ptr<std::vector<dynapipe::PassCosts>>;
    const py::capsule owner(new Table(costs.table),
                            [](void* table) { delete static_cast<Table*>(table); });
    const arrays::Shape shape{static_cast<py::ssize_t>(n_costs),
                              static_cast<py::ssize_t>(stages.n_kinds), arrays::kCosts};
    return py::array_t<double>(shape, reinterpret_cast<double*>(costs.data()), owner);
}

py::tuple price_windows(const Counts& inputs, const Counts& targets, const Counts& n_documents,
                        const Counts& pairs, const Counts& begin,
                        const std::vector<bool>& is_packed, double most_tokens,
                        std::int64_t token_multiple, const Known& known, const Doubles& room_bytes,
                        const arrays::Kinds& kind_of_stage, std::size_t n_modes,
                        const py::function& price) {
    const auto samples = samples_of(inputs, targets, n_documents, pairs, begin);
    const auto stages = room_of(room_bytes, kind_of_stage);
    if (token_multiple < 1 || token_multiple > std::int64_t{1} << 31 || is_packed.empty() ||
        n_modes < 1) {
        throw py::value_error("there must be a layout and a mode, and multiples from 1 to 2^31");
    }
    const auto call = [&](std::size_t layout, std::size_t mode, const dynapipe::Shapes& shapes,
                          const dynapipe::CostBlock& costs) {
        const py::gil_scoped_acquire acquire;
        price(layout, mode, arrays::owned(shapes.n_rows), arrays::owned(shapes.row_tokens),
              arrays::owned(shapes.target_tokens), arrays::owned(shapes.input_rows),
              view(costs, shapes.size(), stages));
    };
    dynapipe::PricedWindows priced;
    {
        const py::gil_scoped_release release;  // planner threads run side by side
        priced = dynapipe::price_windows(samples, is_packed, most_tokens, token_multiple,
                                         known_of(known), stages, n_modes, call);
    }
    auto& [n_rows, row_tokens, target_tokens, input_rows] = priced.shapes;
    const auto costs = view({priced.costs, 0}, priced.shapes.size(), stages);
    const auto n_spans = static_cast<py::ssize_t>(priced.spans.size());
    const auto all_modes = static_cast<py::ssize_t>(is_packed.size() * n_modes);
    return py::make_tuple(
        costs, arrays::owned(std::move(priced.cells)),
        arrays::owned(std::move(priced.spans), {all_modes, n_spans / all_modes / 2, 2}),
        arrays::owned(std::move(priced.row_of_bundle)), arrays::owned(std::move(n_rows)),
        arrays::owned(std::move(row_tokens)), arrays::owned(std::move(target_tokens)),
        arrays::owned(std::move(input_rows)));
}

using Sums = std::array<std::int64_t, 5>;

std::array<double, 4> equal_rows(std::int64_t row_tokens, std::int64_t target_tokens,
                                 const Sums& sums, const Known& known) {
    const auto [n_documents, inputs, input_pairs, targets, target_pairs] = sums;
    const auto shape = dynapipe::equal_rows(
        row_tokens, target_tokens, {n_documents, inputs, input_pairs, targets, target_pairs},
        known_of(known));
    return {shape.n_rows, shape.row_tokens, shape.target_tokens, shape.input_rows};
}

}  // namespace

void bind_price_windows(py::module_& m) {
    m.def("price_windows", &price_windows, py::arg("inputs"), py::arg("targets"),
          py::arg("n_documents"), py::arg("pairs"), py::arg("begin"), py::arg("is_packed"),
          py::arg("most_tokens"), py::arg("token_multiple"), py::arg("known"),
          py::arg("room_bytes"), py::arg("kind_of_stage") = py::none(), py::arg("n_modes"),
          py::arg("price"),
          "Looks up all windows that can run; see price_windows.hpp. Returns costs, cells, spans, "
          "rows "
          "of bundles, and the columns of shapes.");
    m.def("equal_rows", &equal_rows, py::arg("row_tokens"), py::arg("target_tokens"),
          py::arg("sums"), py::arg("known"),
          "Equal rows by which a packed micro-batch is looked up; see equal_rows.hpp.");
}
