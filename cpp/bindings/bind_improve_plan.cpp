#include <pybind11/pybind11.h>

#include <tuple>

#include "arrays.hpp"
#include "dynapipe/improve_plan.hpp"

namespace py = pybind11;
using arrays::Doubles;

namespace {

using Lengths = py::array_t<std::int32_t, py::array::c_style>;
using Windows = py::array_t<std::uint32_t, py::array::c_style>;

struct Sizes {
    std::size_t n_modes;
    std::size_t n_lengths;
    std::size_t max_samples;
    std::size_t n_stages;
};

Sizes sizes_of(const Doubles& forward_ms) {
    if (forward_ms.ndim() != 4 || forward_ms.size() == 0) {
        throw py::value_error(
            "forward_ms must have shape (n_modes, n_lengths, max_samples, n_stages), none of them "
            "0, got " +
            arrays::text_of(arrays::shape_of(forward_ms)));
    }
    const auto size = [&](py::ssize_t axis) {
        return static_cast<std::size_t>(forward_ms.shape(axis));
    };
    return {size(0), size(1), size(2), size(3)};
}

/// The kernel relies on a start that holds each sample once, in windows that the tables know.
dynapipe::Assignment assignment_of(const std::vector<Windows>& start, const Sizes& sizes,
                                   std::span<const std::int32_t> length_of_sample,
                                   const Doubles& forward_ms) {
    dynapipe::Assignment assignment;
    std::vector<bool> seen(length_of_sample.size(), false);
    std::size_t n_seen = 0;
    for (const Windows& replica : start) {
        if (replica.ndim() != 2 || replica.shape(0) == 0 || replica.shape(1) != 3) {
            throw py::value_error("each replica of start must have shape (n >= 1, 3), got " +
                                  arrays::text_of(arrays::shape_of(replica)));
        }
        assignment.emplace_back();
        for (py::ssize_t i = 0; i < replica.shape(0); ++i) {
            const std::size_t first = replica.at(i, 0);
            const std::size_t size = replica.at(i, 1);
            const std::size_t mode = replica.at(i, 2);
            const std::string what = "window of " + std::to_string(size) + " samples from " +
                                     std::to_string(first) + " in mode " + std::to_string(mode);
            if (size < 1 || size > sizes.max_samples || mode >= sizes.n_modes ||
                first + size > seen.size()) {
                throw py::value_error(what + " lies outside of the tables");
            }
            for (std::size_t sample = first; sample < first + size; ++sample) {
                if (seen[sample]) {
                    throw py::value_error("sample " + std::to_string(sample) +
                                          " is in two windows of start");
                }
                seen[sample] = true;
            }
            n_seen += size;
            const auto length = static_cast<std::size_t>(length_of_sample[first]);
            const std::size_t cell =
                (mode * sizes.n_lengths + length) * sizes.max_samples + size - 1;
            if (forward_ms.data()[cell * sizes.n_stages] ==
                std::numeric_limits<double>::infinity()) {
                throw py::value_error(what + " does not fit");
            }
            assignment.back().push_back({static_cast<std::uint32_t>(first),
                                         static_cast<std::uint32_t>(size),
                                         static_cast<std::uint32_t>(mode)});
        }
    }
    if (assignment.empty() || n_seen != seen.size()) {
        throw py::value_error("start must hold each of the " + std::to_string(seen.size()) +
                              " samples, but holds " + std::to_string(n_seen));
    }
    return assignment;
}

py::list arrays_of(const dynapipe::Assignment& assignment) {
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

std::tuple<py::list, double> improve_plan(
    const Doubles& forward_ms, const Doubles& backward_ms, const Doubles& stored_bytes,
    const Doubles& forward_transient_bytes, const Doubles& backward_transient_bytes,
    const Doubles& boundary_bytes, const Lengths& length_of_sample,
    const std::vector<Windows>& start, const Doubles& limit_bytes, double latency_ms,
    double bytes_per_ms, bool full_duplex, std::size_t n_moves, std::uint64_t seed) {
    const Sizes sizes = sizes_of(forward_ms);
    const arrays::Shape shape = arrays::shape_of(forward_ms);
    arrays::check_shape(backward_ms, "backward_ms", shape);
    arrays::check_shape(stored_bytes, "stored_bytes", shape);
    arrays::check_shape(forward_transient_bytes, "forward_transient_bytes", shape);
    arrays::check_shape(backward_transient_bytes, "backward_transient_bytes", shape);
    arrays::check_shape(boundary_bytes, "boundary_bytes", {shape[0], shape[1], shape[2]});
    arrays::check_shape(limit_bytes, "limit_bytes", {shape[3]});
    const auto lengths = arrays::entries_of(length_of_sample);
    for (const std::int32_t length : lengths) {
        if (static_cast<std::size_t>(length) >= sizes.n_lengths) {
            throw py::value_error("length_of_sample holds " + std::to_string(length) +
                                  ", but the tables have " + std::to_string(sizes.n_lengths) +
                                  " lengths");
        }
    }
    const dynapipe::Assignment assignment = assignment_of(start, sizes, lengths, forward_ms);
    const std::size_t n_cells = sizes.n_modes * sizes.n_lengths * sizes.max_samples;
    const dynapipe::WindowCosts costs{
        {arrays::entries_of(forward_ms), arrays::entries_of(backward_ms),
         arrays::entries_of(boundary_bytes)},
        {arrays::entries_of(stored_bytes), arrays::entries_of(forward_transient_bytes),
         arrays::entries_of(backward_transient_bytes), n_cells, sizes.n_stages},
        sizes.n_modes,
        sizes.n_lengths,
        sizes.max_samples};
    dynapipe::Improvement found;
    {
        py::gil_scoped_release release;  // planner threads run side by side
        found = dynapipe::improve_plan(costs, lengths, assignment, arrays::entries_of(limit_bytes),
                                       {latency_ms, bytes_per_ms, full_duplex}, n_moves, seed);
    }
    return {arrays_of(found.replicas), found.makespan_ms};
}

}  // namespace

void bind_improve_plan(py::module_& m) {
    m.def("improve_plan", &improve_plan, py::arg("forward_ms").noconvert(),
          py::arg("backward_ms").noconvert(), py::arg("stored_bytes").noconvert(),
          py::arg("forward_transient_bytes").noconvert(),
          py::arg("backward_transient_bytes").noconvert(), py::arg("boundary_bytes").noconvert(),
          py::arg("length_of_sample").noconvert(), py::arg("start"),
          py::arg("limit_bytes").noconvert(), py::arg("latency_ms"), py::arg("bytes_per_ms"),
          py::arg("full_duplex"), py::arg("n_moves"), py::arg("seed"),
          "Improves a plan by a seeded local search; see dynapipe/improve_plan.hpp.\n\n"
          "Returns per replica its windows (first, size, mode) in order, and the makespan in ms.");
}
