#include <pybind11/pybind11.h>

#include "dynapipe/schedule/least_makespan.hpp"
#include "dynapipe/search/construct_plans.hpp"
#include "windows.hpp"

namespace py = pybind11;
using arrays::Doubles;
using dynapipe::ConstructedPlan;
using windows::HeldSimulator;

namespace {

std::vector<ConstructedPlan> construct_plans(HeldSimulator& simulator, const Doubles& slowness,
                                             std::size_t n_kept) {
    const auto replicas = windows::slowness_of(slowness);
    const std::size_t n_samples = simulator.costs().n_samples();
    const std::size_t n_replicas = replicas.size();
    if (n_kept < 1 || n_replicas < 1 || n_replicas > n_samples) {
        throw py::value_error("n_kept must be at least 1 and n_replicas 1 to " +
                              std::to_string(n_samples) + ", got " + std::to_string(n_kept) +
                              " and " + std::to_string(n_replicas));
    }
    const py::gil_scoped_release release;  // planner threads run side by side
    return dynapipe::construct_plans(simulator.simulator(), replicas, n_kept);
}

double least_makespan_ms(HeldSimulator& held, std::size_t n_replicas) {
    if (n_replicas < 1) {
        throw py::value_error("n_replicas must be at least 1");
    }
    const py::gil_scoped_release release;
    const dynapipe::ReplicaSimulator& simulator = held.simulator();
    return dynapipe::least_makespan_ms(simulator.windows(), simulator.limit_bytes(),
                                       simulator.link(), simulator.split_backward(), n_replicas);
}

}  // namespace

void bind_construct_plans(py::module_& m) {
    py::class_<ConstructedPlan>(m, "ConstructedPlan", "See dynapipe/search/construct_plans.hpp.")
        .def_property_readonly(
            "replicas",
            [](const ConstructedPlan& plan) { return windows::arrays_of(plan.replicas); })
        .def_readonly("makespan_ms", &ConstructedPlan::makespan_ms)
        .def_property_readonly("memory_price",
                               [](const ConstructedPlan& plan) { return plan.cut.memory_price; })
        .def_property_readonly("longest_ms",
                               [](const ConstructedPlan& plan) { return plan.cut.longest_ms; })
        .def_property_readonly("max_kept_share",
                               [](const ConstructedPlan& plan) { return plan.cut.max_kept_share; })
        .def_readonly("balances_fill", &ConstructedPlan::balances_fill)
        .def_readonly("n_rebalanced", &ConstructedPlan::n_rebalanced);
    m.def("construct_plans", &construct_plans, py::arg("simulator"),
          py::arg("slowness").noconvert(), py::arg("n_kept"),
          "Builds plans from rules and keeps the best; see dynapipe/search/construct_plans.hpp.");
    m.def("least_makespan_ms", &least_makespan_ms, py::arg("simulator"), py::arg("n_replicas"),
          "A makespan in ms that no plan of windows can beat; see "
          "dynapipe/schedule/least_makespan.hpp.");
}
