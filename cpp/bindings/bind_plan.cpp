#include <pybind11/pybind11.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>
#include <optional>
#include <string>
#include <tuple>
#include <utility>

#include "arrays.hpp"
#include "dynapipe/plan/check_pipeline.hpp"
#include "dynapipe/plan/place_transfers.hpp"

namespace py = pybind11;

namespace {

using arrays::Codes;
using arrays::Doubles;
using arrays::Numbers;
using Entries = py::array_t<std::uint32_t>;
using arrays::Bytes;
using dynapipe::StagePlan;
using Fault = std::tuple<int, std::size_t, std::size_t, std::uint32_t, std::int64_t>;

Entries entries_of(const std::vector<dynapipe::Row>& rows) {
    Entries entries({rows.size(), dynapipe::kRowColumns});
    std::memcpy(entries.mutable_data(), rows.data(), rows.size() * sizeof(dynapipe::Row));
    return entries;
}

std::vector<Entries> place(const Codes& order, const Doubles& end_ms, const Numbers& peers) {
    const std::span codes = arrays::entries_of(order);
    const auto last = std::max_element(codes.begin(), codes.end());
    const auto n_microbatches =
        last == codes.end() ? 0 : static_cast<std::size_t>(*last / dynapipe::kKinds + 1);
    arrays::check_orders(order, peers.size(), n_microbatches);
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

void check_rows(const Numbers& rows) {
    if (rows.ndim() != 2 || rows.shape(1) != dynapipe::kRowColumns) {
        throw py::value_error("rows must have shape (n_instructions, 5), got " +
                              arrays::text_of(arrays::shape_of(rows)));
    }
}

std::span<const std::int64_t> sizes_of(const Bytes& bytes, const char* name,
                                       const arrays::Shape& shape) {
    return arrays::checked(bytes, name, shape, std::int64_t{0},
                           std::numeric_limits<std::int64_t>::max());
}

/// Checks that every micro-batch is named, at most once by another one.
void check_earlier_slice(std::span<const std::uint32_t> earlier_slice) {
    std::vector<bool> is_named(earlier_slice.size(), false);
    for (std::uint32_t i = 0; i < earlier_slice.size(); ++i) {
        const std::uint32_t earlier = earlier_slice[i];
        if (earlier >= earlier_slice.size() || (earlier != i && is_named[earlier])) {
            throw py::value_error("earlier_slice must name micro-batches, each for one other");
        }
        if (earlier != i) {
            is_named[earlier] = true;
        }
    }
}

StagePlan stage_plan(const Numbers& rows, std::uint32_t rank, std::span<const std::int64_t> bounds,
                     std::span<const std::int64_t> sizes) {
    const std::size_t n = sizes.size() / 3;
    return {dynapipe::Rows(arrays::entries_of(rows)),
            rank,
            bounds[0],
            bounds[1],
            sizes.subspan(0, n),
            sizes.subspan(n, n),
            sizes.subspan(2 * n, n)};
}

std::optional<Fault> check(const std::vector<Numbers>& rows, const Numbers& ranks,
                           const Bytes& bounds, const Bytes& sizes, const Numbers& earlier_slice) {
    const auto n_stages = static_cast<py::ssize_t>(rows.size());
    std::for_each(rows.begin(), rows.end(), check_rows);
    arrays::check_shape(ranks, "ranks", {n_stages});
    const auto bounds_of = sizes_of(bounds, "bounds", {n_stages, 2});
    if (sizes.ndim() != 3 || sizes.shape(0) != n_stages || sizes.shape(1) != 3) {
        throw py::value_error("sizes must have shape (n_stages, 3, n_microbatches), got " +
                              arrays::text_of(arrays::shape_of(sizes)));
    }
    const auto sizes_of_all = sizes_of(sizes, "sizes", arrays::shape_of(sizes));
    arrays::check_shape(earlier_slice, "earlier_slice", {sizes.shape(2)});
    check_earlier_slice(arrays::entries_of(earlier_slice));
    const auto n_microbatches = static_cast<std::size_t>(sizes.shape(2));
    std::vector<StagePlan> stages;
    for (std::size_t s = 0; s < rows.size(); ++s) {
        stages.push_back(
            stage_plan(rows[s], ranks.data()[s], bounds_of.subspan(2 * s, 2),
                       sizes_of_all.subspan(3 * n_microbatches * s, 3 * n_microbatches)));
    }
    std::optional<dynapipe::Fault> fault;
    {
        py::gil_scoped_release release;  // planner threads run side by side
        fault = dynapipe::check_pipeline(stages, arrays::entries_of(earlier_slice));
    }
    if (!fault) {
        return {};
    }
    return Fault{static_cast<int>(fault->rule), fault->stage, fault->position, fault->microbatch,
                 fault->detail};
}

std::int64_t peak_bytes(const Numbers& rows, const Bytes& bounds, const Bytes& sizes) {
    check_rows(rows);
    const auto both_bounds = sizes_of(bounds, "bounds", {2});
    if (sizes.ndim() != 2 || sizes.shape(0) != 3) {
        throw py::value_error("sizes must have shape (3, n_microbatches), got " +
                              arrays::text_of(arrays::shape_of(sizes)));
    }
    return dynapipe::peak_bytes(
        stage_plan(rows, 0, both_bounds, sizes_of(sizes, "sizes", arrays::shape_of(sizes))));
}

}  // namespace

void bind_plan(py::module_& m) {
    m.def("place_transfers", &place, py::arg("order"), py::arg("end_ms"), py::arg("peers"),
          "Writes the instructions of every stage; see dynapipe/plan/place_transfers.hpp.\n\n"
          "Returns per stage its rows of shape (n_instructions, 5).");
    m.def("check_pipeline", &check, py::arg("rows"), py::arg("ranks"), py::arg("bounds"),
          py::arg("sizes"), py::arg("earlier_slice"),
          "Checks the plans of a replica's stages; see dynapipe/plan/check_pipeline.hpp.\n\n"
          "Bounds are (limit, static) bytes per stage; sizes are stored, forward transient and\n"
          "backward transient bytes per stage and micro-batch; earlier_slice is the micro-batch\n"
          "with the slice before that of each, or itself. Returns None, or a fault (rule,\n"
          "stage, position, microbatch, detail).");
    m.def("peak_bytes", &peak_bytes, py::arg("rows"), py::arg("bounds"), py::arg("sizes"),
          "The largest memory of one stage's plan; see dynapipe/plan/check_pipeline.hpp.");
}
