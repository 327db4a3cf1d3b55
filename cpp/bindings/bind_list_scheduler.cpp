#include <pybind11/pybind11.h>

#include <numeric>
#include <optional>

#include "arrays.hpp"
#include "dynapipe/schedule/lightest_first.hpp"
#include "dynapipe/schedule/list_scheduler.hpp"
#include "dynapipe/schedule/precedence.hpp"
#include "windows.hpp"

namespace py = pybind11;
using arrays::Codes;
using arrays::Doubles;
using dynapipe::Link;
using windows::Counts;

namespace {

py::array_t<dynapipe::PassCode> list_schedule(const arrays::HeldTable& table,
                                              const Doubles& limit_bytes, const Link& link,
                                              bool split_backward,
                                              const std::optional<Counts>& later_slices,
                                              const std::optional<Doubles>& reduce_ms) {
    const dynapipe::StageCosts& costs = table.costs();
    const auto limits = arrays::limits_of(limit_bytes, costs.n_stages);
    if (costs.n_microbatches() == 0) {
        throw py::value_error("there must be a micro-batch");
    }
    const std::span<const std::uint32_t> later =
        later_slices ? windows::later_of(*later_slices, costs.n_microbatches())
                     : std::span<const std::uint32_t>{};
    const auto reduce = arrays::reduce_of(reduce_ms, costs.n_stages);
    std::vector<std::uint32_t> list(costs.n_microbatches());
    std::iota(list.begin(), list.end(), 0U);
    std::vector<dynapipe::PassCode> order;
    double makespan_ms = std::numeric_limits<double>::infinity();
    {
        py::gil_scoped_release release;  // planner threads run side by side
        const auto keep_if_sooner = [&](double ms, const auto& scheduler) {
            if (ms < makespan_ms) {
                makespan_ms = ms;
                order = scheduler.order();
            }
        };
        if (later.empty()) {
            dynapipe::ListScheduler scheduler(costs, limits, link, split_backward, reduce);
            for (const bool alternates : {false, true}) {
                keep_if_sooner(scheduler.run(list, makespan_ms, alternates), scheduler);
            }
        }
        if (!later.empty() || dynapipe::is_any_heavy(costs, list, limits)) {
            dynapipe::LightestFirst lightest_first(costs, limits, link, split_backward, later,
                                                   reduce);
            keep_if_sooner(lightest_first.run(list, makespan_ms), lightest_first);
        }
    }
    if (makespan_ms == std::numeric_limits<double>::infinity()) {
        throw py::value_error("a micro-batch needs more than the limit of a stage");
    }
    return arrays::matrix(order, costs.n_stages);
}

}  // namespace

void bind_list_scheduler(py::module_& m) {
    m.def("list_schedule", &list_schedule, py::arg("costs"), py::arg("limit_bytes").noconvert(),
          py::arg("link"), py::arg("split_backward"),
          py::arg("later_slices").noconvert() = py::none(),
          py::arg("reduce_ms").noconvert() = py::none(),
          "Schedules micro-batches while simulating them; see "
          "dynapipe/schedule/list_scheduler.hpp.\n\n"
          "later_slices is, per micro-batch, how many slices of its sample follow it; with any,\n"
          "micro-batches overtake each other, see dynapipe/schedule/lightest_first.hpp. The\n"
          "schedule is taken whose gradients are reduced first, reduce_ms after the last pass of "
          "each\n"
          "stage. Returns pass codes of shape (n_stages, n_passes).");
}
