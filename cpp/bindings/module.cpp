#include <pybind11/pybind11.h>

PYBIND11_MODULE(_kernels, m) {
    m.doc() = "The planner's kernels.";
}
