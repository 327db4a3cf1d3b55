#include <pybind11/pybind11.h>

#include "windows.hpp"

namespace py = pybind11;

void bind_window_costs(py::module_& m) {
    py::class_<arrays::HeldTable>(m, "CostTable",
                                  "Costs of micro-batches on every stage; see "
                                  "dynapipe/cost/stage_costs.hpp.\n\n"
                                  "The arrays become read-only.")
        .def(py::init<arrays::Doubles, arrays::Kinds>(), py::arg("costs").noconvert(),
             py::arg("kind_of_stage").noconvert() = py::none());
    py::class_<windows::HeldCosts>(m, "WindowCosts",
                                   "Costs of all micro-batches of neighbouring samples; see "
                                   "dynapipe/batch/window_costs.hpp.\n\n"
                                   "The arrays become read-only.")
        .def(py::init<arrays::HeldTable, windows::Integers, windows::Spans, windows::Integers,
                      windows::Integers, windows::Counts>(),
             py::arg("costs"), py::arg("cells").noconvert(), py::arg("spans").noconvert(),
             py::arg("row_of_sample").noconvert(),
             py::arg("first_slice").noconvert() = windows::Integers(0),
             py::arg("later_slices").noconvert() = windows::Counts(0));
}
