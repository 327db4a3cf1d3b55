#include <pybind11/pybind11.h>

#include "dynapipe/search/improve_plan.hpp"
#include "windows.hpp"

namespace py = pybind11;
using arrays::Doubles;
using dynapipe::Improvement;
using dynapipe::PlanSearch;
using windows::HeldSimulator;

namespace {

using Plans = std::vector<std::vector<windows::Windows>>;

std::vector<dynapipe::Assignment> assignments_of(const Plans& plans, const HeldSimulator& simulator,
                                                 std::size_t n_replicas) {
    std::vector<dynapipe::Assignment> assignments;
    for (const auto& plan : plans) {
        assignments.push_back(windows::assignment_of(plan, simulator.costs()));
        if (plan.size() != n_replicas) {
            throw py::value_error("a plan has " + std::to_string(plan.size()) +
                                  " replicas, and slowness " + std::to_string(n_replicas));
        }
    }
    return assignments;
}

PlanSearch search_from(HeldSimulator& simulator, const Doubles& slowness, const Plans& starts,
                       std::uint64_t seed) {
    const auto replicas = windows::slowness_of(slowness);
    if (starts.empty()) {
        throw py::value_error("there must be a start");
    }
    const auto assignments = assignments_of(starts, simulator, replicas.size());
    const py::gil_scoped_release release;  // planner threads run side by side
    return {simulator.simulator(), assignments, replicas, seed};
}

std::vector<double> makespans_ms(HeldSimulator& simulator, const Doubles& slowness,
                                 const Plans& plans, double give_up_ms) {
    const auto replicas = windows::slowness_of(slowness);
    const auto assignments = assignments_of(plans, simulator, replicas.size());
    const py::gil_scoped_release release;
    return dynapipe::makespans_ms(simulator.simulator(), assignments, replicas, give_up_ms);
}

}  // namespace

void bind_improve_plan(py::module_& m) {
    py::class_<Improvement>(m, "Improvement", "See dynapipe/search/improve_plan.hpp.")
        .def_property_readonly(
            "replicas", [](const Improvement& plan) { return windows::arrays_of(plan.replicas); })
        .def_readonly("makespan_ms", &Improvement::makespan_ms)
        .def_readonly("effort", &Improvement::effort)
        .def_readonly("n_moves", &Improvement::n_moves);
    py::class_<PlanSearch>(m, "PlanSearch", "See dynapipe/search/improve_plan.hpp.")
        .def(py::init(&search_from), py::keep_alive<1, 2>(), py::arg("simulator"),
             py::arg("slowness").noconvert(), py::arg("starts"), py::arg("seed"))
        .def("improve", &PlanSearch::improve, py::arg("effort"),
             py::call_guard<py::gil_scoped_release>());  // planner threads run side by side
    m.def("makespans_ms", &makespans_ms, py::arg("simulator"), py::arg("slowness").noconvert(),
          py::arg("plans"), py::arg("give_up_ms"),
          "The makespan of each plan in ms; see dynapipe/search/improve_plan.hpp.");
}
