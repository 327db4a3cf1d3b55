#include <pybind11/pybind11.h>

#include "arrays.hpp"
#include "dynapipe/schedule/cyclic_schedule.hpp"

namespace py = pybind11;
using arrays::Doubles;

namespace {

py::array_t<dynapipe::PassCode> order(const arrays::HeldTable& table, const Doubles& limit_bytes) {
    const dynapipe::StageCosts& costs = table.costs();
    const auto limits = arrays::limits_of(limit_bytes, costs.n_stages);
    std::vector<dynapipe::PassCode> passes;
    {
        py::gil_scoped_release release;  // planner threads run side by side
        passes = dynapipe::cyclic_schedule(costs, limits);
    }
    return arrays::matrix(passes, costs.n_stages);
}

}  // namespace

void bind_cyclic_schedule(py::module_& m) {
    m.def("cyclic_schedule", &order, py::arg("costs"), py::arg("limit_bytes").noconvert(),
          "Orders passes within a memory limit; see dynapipe/schedule/cyclic_schedule.hpp.\n\n"
          "Returns pass codes of shape (n_stages, n_passes).");
}
