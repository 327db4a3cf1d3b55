#include <pybind11/pybind11.h>

#include <cstdint>

#include "arrays.hpp"
#include "dynapipe/batch/short_tour.hpp"

namespace py = pybind11;

namespace {

using Coordinates = py::array_t<std::int64_t, py::array::c_style>;

Coordinates tour(const Coordinates& x, const Coordinates& y, std::size_t reach) {
    arrays::check_shape(x, "x", {x.size()});
    arrays::check_shape(y, "y", {x.size()});
    arrays::check_counts(x, "x");
    arrays::check_counts(y, "y");
    const auto xs = arrays::entries_of(x);
    const auto ys = arrays::entries_of(y);
    std::vector<std::int64_t> order;
    {
        py::gil_scoped_release release;  // planner threads run side by side
        order = dynapipe::short_tour(xs, ys, reach);
    }
    return arrays::vector(order);
}

}  // namespace

void bind_short_tour(py::module_& m) {
    m.def("short_tour", &tour, py::arg("x").noconvert(), py::arg("y").noconvert(), py::arg("reach"),
          "Orders points so that neighbours are near; see short_tour.hpp.");
}
