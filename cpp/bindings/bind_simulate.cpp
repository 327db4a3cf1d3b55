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
    {
        py::gil_scoped_release release;  // planner threads run side by side
        found = dynapipe::Simulator(costs, arrays::entries_of(static_bytes),
                                    {latency_ms, bytes_per_ms, full_duplex})
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

Vector simulate_all(const Codes& orders, const Doubles& table, double latency_ms,
                    double bytes_per_ms, bool full_duplex) {
    const dynapipe::StageCosts costs = arrays::costs_of(table);
    const py::ssize_t n_orders = orders.ndim() == 0 ? 0 : orders.shape(0);
    const std::size_t n_passes =
        arrays::check_orders(orders, {n_orders, table.shape(1)}, costs.n_microbatches());
    const auto codes = arrays::entries_of(orders);
    std::vector<double> makespans_ms(static_cast<std::size_t>(n_orders));
    {
        py::gil_scoped_release release;  // planner threads run side by side
        const std::vector<double> nothing(costs.n_stages, 0.0);
        dynapipe::Simulator simulator(costs, nothing, {latency_ms, bytes_per_ms, full_duplex});
        const std::size_t size = costs.n_stages * n_passes;
        for (std::size_t k = 0; k < makespans_ms.size(); ++k) {
            makespans_ms[k] = simulator.run(codes.subspan(k * size, size)).makespan_ms;
        }
    }
    return arrays::vector(makespans_ms);
}

}  // namespace

void bind_simulate(py::module_& m) {
    m.def("simulate", &simulate, py::arg("order").noconvert(), py::arg("costs").noconvert(),
          py::arg("static_bytes").noconvert(), py::arg("latency_ms"), py::arg("bytes_per_ms"),
          py::arg("full_duplex"),
          "Runs a schedule in time; see dynapipe/simulate.hpp.\n\n"
          "Returns (start_ms, end_ms, send_start_ms, send_end_ms, peak_bytes, busy_ms, "
          "n_started, makespan_ms).");
    m.def("simulate_all", &simulate_all, py::arg("orders").noconvert(),
          py::arg("costs").noconvert(), py::arg("latency_ms"), py::arg("bytes_per_ms"),
          py::arg("full_duplex"),
          "Runs schedules of the same micro-batches in time.\n\n"
          "Returns the makespan of each; infinite if deadlocked.");
}
