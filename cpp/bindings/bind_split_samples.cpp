#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <string>
#include <tuple>

#include "dynapipe/split_samples.hpp"

namespace py = pybind11;

namespace {

// Not forcecast: a silent copy would hide that the caller passed the wrong type or layout.
using Lengths = py::array_t<std::int32_t, py::array::c_style>;
using Table = py::array_t<double, py::array::c_style>;

std::string shape_of(const py::array& array) { return py::str(array.attr("shape")); }

std::span<const double> entries_of(const Table& table) {
    return {table.data(), static_cast<std::size_t>(table.size())};
}

void check(const Lengths& length_of_sample, const Table& work_ms, const Table& fill_ms,
           std::size_t n_replicas) {
    if (length_of_sample.ndim() != 1 || length_of_sample.size() == 0) {
        throw py::value_error(
            "length_of_sample must have shape (n_samples,), n_samples >= 1, got " +
            shape_of(length_of_sample));
    }
    if (work_ms.ndim() != 2 || work_ms.size() == 0) {
        throw py::value_error("work_ms must have shape (n_lengths, max_samples), both >= 1, got " +
                              shape_of(work_ms));
    }
    if (!fill_ms.attr("shape").equal(work_ms.attr("shape"))) {
        throw py::value_error("fill_ms must have the shape of work_ms, " + shape_of(work_ms) +
                              ", got " + shape_of(fill_ms));
    }
    const std::span lengths(length_of_sample.data(),
                            static_cast<std::size_t>(length_of_sample.size()));
    const auto [least, greatest] = std::minmax_element(lengths.begin(), lengths.end());
    if (*least < 0 || *greatest >= work_ms.shape(0)) {
        throw py::value_error("length_of_sample must name rows 0 to " +
                              std::to_string(work_ms.shape(0) - 1) + ", got " +
                              std::to_string(*least) + " to " + std::to_string(*greatest));
    }
    if (n_replicas < 1) {
        throw py::value_error("n_replicas must be >= 1, got " + std::to_string(n_replicas));
    }
}

std::tuple<std::vector<std::size_t>, double, std::size_t> split(const Lengths& length_of_sample,
                                                                const Table& work_ms,
                                                                const Table& fill_ms,
                                                                std::size_t n_replicas) {
    check(length_of_sample, work_ms, fill_ms, n_replicas);
    const std::span lengths(length_of_sample.data(),
                            static_cast<std::size_t>(length_of_sample.size()));
    const dynapipe::MicroBatchTables tables{entries_of(work_ms), entries_of(fill_ms),
                                            static_cast<std::size_t>(work_ms.shape(1))};
    py::gil_scoped_release release;  // planner threads run side by side
    dynapipe::Split found = dynapipe::split_samples(lengths, tables, n_replicas);
    return {std::move(found.sizes), found.objective_ms, found.n_solves};
}

}  // namespace

void bind_split_samples(py::module_& m) {
    m.def("split_samples", &split, py::arg("length_of_sample").noconvert(),
          py::arg("work_ms").noconvert(), py::arg("fill_ms").noconvert(), py::arg("n_replicas"),
          "Cuts samples into consecutive micro-batches; see dynapipe/split_samples.hpp.\n\n"
          "Returns (sizes, objective_ms, n_solves).");
}
