#include <pybind11/pybind11.h>

#include <optional>

#include "arrays.hpp"
#include "dynapipe/schedule/refine_schedule.hpp"

namespace py = pybind11;
using arrays::Codes;
using arrays::Doubles;
using dynapipe::Link;

namespace {

py::array_t<dynapipe::PassCode> refine_schedule(const Codes& order, const arrays::HeldTable& table,
                                                const Doubles& limit_bytes, const Link& link,
                                                std::size_t n_moves, std::uint64_t seed,
                                                const std::optional<Doubles>& reduce_ms) {
    const dynapipe::StageCosts& costs = table.costs();
    const auto limits = arrays::limits_of(limit_bytes, costs.n_stages);
    arrays::check_orders(order, {static_cast<py::ssize_t>(costs.n_stages)}, costs.n_microbatches());
    if (order.size() == 0) {
        throw py::value_error("order must hold at least one pass");
    }
    const auto reduce = arrays::reduce_of(reduce_ms, costs.n_stages);
    std::vector<dynapipe::PassCode> passes;
    {
        py::gil_scoped_release release;  // planner threads run side by side
        passes = dynapipe::refine_schedule(arrays::entries_of(order), costs, limits, link, n_moves,
                                           seed, reduce);
    }
    return arrays::matrix(passes, costs.n_stages);
}

}  // namespace

void bind_refine_schedule(py::module_& m) {
    m.def("refine_schedule", &refine_schedule, py::arg("order").noconvert(), py::arg("costs"),
          py::arg("limit_bytes").noconvert(), py::arg("link"), py::arg("n_moves"), py::arg("seed"),
          py::arg("reduce_ms").noconvert() = py::none(),
          "Improves the order of passes; see dynapipe/schedule/refine_schedule.hpp.\n\n"
          "Returns pass codes of the shape of `order`.");
}
