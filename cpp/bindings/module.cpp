#include <pybind11/pybind11.h>

namespace py = pybind11;

void bind_costs(py::module_& m);
void bind_plan(py::module_& m);
void bind_price_windows(py::module_& m);
void bind_schedule(py::module_& m);
void bind_search(py::module_& m);

PYBIND11_MODULE(_kernels, m) {
    m.doc() = "The planner's kernels.";
    bind_costs(m);  // types of arguments come before the kernels that take them
    bind_schedule(m);
    bind_plan(m);
    bind_price_windows(m);
    bind_search(m);
}
