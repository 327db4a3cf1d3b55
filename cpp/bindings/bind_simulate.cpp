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
    const Codes& order, const Doubles& table, const Doubles& static_bytes, double latency_ms,
    double bytes_per_ms, bool full_duplex) {
    const dynapipe::StageCosts costs = arrays::costs_of(table);
    arrays::check_shape(static_bytes, "static_bytes", {table.shape(1)});
    arrays::check_shape(order, "order", {table.shape(1), 2 * table.shape(0)});
    const std::size_t n_stages = costs.n_stages;
    check_order(order, n_stages, 2 * costs.n_microbatches());
    dynapipe::Timeline found;
    {
        py::gil_scoped_release release;  // planner threads run side by side
        found =
            dynapipe::simulate(arrays::entries_of(order), costs, arrays::entries_of(static_bytes),
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
    m.def("simulate", &simulate, py::arg("order").noconvert(), py::arg("costs").noconvert(),
          py::arg("static_bytes").noconvert(), py::arg("latency_ms"), py::arg("bytes_per_ms"),
          py::arg("full_duplex"),
          "Runs a schedule in time; see dynapipe/simulate.hpp.\n\n"
          "Returns (start_ms, end_ms, send_start_ms, send_end_ms, peak_bytes, busy_ms, "
          "n_started).");
}
