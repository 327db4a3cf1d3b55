#include <pybind11/pybind11.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "arrays.hpp"
#include "dynapipe/plan/place_transfers.hpp"

namespace py = pybind11;

namespace {

using arrays::Codes;
using arrays::Doubles;
using arrays::Numbers;
using Entries = py::array_t<std::uint32_t>;

/// The kernel relies on an order that holds each pass exactly once on every stage.
void check_order(const Codes& order) {
    if (order.ndim() != 2 || order.shape(0) == 0) {
        throw py::value_error("order must have shape (n_stages, n_passes), n_stages >= 1, got " +
                              arrays::text_of(arrays::shape_of(order)));
    }
    const std::span codes = arrays::entries_of(order);
    const auto n_passes = static_cast<std::size_t>(order.shape(1));
    const auto has = [codes](int kind) {
        return std::any_of(codes.begin(), codes.end(),
                           [kind](auto code) { return code % 3 == kind; });
    };
    const std::size_t n_kinds = has(2) ? 3 : has(1) ? 2 : 1;
    const std::size_t n_codes = n_passes / n_kinds * 3;
    for (std::size_t place = 0; place < codes.size(); place += n_passes) {
        std::vector<bool> is_seen(n_codes, false);
        for (const auto code : codes.subspan(place, n_passes)) {
            const auto number = static_cast<std::size_t>(code);  // a negative one becomes large
            if (number >= n_codes || is_seen[number]) {
                throw py::value_error("stage " + std::to_string(place / n_passes) +
                                      " must run each pass once, but its order has " +
                                      std::to_string(code) + (number >= n_codes ? "" : " twice"));
            }
            is_seen[number] = true;
        }
    }
}

Entries entries_of(const std::vector<dynapipe::Row>& rows) {
    Entries entries({rows.size(), dynapipe::kRowColumns});
    std::memcpy(entries.mutable_data(), rows.data(), rows.size() * sizeof(dynapipe::Row));
    return entries;
}

std::vector<Entries> place(const Codes& order, const Doubles& end_ms, const Numbers& peers) {
    check_order(order);
    arrays::check_shape(end_ms, "end_ms", arrays::shape_of(order));
    arrays::check_shape(peers, "peers", {order.shape(0)});
    std::vector<std::vector<dynapipe::Row>> of_stages;
    {
        py::gil_scoped_release release;  // planner threads run side by side
        of_stages = dynapipe::place_transfers(arrays::entries_of(order), arrays::entries_of(end_ms),
                                              arrays::entries_of(peers));
    }
    std::vector<Entries> rows;
    for (const auto& stage : of_stages) {
        rows.push_back(entries_of(stage));
    }
    return rows;
}

}  // namespace

void bind_place_transfers(py::module_& m) {
    m.def("place_transfers", &place, py::arg("order").noconvert(), py::arg("end_ms").noconvert(),
          py::arg("peers").noconvert(),
          "Writes the instructions of every stage; see dynapipe/plan/place_transfers.hpp.\n\n"
          "Returns per stage its rows of shape (n_instructions, 5).");
}
