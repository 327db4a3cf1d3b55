#include <pybind11/pybind11.h>

#include <numeric>

#include "arrays.hpp"
#include "dynapipe/list_scheduler.hpp"

namespace py = pybind11;
using arrays::Codes;
using arrays::Doubles;

namespace {

py::array_t<dynapipe::PassCode> list_schedule(const Doubles& forward_ms, const Doubles& backward_ms,
                                              const Doubles& stored_bytes,
                                              const Doubles& forward_transient_bytes,
                                              const Doubles& backward_transient_bytes,
                                              const Doubles& boundary_bytes,
                                              const Doubles& limit_bytes, double latency_ms,
                                              double bytes_per_ms, bool full_duplex) {
    const auto shape = arrays::shape_of_costs(forward_ms, "forward_ms");
    arrays::check_shape(backward_ms, "backward_ms", shape);
    arrays::check_shape(stored_bytes, "stored_bytes", shape);
    arrays::check_shape(forward_transient_bytes, "forward_transient_bytes", shape);
    arrays::check_shape(backward_transient_bytes, "backward_transient_bytes", shape);
    arrays::check_shape(boundary_bytes, "boundary_bytes", {shape[0]});
    arrays::check_shape(limit_bytes, "limit_bytes", {shape[1]});
    const auto n_microbatches = static_cast<std::size_t>(shape[0]);
    const auto n_stages = static_cast<std::size_t>(shape[1]);
    std::vector<std::uint32_t> list(n_microbatches);
    std::iota(list.begin(), list.end(), 0U);
    std::vector<dynapipe::PassCode> order;
    double makespan_ms = 0.0;
    {
        py::gil_scoped_release release;  // planner threads run side by side
        dynapipe::ListScheduler scheduler(
            {arrays::entries_of(forward_ms), arrays::entries_of(backward_ms),
             arrays::entries_of(boundary_bytes)},
            {arrays::entries_of(stored_bytes), arrays::entries_of(forward_transient_bytes),
             arrays::entries_of(backward_transient_bytes), n_microbatches, n_stages},
            arrays::entries_of(limit_bytes), {latency_ms, bytes_per_ms, full_duplex},
            n_microbatches);
        makespan_ms = scheduler.run(list);
        order = scheduler.order();
    }
    if (makespan_ms == std::numeric_limits<double>::infinity()) {
        throw py::value_error("a micro-batch needs more than the limit of a stage");
    }
    return arrays::matrix(order, n_stages);
}

}  // namespace

void bind_list_scheduler(py::module_& m) {
    m.def("list_schedule", &list_schedule, py::arg("forward_ms").noconvert(),
          py::arg("backward_ms").noconvert(), py::arg("stored_bytes").noconvert(),
          py::arg("forward_transient_bytes").noconvert(),
          py::arg("backward_transient_bytes").noconvert(), py::arg("boundary_bytes").noconvert(),
          py::arg("limit_bytes").noconvert(), py::arg("latency_ms"), py::arg("bytes_per_ms"),
          py::arg("full_duplex"),
          "Schedules micro-batches while simulating them; see dynapipe/list_scheduler.hpp.\n\n"
          "Returns pass codes of shape (n_stages, n_passes).");
}
