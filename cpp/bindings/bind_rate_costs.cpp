#include <pybind11/pybind11.h>

#include <tuple>

#include "arrays.hpp"
#include "dynapipe/rate_costs.hpp"
#include "windows.hpp"

namespace py = pybind11;

namespace {

using arrays::Doubles;
using windows::Integers;

std::tuple<Doubles, Doubles, Doubles> rate(const Doubles& costs, const Doubles& room_bytes) {
    const dynapipe::StageCosts entries = arrays::costs_of(costs);
    arrays::check_shape(room_bytes, "room_bytes", {costs.shape(1)});
    const auto room = arrays::entries_of(room_bytes);
    dynapipe::Ratings found;
    {
        py::gil_scoped_release release;  // planner threads run side by side
        found = dynapipe::rate_costs(entries, room);
    }
    return {arrays::vector(found.work_ms), arrays::vector(found.fill_ms),
            arrays::vector(found.memory_share)};
}

std::tuple<windows::Spans, Doubles, Doubles, Integers> cheapest(
    const Integers& cells, const windows::Spans& spans, const Doubles& work_ms,
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
    dynapipe::CheapestModes found;
    {
        py::gil_scoped_release release;  // planner threads run side by side
        found = dynapipe::cheapest_modes(entries, ends, n_modes, work, fill, share, largest_share);
    }
    return {arrays::vector(found.begin), arrays::vector(found.work_ms),
            arrays::vector(found.fill_ms), arrays::vector(found.mode)};
}

}  // namespace

void bind_rate_costs(py::module_& m) {
    m.def("rate_costs", &rate, py::arg("costs").noconvert(), py::arg("room_bytes").noconvert(),
          "Compares micro-batches before they are scheduled; see rate_costs.hpp.\n\n"
          "Returns (work_ms, fill_ms, memory_share).");
    m.def("cheapest_modes", &cheapest, py::arg("cells").noconvert(), py::arg("spans").noconvert(),
          py::arg("work_ms").noconvert(), py::arg("fill_ms").noconvert(),
          py::arg("memory_share").noconvert(), py::arg("largest_share"),
          "Chooses the mode of every window; see rate_costs.hpp.\n\n"
          "Returns (begin, work_ms, fill_ms, mode).");
}
