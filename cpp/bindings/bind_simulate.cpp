#include <pybind11/pybind11.h>

#include <tuple>

#include "arrays.hpp"
#include "dynapipe/simulate.hpp"

namespace py = pybind11;
using arrays::Codes;
using arrays::Doubles;

namespace {

using Matrix = py::array_t<double>;
using Vector = py::array_t<double>;
using Counts = py::array_t<std::size_t>;

/// The kernel relies on an order that holds each pass exactly once on every stage.
void check_order(const Codes& order, std::size_t n_stages, std::size_t n_passes) {
    for (std::size_t stage = 0; stage < n_stages; ++stage) {
        std::vector<bool> seen(n_passes, false);
        for (const auto code : arrays::entries_of(order).subspan(stage * n_passes, n_passes)) {
            const auto place = static_cast<std::size_t>(code);  // a negative one becomes large
            if (place >= n_passes || seen[place]) {
                throw py::value_error("stage " + std::to_string(stage) +
                                      " must run each pass 0 to " + std::to_string(n_passes - 1) +
                                      " once, but its order has " + std::to_string(code) +
                                      (place >= n_passes ? "" : " twice"));
            }
            seen[place] = true;
        }
    }
}

std::tuple<Matrix, Matrix, Matrix, Matrix, Vector, Vector, Counts> simulate(
    const Codes& order, const Doubles& forward_ms, const Doubles& backward_ms,
    const Doubles& stored_bytes, const Doubles& forward_transient_bytes,
    const Doubles& backward_transient_bytes, const Doubles& boundary_bytes,
    const Doubles& static_bytes, double latency_ms, double bytes_per_ms, bool full_duplex) {
    const auto shape = arrays::shape_of_costs(forward_ms, "forward_ms");
    arrays::check_shape(backward_ms, "backward_ms", shape);
    arrays::check_shape(stored_bytes, "stored_bytes", shape);
    arrays::check_shape(forward_transient_bytes, "forward_transient_bytes", shape);
    arrays::check_shape(backward_transient_bytes, "backward_transient_bytes", shape);
    arrays::check_shape(boundary_bytes, "boundary_bytes", {shape[0]});
    arrays::check_shape(static_bytes, "static_bytes", {shape[1]});
    arrays::check_shape(order, "order", {shape[1], 2 * shape[0]});
    const auto n_microbatches = static_cast<std::size_t>(shape[0]);
    const auto n_stages = static_cast<std::size_t>(shape[1]);
    check_order(order, n_stages, 2 * n_microbatches);
    const dynapipe::StageTimes times{arrays::entries_of(forward_ms),
                                     arrays::entries_of(backward_ms),
                                     arrays::entries_of(boundary_bytes)};
    const dynapipe::StageMemory memory{
        arrays::entries_of(stored_bytes), arrays::entries_of(forward_transient_bytes),
        arrays::entries_of(backward_transient_bytes), n_microbatches, n_stages};
    dynapipe::Timeline found;
    {
        py::gil_scoped_release release;  // planner threads run side by side
        found = dynapipe::simulate(arrays::entries_of(order), times, memory,
                                   arrays::entries_of(static_bytes),
                                   {latency_ms, bytes_per_ms, full_duplex});
    }
    return {arrays::matrix(found.start_ms, n_stages),
            arrays::matrix(found.end_ms, n_stages),
            arrays::matrix(found.send_start_ms, n_stages),
            arrays::matrix(found.send_end_ms, n_stages),
            arrays::vector(found.peak_bytes),
            arrays::vector(found.busy_ms),
            arrays::vector(found.n_started)};
}

}  // namespace

void bind_simulate(py::module_& m) {
    m.def("simulate", &simulate, py::arg("order").noconvert(), py::arg("forward_ms").noconvert(),
          py::arg("backward_ms").noconvert(), py::arg("stored_bytes").noconvert(),
          py::arg("forward_transient_bytes").noconvert(),
          py::arg("backward_transient_bytes").noconvert(), py::arg("boundary_bytes").noconvert(),
          py::arg("static_bytes").noconvert(), py::arg("latency_ms"), py::arg("bytes_per_ms"),
          py::arg("full_duplex"),
          "Runs a schedule in time; see dynapipe/simulate.hpp.\n\n"
          "Returns (start_ms, end_ms, send_start_ms, send_end_ms, peak_bytes, busy_ms, "
          "n_started).");
}
