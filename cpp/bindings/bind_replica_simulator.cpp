#include <pybind11/pybind11.h>

#include "windows.hpp"

namespace py = pybind11;

void bind_replica_simulator(py::module_& m) {
    py::class_<windows::HeldSimulator>(m, "ReplicaSimulator",
                                       "Simulates the replicas of plans, and knows what it has "
                                       "simulated; see dynapipe/schedule/replica_simulator.hpp.")
        .def(py::init<const windows::HeldCosts&, const windows::Doubles&, const dynapipe::Link&,
                      bool, const windows::Doubles&>(),
             py::keep_alive<1, 2>(), py::arg("windows"), py::arg("limit_bytes").noconvert(),
             py::arg("link"), py::arg("split_backward"), py::arg("reduce_ms").noconvert());
}
