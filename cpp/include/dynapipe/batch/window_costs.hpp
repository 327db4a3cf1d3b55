#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "dynapipe/cost/stage_costs.hpp"

namespace dynapipe {

/// Neighbouring samples that run together.
struct Window {
    std::uint32_t first;  ///< index of the first sample
    std::uint32_t size;   ///< number of samples, >= 1
    std::uint32_t mode;   ///< index of its execution mode

    friend bool operator==(const Window&, const Window&) = default;
};

/// Costs of all micro-batches of neighbouring samples. Samples that begin the same micro-batches
/// share a row of the tables.
///
/// A window of one sample may run as slices of it, which are micro-batches by themselves and follow
/// each other in `costs`. Its own entry there adds up theirs.
struct WindowCosts {
    StageCosts costs;                     ///< costs of usable micro-batches
    std::span<const std::int32_t> cells;  ///< per mode and row, index in `costs` of the windows of
                                          ///< 1, 2, ... samples; -1 if not usable
    std::span<const std::int64_t> spans;  ///< (n_modes, n_rows, 2): begin and end of cells
    std::span<const std::int32_t> row_of_sample;  ///< (n_samples,)
    std::size_t n_modes;
    std::span<const std::int32_t> first_slice = {};  ///< per entry of `costs`, that of its first
                                                     ///< slice, or itself; empty if none has any
    std::span<const std::uint32_t> later_slices =
        {};  ///< per entry, slices of its sample behind it

    [[nodiscard]] bool has_slices(std::size_t microbatch) const {
        return !first_slice.empty() &&
               first_slice[microbatch] != static_cast<std::int32_t>(microbatch);
    }

    /// The entries that run in place of one: its slices, or itself.
    [[nodiscard]] std::pair<std::size_t, std::size_t> parts(std::size_t microbatch) const {
        if (!has_slices(microbatch)) {
            return {microbatch, 1};
        }
        const auto first = static_cast<std::size_t>(first_slice[microbatch]);
        return {first, later_slices[first] + 1};
    }

    [[nodiscard]] std::size_t n_samples() const { return row_of_sample.size(); }
    [[nodiscard]] std::size_t n_rows() const { return spans.size() / (2 * n_modes); }

    /// Indices in `costs` by number of samples, from 1; -1 if they may not run together.
    [[nodiscard]] std::span<const std::int32_t> row(std::size_t first, std::size_t mode) const {
        const auto row = static_cast<std::size_t>(row_of_sample[first]);
        const std::int64_t* span = &spans[2 * (mode * n_rows() + row)];
        return cells.subspan(static_cast<std::size_t>(span[0]),
                             static_cast<std::size_t>(span[1] - span[0]));
    }

    /// Index in `costs`; -1 if the samples may not run together.
    [[nodiscard]] std::int32_t cell(std::size_t first, std::size_t size, std::size_t mode) const {
        const std::span<const std::int32_t> known = row(first, mode);
        return size <= known.size() ? known[size - 1] : -1;
    }

    /// Index in `costs` of a window that may be used.
    [[nodiscard]] std::uint32_t microbatch(const Window& window) const {
        return static_cast<std::uint32_t>(cell(window.first, window.size, window.mode));
    }
};

/// The windows of each replica, in the order in which they enter the pipeline.
using Assignment = std::vector<std::vector<Window>>;

}  // namespace dynapipe
