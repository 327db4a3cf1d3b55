#include <pybind11/pybind11.h>

#ifdef __GLIBC__
#include <malloc.h>
#endif

namespace py = pybind11;

void bind_costs(py::module_& m);
void bind_plan(py::module_& m);
void bind_price_windows(py::module_& m);
void bind_schedule(py::module_& m);
void bind_search(py::module_& m);

PYBIND11_MODULE(_kernels, m) {
    m.doc() = "The planner's kernels.";
#ifdef __GLIBC__
    // The limits at which glibc itself arrives when a large block has been freed. With those of the
    // start, the tables of every plan are given back to the system: a quarter of planning.
    mallopt(M_MMAP_THRESHOLD, 32 << 20);
    mallopt(M_TRIM_THRESHOLD, 64 << 20);
#endif
    bind_costs(m);  // types of arguments come before the kernels that take them
    bind_schedule(m);
    bind_plan(m);
    bind_price_windows(m);
    bind_search(m);
}
