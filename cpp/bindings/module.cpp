#include <pybind11/pybind11.h>

namespace py = pybind11;

void bind_split_samples(py::module_& m);

PYBIND11_MODULE(_kernels, m) {
    m.doc() = "The planner's kernels.";
    bind_split_samples(m);
}
