#include <pybind11/native_enum.h>
#include <pybind11/pybind11.h>

#include "dynapipe/cost/stage_costs.hpp"

namespace py = pybind11;
using dynapipe::Cost;

void bind_stage_costs(py::module_& m) {
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
}
