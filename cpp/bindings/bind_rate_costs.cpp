#include <pybind11/pybind11.h>

#include <cstdint>
#include <tuple>

#include "arrays.hpp"
#include "dynapipe/rate_costs.hpp"

namespace py = pybind11;

namespace {

using arrays::Doubles;
using Integers = py::array_t<std::int32_t, py::array::c_style>;

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

/// The kernel relies on cells that exist.
void check_cells(const Integers& cells, py::ssize_t n_entries) {
    if (cells.ndim() != 3 || cells.size() == 0) {
        throw py::value_error("cells must have shape (n_modes, n_rows, max_samples), none 0, got " +
                              arrays::text_of(arrays::shape_of(cells)));
    }
    for (const std::int32_t cell : arrays::entries_of(cells)) {
        if (cell < -1 || cell >= n_entries) {
            throw py::value_error("cells holds " + std::to_string(cell) + ", but there are costs " +
                                  "0 to " + std::to_string(n_entries - 1));
        }
    }
}

std::tuple<Doubles, Doubles, Integers> cheapest(const Integers& cells, const Doubles& work_ms,
                                                const Doubles& fill_ms, const Doubles& memory_share,
                                                double largest_share) {
    check_cells(cells, work_ms.size());
    arrays::check_shape(work_ms, "work_ms", {work_ms.size()});
    arrays::check_shape(fill_ms, "fill_ms", {work_ms.size()});
    arrays::check_shape(memory_share, "memory_share", {work_ms.size()});
    const auto n_modes = static_cast<std::size_t>(cells.shape(0));
    const auto n_rows = static_cast<std::size_t>(cells.shape(1));
    const auto windows = arrays::entries_of(cells);
    const auto work = arrays::entries_of(work_ms);
    const auto fill = arrays::entries_of(fill_ms);
    const auto share = arrays::entries_of(memory_share);
    dynapipe::CheapestModes found;
    {
        py::gil_scoped_release release;  // planner threads run side by side
        found = dynapipe::cheapest_modes(windows, n_modes, work, fill, share, largest_share);
    }
    return {arrays::matrix(found.work_ms, n_rows), arrays::matrix(found.fill_ms, n_rows),
            arrays::matrix(found.mode, n_rows)};
}

}  // namespace

void bind_rate_costs(py::module_& m) {
    m.def("rate_costs", &rate, py::arg("costs").noconvert(), py::arg("room_bytes").noconvert(),
          "Compares micro-batches before they are scheduled; see rate_costs.hpp.\n\n"
          "Returns (work_ms, fill_ms, memory_share).");
    m.def("cheapest_modes", &cheapest, py::arg("cells").noconvert(), py::arg("work_ms").noconvert(),
          py::arg("fill_ms").noconvert(), py::arg("memory_share").noconvert(),
          py::arg("largest_share"),
          "Chooses the mode of every window; see rate_costs.hpp.\n\n"
          "Returns (work_ms, fill_ms, mode).");
}
