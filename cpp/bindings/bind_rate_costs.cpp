#include <pybind11/pybind11.h>

#include "arrays.hpp"
#include "dynapipe/batch/rate_costs.hpp"

namespace py = pybind11;

namespace {

using arrays::Doubles;
using dynapipe::Ratings;

Ratings rate(const arrays::HeldTable& costs, const Doubles& room_bytes) {
    const dynapipe::StageCosts& entries = costs.costs();
    arrays::check_shape(room_bytes, "room_bytes", {static_cast<py::ssize_t>(entries.n_stages)});
    const auto room = arrays::entries_of(room_bytes);
    const py::gil_scoped_release release;  // planner threads run side by side
    return dynapipe::rate_costs(entries, room);
}

}  // namespace

void bind_rate_costs(py::module_& m) {
    py::class_<Ratings>(m, "Ratings", "See dynapipe/batch/rate_costs.hpp.")
        .def_property_readonly("work_ms", arrays::shown(&Ratings::work_ms))
        .def_property_readonly("fill_ms", arrays::shown(&Ratings::fill_ms))
        .def_property_readonly("memory_share", arrays::shown(&Ratings::memory_share));
    m.def("rate_costs", &rate, py::arg("costs"), py::arg("room_bytes").noconvert(),
          "Compares micro-batches before they are scheduled; see rate_costs.hpp.");
}
