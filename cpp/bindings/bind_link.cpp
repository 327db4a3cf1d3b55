#include <pybind11/pybind11.h>

#include <string>

#include "dynapipe/cost/link.hpp"

namespace py = pybind11;
using dynapipe::Link;

namespace {

/// Kernels compare times, which they could not if one were NaN.
Link link_of(double latency_ms, double bytes_per_ms, bool full_duplex) {
    if (!(latency_ms >= 0) || !(bytes_per_ms > 0)) {
        throw py::value_error("latency_ms must be at least 0 and bytes_per_ms above it, got " +
                              std::to_string(latency_ms) + " and " + std::to_string(bytes_per_ms));
    }
    return {latency_ms, bytes_per_ms, full_duplex};
}

}  // namespace

void bind_link(py::module_& m) {
    py::class_<Link>(m, "Link",
                     "A connection between neighbouring stages; see dynapipe/cost/link.hpp.")
        .def(py::init(&link_of), py::arg("latency_ms"), py::arg("bytes_per_ms"),
             py::arg("full_duplex"));
}
