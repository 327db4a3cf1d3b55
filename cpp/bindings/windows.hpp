/// Windows of samples at the border of the kernels: checked, never copied on the way in.
#pragma once

#include <pybind11/pybind11.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "arrays.hpp"
#include "dynapipe/batch/window_costs.hpp"

namespace windows {

namespace py = pybind11;
using arrays::Doubles;
using Integers = py::array_t<std::int32_t, py::array::c_style>;
using Windows = py::array_t<std::uint32_t, py::array::c_style>;

using Spans = py::array_t<std::int64_t, py::array::c_style>;
using Counts = py::array_t<std::uint32_t, py::array::c_style>;

/// Kernels rely on slices that follow each other to the last one.
inline std::span<const std::uint32_t> later_of(const Counts& later_slices, std::size_t n_entries) {
    arrays::check_shape(later_slices, "later_slices", {static_cast<py::ssize_t>(n_entries)});
    const std::span<const std::uint32_t> later = arrays::entries_of(later_slices);
    for (std::size_t i = 0; i < later.size(); ++i) {
        if (later[i] > 0 && (i + 1 == later.size() || later[i + 1] != later[i] - 1)) {
            throw py::value_error("later_slices holds " + std::to_string(later[i]) + " at " +
                                  std::to_string(i) + ", but as many do not follow");
        }
    }
    return later;
}

/// Kernels rely on cells that exist, and on spans within them.
inline void check_cells(const Integers& cells, const Spans& spans, py::ssize_t n_entries) {
    arrays::checked(cells, "cells", {cells.size()}, -1, static_cast<std::int32_t>(n_entries - 1));
    if (spans.ndim() != 3 || spans.size() == 0 || spans.shape(2) != 2) {
        throw py::value_error("spans must have shape (n_modes, n_rows, 2), none 0, got " +
                              arrays::text_of(arrays::shape_of(spans)));
    }
    const std::span<const std::int64_t> ends = arrays::entries_of(spans);
    for (std::size_t i = 0; i < ends.size(); i += 2) {
        if (ends[i] < 0 || ends[i] > ends[i + 1] || ends[i + 1] > cells.size()) {
            throw py::value_error("spans holds " + std::to_string(ends[i]) + " to " +
                                  std::to_string(ends[i + 1]) + ", but there are " +
                                  std::to_string(cells.size()) + " cells");
        }
    }
}

/// Kernels rely on rows that exist.
inline dynapipe::WindowCosts checked(const arrays::HeldTable& table, const Integers& cells,
                                     const Spans& spans, const Integers& row_of_sample,
                                     const Integers& first_slice, const Counts& later_slices) {
    check_cells(cells, spans, table.n_entries());
    if (row_of_sample.size() == 0) {
        throw py::value_error("row_of_sample must name the row of a sample");
    }
    const auto n_rows = static_cast<std::int32_t>(spans.shape(1));
    dynapipe::WindowCosts windows{
        table.costs(), arrays::entries_of(cells), arrays::entries_of(spans),
        arrays::checked(row_of_sample, "row_of_sample", {row_of_sample.size()}, 0, n_rows - 1),
        static_cast<std::size_t>(spans.shape(0))};
    if (first_slice.size() > 0) {
        windows.first_slice = arrays::checked(first_slice, "first_slice", {table.n_entries()}, 0,
                                              static_cast<std::int32_t>(table.n_entries() - 1));
        windows.later_slices = later_of(later_slices, windows.first_slice.size());
        for (const std::int32_t cell : windows.cells) {
            const auto entry = static_cast<std::size_t>(cell);
            if (cell >= 0 && windows.first_slice[entry] == cell &&
                windows.later_slices[entry] > 0) {
                throw py::value_error("cells holds " + std::to_string(cell) +
                                      ", the first slice of a sample, without the others");
            }
        }
    }
    return windows;
}

/// Costs of windows together with the arrays that hold them. The arrays are checked once and
/// become read-only, because kernels rely on what was checked.
class HeldCosts {
  public:
    HeldCosts(arrays::HeldTable table, Integers cells, Spans spans, Integers row_of_sample,
              Integers first_slice, Counts later_slices)
        : table_(std::move(table)),
          cells_(std::move(cells)),
          spans_(std::move(spans)),
          row_of_sample_(std::move(row_of_sample)),
          first_slice_(std::move(first_slice)),
          later_slices_(std::move(later_slices)),
          costs_(checked(table_, cells_, spans_, row_of_sample_, first_slice_, later_slices_)) {
        arrays::freeze(first_slice_);
        arrays::freeze(later_slices_);
        arrays::freeze(cells_);
        arrays::freeze(spans_);
        arrays::freeze(row_of_sample_);
    }

    [[nodiscard]] const dynapipe::WindowCosts& costs() const { return costs_; }

  private:
    arrays::HeldTable table_;
    Integers cells_;
    Spans spans_;
    Integers row_of_sample_;
    Integers first_slice_;
    Counts later_slices_;
    dynapipe::WindowCosts costs_;
};

inline py::list arrays_of(const dynapipe::Assignment& assignment) {
    py::list replicas;
    for (const auto& windows : assignment) {
        Windows replica({windows.size(), std::size_t{3}});
        auto entry = replica.mutable_unchecked<2>();
        for (std::size_t i = 0; i < windows.size(); ++i) {
            const auto row = static_cast<py::ssize_t>(i);
            entry(row, 0) = windows[i].first;
            entry(row, 1) = windows[i].size;
            entry(row, 2) = windows[i].mode;
        }
        replicas.append(replica);
    }
    return replicas;
}

}  // namespace windows
