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

std::tuple<Matrix, Matrix, Matrix, Matrix, Vector, Vector, Counts, double> simulate(
    const Codes& order, const Doubles& table, const Doubles& static_bytes, double latency_ms,
    double bytes_per_ms, bool full_duplex) {
    const dynapipe::StageCosts costs = arrays::costs_of(table);
    arrays::check_shape(static_bytes, "static_bytes", {table.shape(1)});
    arrays::check_orders(order, {table.shape(1)}, costs.n_microbatches());
    const std::size_t n_stages = costs.n_stages;
    dynapipe::Timeline found;
    const dynapipe::Link link = arrays::link_of(latency_ms, bytes_per_ms, full_duplex);
    {
        py::gil_scoped_release release;  // planner threads run side by side
        found = dynapipe::Simulator(costs, arrays::entries_of(static_bytes), link)
                    .run(arrays::entries_of(order));
    }
    return {arrays::matrix(found.start_ms, n_stages),
            arrays::matrix(found.end_ms, n_stages),
            arrays::matrix(found.send_start_ms, n_stages),
            arrays::matrix(found.send_end_ms, n_stages),
            arrays::vector(found.peak_bytes),
            arrays::vector(found.busy_ms),
            arrays::vector(found.n_started),
            found.makespan_ms};
}

}  // namespace

void bind_simulate(py::module_& m) {
    m.def("simulate", &simulate, py::arg("order").noconvert(), py::arg("costs").noconvert(),
          py::arg("static_bytes").noconvert(), py::arg("latency_ms"), py::arg("bytes_per_ms"),
          py::arg("full_duplex"),
          "Runs a schedule in time; see dynapipe/simulate.hpp.\n\n"
          "Returns (start_ms, end_ms, send_start_ms, send_end_ms, peak_bytes, busy_ms, "
          "n_started, makespan_ms).");
}
