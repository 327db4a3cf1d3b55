#include <pybind11/pybind11.h>

#include <numeric>
#include <optional>
#include <string>

#include "arrays.hpp"
#include "dynapipe/cost/link.hpp"
#include "dynapipe/schedule/cyclic_schedule.hpp"
#include "dynapipe/schedule/list_scheduler.hpp"
#include "dynapipe/schedule/simulate.hpp"
#include "windows.hpp"

namespace py = pybind11;

namespace {

using arrays::Codes;
using arrays::Doubles;
using dynapipe::Link;
using dynapipe::Timeline;

/// Kernels compare times, which they could not if one were NaN.
Link link_of(double latency_ms, double bytes_per_ms, bool full_duplex) {
    if (!(latency_ms >= 0) || !(bytes_per_ms > 0)) {
        throw py::value_error("latency_ms must be at least 0 and bytes_per_ms above it, got " +
                              std::to_string(latency_ms) + " and " + std::to_string(bytes_per_ms));
    }
    return {latency_ms, bytes_per_ms, full_duplex};
}

py::array_t<dynapipe::PassCode> cyclic_schedule(const arrays::HeldTable& table,
                                                const Doubles& limit_bytes) {
    const dynapipe::StageCosts& costs = table.costs();
    const auto limits = arrays::limits_of(limit_bytes, costs.n_stages);
    std::vector<dynapipe::PassCode> passes;
    {
        py::gil_scoped_release release;  // planner threads run side by side
        passes = dynapipe::cyclic_schedule(costs, limits);
    }
    return arrays::matrix(std::move(passes), costs.n_stages);
}

py::array_t<dynapipe::PassCode> list_schedule(const arrays::HeldTable& table,
                                              const Doubles& limit_bytes, const Link& link,
                                              bool split_backward,
                                              const std::optional<windows::Counts>& later_slices,
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
        dynapipe::ListScheduler scheduler(costs, limits, link, split_backward, reduce, later);
        for (const bool alternates : {false, true}) {
            const double ms = scheduler.run(list, makespan_ms, alternates);
            if (ms < makespan_ms) {
                makespan_ms = ms;
                order = scheduler.order();
            }
        }
    }
    if (makespan_ms == std::numeric_limits<double>::infinity()) {
        throw py::value_error("a micro-batch needs more than the limit of a stage");
    }
    return arrays::matrix(std::move(order), costs.n_stages);
}

Timeline simulate(const Codes& order, const arrays::HeldTable& table, const Doubles& static_bytes,
                  const Link& link) {
    const dynapipe::StageCosts& costs = table.costs();
    const auto n_stages = static_cast<py::ssize_t>(costs.n_stages);
    arrays::check_shape(static_bytes, "static_bytes", {n_stages});
    arrays::check_orders(order, n_stages, costs.n_microbatches());
    const auto passes = arrays::entries_of(order);
    const auto occupied = arrays::entries_of(static_bytes);
    const py::gil_scoped_release release;  // planner threads run side by side
    return dynapipe::simulate(passes, costs, occupied, link);
}

/// Times of passes, shape (n_stages, n_passes).
auto of_passes(std::vector<double> Timeline::* member) {
    return [member](const py::object& self) {
        const auto& timeline = self.cast<const Timeline&>();
        const std::vector<double>& times = timeline.*member;
        const std::size_t n_stages = timeline.peak_bytes.size();
        return py::array_t<double>({n_stages, times.size() / n_stages}, times.data(), self);
    };
}

}  // namespace

void bind_schedule(py::module_& m) {
    py::class_<Link>(m, "Link",
                     "A connection between neighbouring stages; see dynapipe/cost/link.hpp.")
        .def(py::init(&link_of), py::arg("latency_ms"), py::arg("bytes_per_ms"),
             py::arg("full_duplex"));
    m.def("cyclic_schedule", &cyclic_schedule, py::arg("costs"), py::arg("limit_bytes"),
          "Orders passes within a memory limit; see dynapipe/schedule/cyclic_schedule.hpp.\n\n"
          "Returns pass codes of shape (n_stages, n_passes).");
    m.def(
        "list_schedule", &list_schedule, py::arg("costs"), py::arg("limit_bytes"), py::arg("link"),
        py::arg("split_backward"), py::arg("later_slices") = py::none(),
        py::arg("reduce_ms") = py::none(),
        "Schedules micro-batches while simulating them; see "
        "dynapipe/schedule/list_scheduler.hpp.\n\n"
        "later_slices is, per micro-batch, how many slices of its sample follow it. The schedule\n"
        "is taken whose gradients are reduced first, reduce_ms after the last pass of each stage.\n"
        "Returns pass codes of shape (n_stages, n_passes).");
    py::class_<Timeline>(m, "Timeline", "A schedule in time; see dynapipe/schedule/simulate.hpp.")
        .def_property_readonly("start_ms", of_passes(&Timeline::start_ms))
        .def_property_readonly("end_ms", of_passes(&Timeline::end_ms))
        .def_property_readonly("send_start_ms", of_passes(&Timeline::send_start_ms))
        .def_property_readonly("send_end_ms", of_passes(&Timeline::send_end_ms))
        .def_property_readonly("peak_bytes", arrays::shown(&Timeline::peak_bytes))
        .def_property_readonly("busy_ms", arrays::shown(&Timeline::busy_ms))
        .def_property_readonly("n_started", arrays::shown(&Timeline::n_started))
        .def_readonly("makespan_ms", &Timeline::makespan_ms);
    m.def("simulate", &simulate, py::arg("order"), py::arg("costs"), py::arg("static_bytes"),
          py::arg("link"), "Runs a schedule in time; see dynapipe/schedule/simulate.hpp.");
}
