#include <pybind11/pybind11.h>

#include <algorithm>
#include <cstdint>

#include "arrays.hpp"
#include "dynapipe/batch/split_samples.hpp"

namespace py = pybind11;

namespace {

using arrays::Doubles;
using arrays::shape_of;
using arrays::text_of;
using dynapipe::FrontPoint;
using dynapipe::Split;
using Lengths = py::array_t<std::int32_t, py::array::c_style>;
using Begins = py::array_t<std::int64_t, py::array::c_style>;

/// The kernels compare entries with the limits that they derive from them.
void check_entries(const Doubles& table, const char* name) {
    const std::span entries = arrays::entries_of(table);
    if (!std::all_of(entries.begin(), entries.end(), [](double entry) { return entry >= 0; })) {
        throw py::value_error(std::string(name) + " must hold no NaN and nothing negative");
    }
}

dynapipe::MicroBatchTables tables_of(const Begins& begin, const Doubles& work_ms,
                                     const Doubles& fill_ms) {
    const std::span rows = arrays::entries_of(begin);
    arrays::check_shape(work_ms, "work_ms", {work_ms.size()});
    if (begin.ndim() != 1 || rows.size() < 2 || rows.front() != 0 ||
        rows.back() != work_ms.size() || !std::is_sorted(rows.begin(), rows.end())) {
        throw py::value_error("begin must ascend from 0 to the " + std::to_string(work_ms.size()) +
                              " entries, got shape " + text_of(shape_of(begin)));
    }
    arrays::check_shape(fill_ms, "fill_ms", shape_of(work_ms));
    check_entries(work_ms, "work_ms");
    check_entries(fill_ms, "fill_ms");
    return {arrays::entries_of(work_ms), arrays::entries_of(fill_ms), rows};
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

Split split(const Lengths& length_of_sample, const Begins& begin, const Doubles& work_ms,
            const Doubles& fill_ms, std::size_t n_replicas) {
    const dynapipe::MicroBatchTables tables = tables_of(begin, work_ms, fill_ms);
    check_lengths(length_of_sample, begin.size() - 1);
    if (n_replicas < 1) {
        throw py::value_error("n_replicas must be >= 1, got " + std::to_string(n_replicas));
    }
    const std::span lengths = arrays::entries_of(length_of_sample);
    const py::gil_scoped_release release;  // planner threads run side by side
    return dynapipe::split_samples(lengths, tables, n_replicas);
}

std::vector<FrontPoint> front(const Lengths& length_of_sample, const Begins& begin,
                              const Doubles& work_ms, const Doubles& fill_ms) {
    const dynapipe::MicroBatchTables tables = tables_of(begin, work_ms, fill_ms);
    check_lengths(length_of_sample, begin.size() - 1);
    const std::span lengths = arrays::entries_of(length_of_sample);
    const py::gil_scoped_release release;
    return dynapipe::split_front(lengths, tables);
}

}  // namespace

void bind_split_samples(py::module_& m) {
    py::class_<Split>(m, "Split", "See dynapipe/batch/split_samples.hpp.")
        .def_readonly("sizes", &Split::sizes)
        .def_readonly("objective_ms", &Split::objective_ms)
        .def_readonly("n_solves", &Split::n_solves);
    py::class_<FrontPoint>(m, "FrontPoint", "See dynapipe/batch/split_samples.hpp.")
        .def_readonly("fill_ms", &FrontPoint::fill_ms)
        .def_readonly("work_ms", &FrontPoint::work_ms)
        .def_readonly("sizes", &FrontPoint::sizes);
    m.def("split_samples", &split, py::arg("length_of_sample").noconvert(),
          py::arg("begin").noconvert(), py::arg("work_ms").noconvert(),
          py::arg("fill_ms").noconvert(), py::arg("n_replicas"),
          "Cuts samples into consecutive micro-batches; see split_samples.hpp.");
    m.def("split_front", &front, py::arg("length_of_sample").noconvert(),
          py::arg("begin").noconvert(), py::arg("work_ms").noconvert(),
          py::arg("fill_ms").noconvert(),
          "All splits that no other beats in fill and work; see split_samples.hpp.");
}
