#include <pybind11/pybind11.h>

#include "arrays.hpp"
#include "dynapipe/schedule/simulate.hpp"

namespace py = pybind11;
using arrays::Codes;
using arrays::Doubles;
using dynapipe::Link;
using dynapipe::Timeline;

namespace {

Timeline simulate(const Codes& order, const arrays::HeldTable& table, const Doubles& static_bytes,
                  const Link& link) {
    const dynapipe::StageCosts& costs = table.costs();
    const auto n_stages = static_cast<py::ssize_t>(costs.n_stages);
    arrays::check_shape(static_bytes, "static_bytes", {n_stages});
    arrays::check_orders(order, {n_stages}, costs.n_microbatches(), /*may_be_forward=*/true);
    const auto passes = arrays::entries_of(order);
    const auto occupied = arrays::entries_of(static_bytes);
    const py::gil_scoped_release release;  // planner threads run side by side
    return dynapipe::Simulator(costs, occupied, link).run(passes);
}

/// Times of passes, shape (n_stages, n_passes).
auto of_passes(std::vector<double> Timeline::* member) {
    return [member](const py::object& self) {
        const auto& timeline = self.cast<const Timeline&>();
        const std::vector<double>& times = timeline.*member;
        const std::size_t n_stages = timeline.peak_bytes.size();
        return py::array_t<double>({n_stages, times.size() / n_stages}, times.data(), self);
    };
}

}  // namespace

void bind_simulate(py::module_& m) {
    py::class_<Timeline>(m, "Timeline", "A schedule in time; see dynapipe/schedule/simulate.hpp.")
        .def_property_readonly("start_ms", of_passes(&Timeline::start_ms))
        .def_property_readonly("end_ms", of_passes(&Timeline::end_ms))
        .def_property_readonly("send_start_ms", of_passes(&Timeline::send_start_ms))
        .def_property_readonly("send_end_ms", of_passes(&Timeline::send_end_ms))
        .def_property_readonly("peak_bytes", arrays::shown(&Timeline::peak_bytes))
        .def_property_readonly("busy_ms", arrays::shown(&Timeline::busy_ms))
        .def_property_readonly("n_started", arrays::shown(&Timeline::n_started))
        .def_readonly("makespan_ms", &Timeline::makespan_ms);
    m.def("simulate", &simulate, py::arg("order").noconvert(), py::arg("costs"),
          py::arg("static_bytes").noconvert(), py::arg("link"),
          "Runs a schedule in time; see dynapipe/schedule/simulate.hpp.");
}
