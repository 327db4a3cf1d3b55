#include <pybind11/pybind11.h>

#include "arrays.hpp"
#include "dynapipe/batch/rate_costs.hpp"
#include "windows.hpp"

namespace py = pybind11;

namespace {

using arrays::Doubles;
using dynapipe::CheapestModes;
using dynapipe::Ratings;
using windows::Integers;

Ratings rate(const arrays::HeldTable& costs, const Doubles& room_bytes) {
    const dynapipe::StageCosts& entries = costs.costs();
    arrays::check_shape(room_bytes, "room_bytes", {static_cast<py::ssize_t>(entries.n_stages)});
    const auto room = arrays::entries_of(room_bytes);
    const py::gil_scoped_release release;  // planner threads run side by side
    return dynapipe::rate_costs(entries, room);
}

CheapestModes cheapest(const Integers& cells, const windows::Spans& spans, const Doubles& work_ms,
                       const Doubles& fill_ms, const Doubles& memory_share, double largest_share) {
    windows::check_cells(cells, spans, work_ms.size());
    arrays::check_shape(work_ms, "work_ms", {work_ms.size()});
    arrays::check_shape(fill_ms, "fill_ms", {work_ms.size()});
    arrays::check_shape(memory_share, "memory_share", {work_ms.size()});
    const auto n_modes = static_cast<std::size_t>(spans.shape(0));
    const auto entries = arrays::entries_of(cells);
    const auto ends = arrays::entries_of(spans);
    const auto work = arrays::entries_of(work_ms);
    const auto fill = arrays::entries_of(fill_ms);
    const auto share = arrays::entries_of(memory_share);
    const py::gil_scoped_release release;
    return dynapipe::cheapest_modes(entries, ends, n_modes, work, fill, share, largest_share);
}

}  // namespace

void bind_rate_costs(py::module_& m) {
    py::class_<Ratings>(m, "Ratings", "See dynapipe/batch/rate_costs.hpp.")
        .def_property_readonly("work_ms", arrays::shown(&Ratings::work_ms))
        .def_property_readonly("fill_ms", arrays::shown(&Ratings::fill_ms))
        .def_property_readonly("memory_share", arrays::shown(&Ratings::memory_share));
    py::class_<CheapestModes>(m, "CheapestModes", "See dynapipe/batch/rate_costs.hpp.")
        .def_property_readonly("begin", arrays::shown(&CheapestModes::begin))
        .def_property_readonly("work_ms", arrays::shown(&CheapestModes::work_ms))
        .def_property_readonly("fill_ms", arrays::shown(&CheapestModes::fill_ms))
        .def_property_readonly("mode", arrays::shown(&CheapestModes::mode));
    m.def("rate_costs", &rate, py::arg("costs"), py::arg("room_bytes").noconvert(),
          "Compares micro-batches before they are scheduled; see rate_costs.hpp.");
    m.def("cheapest_modes", &cheapest, py::arg("cells").noconvert(), py::arg("spans").noconvert(),
          py::arg("work_ms").noconvert(), py::arg("fill_ms").noconvert(),
          py::arg("memory_share").noconvert(), py::arg("largest_share"),
          "Chooses the mode of every window; see rate_costs.hpp.");
}
