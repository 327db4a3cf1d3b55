#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace dynapipe {

/// Most samples of a window at an end of a pipeline: it is to be passed quickly.
inline constexpr std::size_t kMostOfAnEnd = 24;
/// Numbers of ends that are told apart behind a sample.
inline constexpr std::size_t kEndBand = 64;

/// What samples cost in windows at the ends of pipelines, and before them.
struct EndCosts {
    std::span<const double> body_ms;  ///< (n_samples + 1,): least cost of the samples before
    std::span<const double> end_ms;   ///< row-major (n_rows, kMostOfAnEnd): cost of the window of
                                      ///< k + 1 samples from a row's as an end; may be infinite
    std::span<const std::int32_t> row_of_sample;  ///< (n_samples,)

    [[nodiscard]] std::size_t n_samples() const { return row_of_sample.size(); }

    /// Costs of the windows that begin with a sample, by size from 1.
    [[nodiscard]] std::span<const double> from(std::size_t first) const {
        const auto row = static_cast<std::size_t>(row_of_sample[first]);
        const std::size_t n_left = n_samples() - first;
        return end_ms.subspan(row * kMostOfAnEnd, n_left < kMostOfAnEnd ? n_left : kMostOfAnEnd);
    }
};

/// The last samples in windows.
struct Ends {
    std::size_t first;               ///< the first of these samples
    std::vector<std::size_t> sizes;  ///< of their windows, in order
};

/// Cuts the last samples into a number of ends so that these and all before them cost least.
///
/// Exact for n_ends < kEndBand: dynamic programming over samples and numbers of ends. Of more ends,
/// the best cut into a few runs of ends of one size is found first, and then the best of the cuts
/// near it: those that have one of the kEndBand numbers of ends around it behind every sample, and
/// at most twice its samples in ends.
///
/// Time O(n_samples * kMostOfAnEnd * kEndBand) and memory O(n_samples * kEndBand), however many the
/// ends.
///
/// @return  sizes of n_ends windows; none if no such cut is found.
/// @throws  std::invalid_argument if a cost is NaN and that prevents an answer.
Ends cut_ends(const EndCosts& costs, std::size_t n_ends);

}  // namespace dynapipe
