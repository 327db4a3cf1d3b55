#include <pybind11/pybind11.h>

#include "dynapipe/improve_plan.hpp"
#include "windows.hpp"

namespace py = pybind11;
using arrays::Doubles;
using windows::Integers;

namespace {

py::list improve_plan(const Doubles& costs, const Integers& cells, const windows::Spans& spans,
                      const Integers& row_of_sample, const Doubles& limit_bytes, double latency_ms,
                      double bytes_per_ms, bool full_duplex, bool split_backward,
                      const std::vector<std::vector<windows::Windows>>& starts, std::size_t effort,
                      std::uint64_t seed) {
    const dynapipe::WindowCosts window_costs =
        windows::costs_of(costs, cells, spans, row_of_sample);
    arrays::check_limits(limit_bytes, costs);
    if (starts.empty()) {
        throw py::value_error("there must be a start");
    }
    std::vector<dynapipe::Assignment> assignments;
    for (const auto& start : starts) {
        assignments.push_back(windows::assignment_of(start, window_costs));
    }
    std::vector<dynapipe::Improvement> found;
    const dynapipe::Link link = arrays::link_of(latency_ms, bytes_per_ms, full_duplex);
    {
        py::gil_scoped_release release;  // planner threads run side by side
        found = dynapipe::improve_plan(window_costs, assignments, arrays::entries_of(limit_bytes),
                                       link, split_backward, effort, seed);
    }
    py::list plans;
    for (const dynapipe::Improvement& plan : found) {
        plans.append(py::make_tuple(windows::arrays_of(plan.replicas), plan.makespan_ms,
                                    plan.effort, plan.n_moves));
    }
    return plans;
}

std::vector<double> makespans_ms(const Doubles& costs, const Integers& cells,
                                 const windows::Spans& spans, const Integers& row_of_sample,
                                 const Doubles& limit_bytes, double latency_ms, double bytes_per_ms,
                                 bool full_duplex, bool split_backward,
                                 const std::vector<std::vector<windows::Windows>>& plans) {
    const dynapipe::WindowCosts window_costs =
        windows::costs_of(costs, cells, spans, row_of_sample);
    arrays::check_limits(limit_bytes, costs);
    std::vector<dynapipe::Assignment> assignments;
    for (const auto& plan : plans) {
        assignments.push_back(windows::assignment_of(plan, window_costs));
    }
    const dynapipe::Link link = arrays::link_of(latency_ms, bytes_per_ms, full_duplex);
    const py::gil_scoped_release release;
    return dynapipe::makespans_ms(window_costs, assignments, arrays::entries_of(limit_bytes), link,
                                  split_backward);
}

}  // namespace

void bind_improve_plan(py::module_& m) {
    m.def("improve_plan", &improve_plan, py::arg("costs").noconvert(), py::arg("cells").noconvert(),
          py::arg("spans").noconvert(), py::arg("row_of_sample").noconvert(),
          py::arg("limit_bytes").noconvert(), py::arg("latency_ms"), py::arg("bytes_per_ms"),
          py::arg("full_duplex"), py::arg("split_backward"), py::arg("starts"), py::arg("effort"),
          py::arg("seed"),
          "Improves plans by a seeded local search; see dynapipe/improve_plan.hpp.\n\n"
          "Returns the best start and what rounds found that is better, the best last: per replica "
          "its windows (first, size, mode) in order, the makespan in ms, the effort of the round "
          "and the number of moves so far.");
    m.def("makespans_ms", &makespans_ms, py::arg("costs").noconvert(), py::arg("cells").noconvert(),
          py::arg("spans").noconvert(), py::arg("row_of_sample").noconvert(),
          py::arg("limit_bytes").noconvert(), py::arg("latency_ms"), py::arg("bytes_per_ms"),
          py::arg("full_duplex"), py::arg("split_backward"), py::arg("plans"),
          "The makespan of each plan in ms; see dynapipe/improve_plan.hpp.");
}
