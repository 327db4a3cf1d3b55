#include <pybind11/pybind11.h>

#include "arrays.hpp"
#include "dynapipe/cyclic_schedule.hpp"

namespace py = pybind11;
using arrays::Doubles;

namespace {

py::array_t<dynapipe::PassCode> order(const Doubles& stored_bytes,
                                      const Doubles& forward_transient_bytes,
                                      const Doubles& backward_transient_bytes,
                                      const Doubles& limit_bytes) {
    const auto shape = arrays::shape_of_costs(stored_bytes, "stored_bytes");
    arrays::check_shape(forward_transient_bytes, "forward_transient_bytes", shape);
    arrays::check_shape(backward_transient_bytes, "backward_transient_bytes", shape);
    arrays::check_shape(limit_bytes, "limit_bytes", {shape[1]});
    const dynapipe::StageMemory memory{
        arrays::entries_of(stored_bytes), arrays::entries_of(forward_transient_bytes),
        arrays::entries_of(backward_transient_bytes), static_cast<std::size_t>(shape[0]),
        static_cast<std::size_t>(shape[1])};
    std::vector<dynapipe::PassCode> found;
    {
        py::gil_scoped_release release;  // planner threads run side by side
        found = dynapipe::cyclic_schedule(memory, arrays::entries_of(limit_bytes));
    }
    return arrays::matrix(found, memory.n_stages);
}

}  // namespace

void bind_cyclic_schedule(py::module_& m) {
    m.def("cyclic_schedule", &order, py::arg("stored_bytes").noconvert(),
          py::arg("forward_transient_bytes").noconvert(),
          py::arg("backward_transient_bytes").noconvert(), py::arg("limit_bytes").noconvert(),
          "Orders passes within a memory limit; see dynapipe/cyclic_schedule.hpp.\n\n"
          "Returns pass codes of shape (n_stages, n_passes).");
}
