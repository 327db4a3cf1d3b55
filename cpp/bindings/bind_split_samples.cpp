#include <pybind11/pybind11.h>

#include <algorithm>
#include <cstdint>
#include <tuple>
#include <utility>

#include "arrays.hpp"
#include "dynapipe/split_samples.hpp"

namespace py = pybind11;

namespace {

using arrays::Doubles;
using arrays::shape_of;
using arrays::text_of;
using Lengths = py::array_t<std::int32_t, py::array::c_style>;

void check_tables(const Doubles& work_ms, const Doubles& fill_ms) {
    if (work_ms.ndim() != 2 || work_ms.size() == 0) {
        throw py::value_error("work_ms must have shape (n_lengths, max_samples), both >= 1, got " +
                              text_of(shape_of(work_ms)));
    }
    arrays::check_shape(fill_ms, "fill_ms", shape_of(work_ms));
}

void check_lengths(const Lengths& length_of_sample, py::ssize_t n_lengths) {
    if (length_of_sample.ndim() != 1 || length_of_sample.size() == 0) {
        throw py::value_error(
            "length_of_sample must have shape (n_samples,), n_samples >= 1, got " +
            text_of(shape_of(length_of_sample)));
    }
    const std::span lengths = arrays::entries_of(length_of_sample);
    const auto [least, greatest] = std::minmax_element(lengths.begin(), lengths.end());
    if (*least < 0 || *greatest >= n_lengths) {
        throw py::value_error("length_of_sample must name rows 0 to " +
                              std::to_string(n_lengths - 1) + ", got " + std::to_string(*least) +
                              " to " + std::to_string(*greatest));
    }
}

std::tuple<std::vector<std::size_t>, double, std::size_t> split(const Lengths& length_of_sample,
                                                                const Doubles& work_ms,
                                                                const Doubles& fill_ms,
                                                                std::size_t n_replicas) {
    check_tables(work_ms, fill_ms);
    check_lengths(length_of_sample, work_ms.shape(0));
    if (n_replicas < 1) {
        throw py::value_error("n_replicas must be >= 1, got " + std::to_string(n_replicas));
    }
    const std::span lengths = arrays::entries_of(length_of_sample);
    const dynapipe::MicroBatchTables tables{arrays::entries_of(work_ms),
                                            arrays::entries_of(fill_ms),
                                            static_cast<std::size_t>(work_ms.shape(1))};
    py::gil_scoped_release release;  // planner threads run side by side
    dynapipe::Split found = dynapipe::split_samples(lengths, tables, n_replicas);
    return {std::move(found.sizes), found.objective_ms, found.n_solves};
}

}  // namespace

void bind_split_samples(py::module_& m) {
    m.def("split_samples", &split, py::arg("length_of_sample").noconvert(),
          py::arg("work_ms").noconvert(), py::arg("fill_ms").noconvert(), py::arg("n_replicas"),
          "Cuts samples into consecutive micro-batches; see split_samples.hpp.\n\n"
          "Returns (sizes, objective_ms, n_solves).");
}
