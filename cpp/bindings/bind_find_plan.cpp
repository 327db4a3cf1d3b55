#include <pybind11/pybind11.h>

#include "dynapipe/search/find_plan.hpp"
#include "windows.hpp"

namespace py = pybind11;
using arrays::Doubles;
using dynapipe::FoundPlan;

namespace {

std::vector<FoundPlan> find_plan(const windows::HeldCosts& held, const Doubles& limit_bytes,
                                 const dynapipe::Link& link, bool split_backward,
                                 const Doubles& reduce_ms, const Doubles& slowness,
                                 std::size_t effort, std::uint64_t seed) {
    const auto limits = held.limits_of(limit_bytes);
    const auto reductions = arrays::reduce_of(reduce_ms, limits.size());
    const auto replicas = windows::slowness_of(slowness);
    const std::size_t n_samples = held.costs().n_samples();
    if (replicas.empty() || replicas.size() > n_samples) {
        throw py::value_error("slowness must hold 1 to " + std::to_string(n_samples) +
                              " replicas, got " + std::to_string(replicas.size()));
    }
    const py::gil_scoped_release release;  // planner threads run side by side
    dynapipe::ReplicaSimulator simulator(held.costs(), limits, link, split_backward, reductions);
    return dynapipe::find_plan(simulator, replicas, effort, seed);
}

}  // namespace

void bind_find_plan(py::module_& m) {
    py::class_<FoundPlan>(m, "FoundPlan", "See dynapipe/search/find_plan.hpp.")
        .def_property_readonly(
            "replicas", [](const FoundPlan& plan) { return windows::arrays_of(plan.replicas); })
        .def_readonly("makespan_ms", &FoundPlan::makespan_ms)
        .def_readonly("effort", &FoundPlan::effort)
        .def_readonly("n_moves", &FoundPlan::n_moves);
    m.def("find_plan", &find_plan, py::arg("windows"), py::arg("limit_bytes").noconvert(),
          py::arg("link"), py::arg("split_backward"), py::arg("reduce_ms").noconvert(),
          py::arg("slowness").noconvert(), py::arg("effort"), py::arg("seed"),
          "Constructs plans and improves the best by local search; see "
          "dynapipe/search/find_plan.hpp.");
}
