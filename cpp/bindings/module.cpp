#include <pybind11/pybind11.h>

namespace py = pybind11;

void bind_balance_work(py::module_& m);
void bind_check_pipeline(py::module_& m);
void bind_cost_grid(py::module_& m);
void bind_cyclic_schedule(py::module_& m);
void bind_estimate_costs(py::module_& m);
void bind_find_plan(py::module_& m);
void bind_link(py::module_& m);
void bind_list_scheduler(py::module_& m);
void bind_place_transfers(py::module_& m);
void bind_price_windows(py::module_& m);
void bind_short_tour(py::module_& m);
void bind_simulate(py::module_& m);
void bind_split_samples(py::module_& m);
void bind_stage_costs(py::module_& m);
void bind_stage_memory(py::module_& m);
void bind_window_costs(py::module_& m);

PYBIND11_MODULE(_kernels, m) {
    m.doc() = "The planner's kernels.";
    bind_link(m);  // types of arguments come before the kernels that take them
    bind_window_costs(m);
    bind_balance_work(m);
    bind_check_pipeline(m);
    bind_cost_grid(m);
    bind_cyclic_schedule(m);
    bind_estimate_costs(m);
    bind_find_plan(m);
    bind_list_scheduler(m);
    bind_place_transfers(m);
    bind_price_windows(m);
    bind_short_tour(m);
    bind_simulate(m);
    bind_split_samples(m);
    bind_stage_costs(m);
    bind_stage_memory(m);
}
