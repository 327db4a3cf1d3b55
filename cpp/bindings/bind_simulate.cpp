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

/// The kernel relies on orders that hold each pass exactly once on every stage.
void check_rows(const Codes& orders, std::size_t n_passes, std::size_t n_microbatches) {
    const bool splits_backward = n_passes > 2 * n_microbatches;
    std::vector<bool> seen(dynapipe::kKinds * n_microbatches);
    const auto codes = arrays::entries_of(orders);
    for (std::size_t place = 0; place < codes.size(); ++place) {
        if (place % n_passes == 0) {
            seen.assign(seen.size(), false);
        }
        const auto code = static_cast<std::size_t>(codes[place]);  // a negative one becomes large
        const bool known =
            code < seen.size() &&
            (splits_backward || dynapipe::kind_of(codes[place]) != dynapipe::PassKind::kWeight);
        if (!known || seen[code]) {
            throw py::value_error("row " + std::to_string(place / n_passes) + " of " +
                                  "the order must hold each of the " + std::to_string(n_passes) +
                                  " passes once, but has code " + std::to_string(codes[place]) +
                                  (known ? " twice" : ", which is none of them"));
        }
        seen[code] = true;
    }
}

/// The number of passes of each stage, the last axis of an array of orders.
std::size_t checked_n_passes(const Codes& orders, std::vector<py::ssize_t> leading,
                             std::size_t n_microbatches) {
    const py::ssize_t n_passes = orders.ndim() == 0 ? 0 : orders.shape(orders.ndim() - 1);
    const auto n = static_cast<py::ssize_t>(n_microbatches);
    leading.push_back(n_passes == 3 * n ? 3 * n : 2 * n);
    arrays::check_shape(orders, "order", leading);
    check_rows(orders, static_cast<std::size_t>(n_passes), n_microbatches);
    return static_cast<std::size_t>(n_passes);
}

std::tuple<Matrix, Matrix, Matrix, Matrix, Vector, Vector, Counts, double> simulate(
    const Codes& order, const Doubles& table, const Doubles& static_bytes, double latency_ms,
    double bytes_per_ms, bool full_duplex) {
    const dynapipe::StageCosts costs = arrays::costs_of(table);
    arrays::check_shape(static_bytes, "static_bytes", {table.shape(1)});
    checked_n_passes(order, {table.shape(1)}, costs.n_microbatches());
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
        checked_n_passes(orders, {n_orders, table.shape(1)}, costs.n_microbatches());
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
