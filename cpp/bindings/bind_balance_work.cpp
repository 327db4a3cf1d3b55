#include <pybind11/pybind11.h>

#include <algorithm>
#include <cmath>

#include "arrays.hpp"
#include "dynapipe/batch/balance_work.hpp"

namespace py = pybind11;
using arrays::Doubles;

namespace {

/// The kernel relies on loads that can be ordered, and on work for every replica.
std::vector<std::vector<std::uint32_t>> balance(const Doubles& work_ms, std::size_t n_replicas) {
    arrays::check_shape(work_ms, "work_ms", {work_ms.size()});
    const std::span work = arrays::entries_of(work_ms);
    if (!std::all_of(work.begin(), work.end(), [](double ms) { return std::isfinite(ms); })) {
        throw py::value_error("work_ms must hold finite numbers");
    }
    if (n_replicas < 1 || n_replicas > work.size()) {
        throw py::value_error("n_replicas must be 1 to " + std::to_string(work.size()) + ", got " +
                              std::to_string(n_replicas));
    }
    const py::gil_scoped_release release;  // planner threads run side by side
    return dynapipe::balance_work(work, n_replicas);
}

}  // namespace

void bind_balance_work(py::module_& m) {
    m.def(
        "balance_work", &balance, py::arg("work_ms").noconvert(), py::arg("n_replicas"),
        "Assigns items to replicas with about the same work; see dynapipe/batch/balance_work.hpp.");
}
