#include <pybind11/pybind11.h>

#include <cstdint>
#include <deque>

#include "arrays.hpp"
#include "dynapipe/batch/balance_work.hpp"
#include "dynapipe/search/find_plan.hpp"
#include "windows.hpp"

namespace py = pybind11;

namespace {

using arrays::Doubles;
using dynapipe::FoundPlan;

std::vector<std::vector<std::uint32_t>> balance(const Doubles& work_ms, std::size_t n_replicas) {
    const auto work = arrays::checked(work_ms, "work_ms", {work_ms.size()}, -arrays::kFinite,
                                      arrays::kFinite);  // loads that can be ordered
    if (n_replicas < 1 || n_replicas > work.size()) {
        throw py::value_error("n_replicas must be 1 to " + std::to_string(work.size()) + ", got " +
                              std::to_string(n_replicas));
    }
    const py::gil_scoped_release release;  // planner threads run side by side
    return dynapipe::balance_work(work, n_replicas);
}

std::vector<std::vector<FoundPlan>> find_plans(const std::vector<const windows::HeldCosts*>& tables,
                                               const Doubles& limit_bytes,
                                               const dynapipe::Link& link, bool split_backward,
                                               const Doubles& reduce_ms, const Doubles& slowness,
                                               std::size_t effort, std::uint64_t seed) {
    const auto replicas = arrays::checked(slowness, "slowness", {slowness.size()}, 1.0, 1e9);
    std::deque<dynapipe::ReplicaSimulator> simulators;
    std::vector<dynapipe::ReplicaSimulator*> of_tables;
    for (const windows::HeldCosts* held : tables) {
        const auto limits = arrays::limits_of(limit_bytes, held->costs().costs.n_stages);
        const auto reductions = arrays::reduce_of(reduce_ms, limits.size());
        const std::size_t n_samples = held->costs().n_samples();
        if (replicas.empty() || replicas.size() > n_samples) {
            throw py::value_error("slowness must hold 1 to " + std::to_string(n_samples) +
                                  " replicas, got " + std::to_string(replicas.size()));
        }
        of_tables.push_back(
            &simulators.emplace_back(held->costs(), limits, link, split_backward, reductions));
    }
    const py::gil_scoped_release release;  // planner threads run side by side
    return dynapipe::find_plans(of_tables, replicas, effort, seed);
}

}  // namespace

void bind_search(py::module_& m) {
    m.def(
        "balance_work", &balance, py::arg("work_ms"), py::arg("n_replicas"),
        "Assigns items to replicas with about the same work; see dynapipe/batch/balance_work.hpp.");
    py::class_<FoundPlan>(m, "FoundPlan", "See dynapipe/search/find_plan.hpp.")
        .def_property_readonly(
            "replicas", [](const FoundPlan& plan) { return windows::arrays_of(plan.replicas); })
        .def_readonly("makespan_ms", &FoundPlan::makespan_ms)
        .def_readonly("effort", &FoundPlan::effort)
        .def_readonly("n_moves", &FoundPlan::n_moves);
    m.def("find_plans", &find_plans, py::arg("windows"), py::arg("limit_bytes"), py::arg("link"),
          py::arg("split_backward"), py::arg("reduce_ms"), py::arg("slowness"), py::arg("effort"),
          py::arg("seed"),
          "Constructs plans and improves the best by local search; see "
          "dynapipe/search/find_plan.hpp.");
}
