#include <pybind11/pybind11.h>

#include <algorithm>

#include "dynapipe/batch/split_samples.hpp"
#include "windows.hpp"

namespace py = pybind11;

namespace {

using arrays::Doubles;

/// The kernel compares entries with the limits that it derives from them.
std::span<const double> checked(const Doubles& table, const char* name,
                                const dynapipe::WindowCosts& windows) {
    arrays::check_shape(table, name, {static_cast<py::ssize_t>(windows.costs.n_microbatches())});
    const std::span entries = arrays::entries_of(table);
    if (!std::all_of(entries.begin(), entries.end(), [](double entry) { return entry >= 0; })) {
        throw py::value_error(std::string(name) + " must hold no NaN and nothing negative");
    }
    return entries;
}

windows::Windows split_windows(const windows::HeldCosts& held, const Doubles& work_ms,
                               const Doubles& fill_ms, std::size_t n_replicas) {
    const dynapipe::WindowCosts& costs = held.costs();
    const auto work = checked(work_ms, "work_ms", costs);
    const auto fill = checked(fill_ms, "fill_ms", costs);
    if (n_replicas < 1) {
        throw py::value_error("n_replicas must be >= 1, got " + std::to_string(n_replicas));
    }
    dynapipe::Assignment split(1);
    {
        const py::gil_scoped_release release;  // planner threads run side by side
        std::vector<dynapipe::Rating> ratings(work.size());
        for (std::size_t i = 0; i < ratings.size(); ++i) {
            ratings[i] = {work[i], fill[i], 0.0};
        }
        split.front() = dynapipe::split_windows(costs, ratings, 1.0, n_replicas);
    }
    return windows::arrays_of(split)[0].cast<windows::Windows>();
}

}  // namespace

void bind_split_samples(py::module_& m) {
    m.def("split_windows", &split_windows, py::arg("windows"), py::arg("work_ms").noconvert(),
          py::arg("fill_ms").noconvert(), py::arg("n_replicas"),
          "Cuts samples into consecutive micro-batches; see split_samples.hpp.");
}
