#include <pybind11/pybind11.h>

#include "arrays.hpp"
#include "dynapipe/schedule/stage_memory.hpp"

namespace py = pybind11;
using arrays::Codes;
using arrays::Doubles;
using dynapipe::Misfit;

namespace {

py::array_t<double> activation_peaks(const Codes& order, const arrays::HeldTable& table) {
    const dynapipe::StageCosts& costs = table.costs();
    const auto n_stages = static_cast<py::ssize_t>(costs.n_stages);
    arrays::check_orders(order, {n_stages}, costs.n_microbatches());
    const auto passes = arrays::entries_of(order);
    std::vector<double> peaks;
    {
        const py::gil_scoped_release release;  // planner threads run side by side
        peaks = dynapipe::activation_peaks(costs, passes);
    }
    return arrays::vector(peaks);
}

std::optional<Misfit> first_misfit(const arrays::HeldTable& table, const Doubles& limit_bytes) {
    const dynapipe::StageCosts& costs = table.costs();
    const auto limits = arrays::limits_of(limit_bytes, costs.n_stages);
    const py::gil_scoped_release release;  // planner threads run side by side
    return dynapipe::first_misfit(costs, limits);
}

}  // namespace

void bind_stage_memory(py::module_& m) {
    py::class_<Misfit>(m, "Misfit", "See dynapipe/schedule/stage_memory.hpp.")
        .def_readonly("microbatch", &Misfit::microbatch)
        .def_readonly("stage", &Misfit::stage)
        .def_readonly("needed_bytes", &Misfit::needed_bytes);
    m.def("activation_peaks", &activation_peaks, py::arg("order").noconvert(), py::arg("costs"),
          "Peak memory of the activations of every stage; see "
          "dynapipe/schedule/stage_memory.hpp.");
    m.def("first_misfit", &first_misfit, py::arg("costs"), py::arg("limit_bytes").noconvert(),
          "The first micro-batch that does not fit alone, or None; see "
          "dynapipe/schedule/stage_memory.hpp.");
}
