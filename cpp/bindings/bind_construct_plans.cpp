#include <pybind11/pybind11.h>

#include "dynapipe/construct_plans.hpp"
#include "dynapipe/least_makespan.hpp"
#include "windows.hpp"

namespace py = pybind11;
using arrays::Doubles;
using windows::Integers;

namespace {

py::list construct_plans(const Doubles& costs, const Integers& cells, const windows::Spans& spans,
                         const Integers& row_of_sample, const Doubles& limit_bytes,
                         double latency_ms, double bytes_per_ms, bool full_duplex,
                         bool split_backward, std::size_t n_replicas, std::size_t n_kept,
                         std::size_t n_refined) {
    const dynapipe::WindowCosts window_costs =
        windows::costs_of(costs, cells, spans, row_of_sample);
    arrays::check_limits(limit_bytes, costs);
    if (n_kept < 1 || n_replicas < 1 || n_replicas > window_costs.n_samples()) {
        throw py::value_error("n_kept must be at least 1 and n_replicas 1 to " +
                              std::to_string(window_costs.n_samples()) + ", got " +
                              std::to_string(n_kept) + " and " + std::to_string(n_replicas));
    }
    std::vector<dynapipe::ConstructedPlan> found;
    const dynapipe::Link link = arrays::link_of(latency_ms, bytes_per_ms, full_duplex);
    {
        py::gil_scoped_release release;  // planner threads run side by side
        found = dynapipe::construct_plans(window_costs, arrays::entries_of(limit_bytes), link,
                                          n_replicas, split_backward, n_kept, n_refined);
    }
    py::list plans;
    for (const dynapipe::ConstructedPlan& plan : found) {
        plans.append(py::make_tuple(windows::arrays_of(plan.replicas), plan.makespan_ms,
                                    plan.memory_price, plan.longest_ms, plan.balances_fill,
                                    plan.n_rebalanced));
    }
    return plans;
}

double least_makespan_ms(const Doubles& costs, const Integers& cells, const windows::Spans& spans,
                         const Integers& row_of_sample, const Doubles& limit_bytes,
                         double latency_ms, double bytes_per_ms, bool full_duplex,
                         bool split_backward, std::size_t n_replicas) {
    const dynapipe::WindowCosts window_costs =
        windows::costs_of(costs, cells, spans, row_of_sample);
    arrays::check_limits(limit_bytes, costs);
    if (n_replicas < 1) {
        throw py::value_error("n_replicas must be at least 1");
    }
    const dynapipe::Link link = arrays::link_of(latency_ms, bytes_per_ms, full_duplex);
    const auto limits = arrays::entries_of(limit_bytes);
    const py::gil_scoped_release release;
    return dynapipe::least_makespan_ms(window_costs, limits, link, split_backward, n_replicas);
}

}  // namespace

void bind_construct_plans(py::module_& m) {
    m.def("construct_plans", &construct_plans, py::arg("costs").noconvert(),
          py::arg("cells").noconvert(), py::arg("spans").noconvert(),
          py::arg("row_of_sample").noconvert(), py::arg("limit_bytes").noconvert(),
          py::arg("latency_ms"), py::arg("bytes_per_ms"), py::arg("full_duplex"),
          py::arg("split_backward"), py::arg("n_replicas"), py::arg("n_kept"), py::arg("n_refined"),
          "Builds plans from rules and keeps the best; see dynapipe/construct_plans.hpp.\n\n"
          "Returns per plan its windows (first, size, mode) per replica, the makespan in ms, and "
          "the price of memory, the limit in ms on micro-batches of several samples, whether fill "
          "was balanced, and how often replicas were balanced anew.");
    m.def("least_makespan_ms", &least_makespan_ms, py::arg("costs").noconvert(),
          py::arg("cells").noconvert(), py::arg("spans").noconvert(),
          py::arg("row_of_sample").noconvert(), py::arg("limit_bytes").noconvert(),
          py::arg("latency_ms"), py::arg("bytes_per_ms"), py::arg("full_duplex"),
          py::arg("split_backward"), py::arg("n_replicas"),
          "A makespan in ms that no plan of windows can beat; see dynapipe/least_makespan.hpp.");
}
