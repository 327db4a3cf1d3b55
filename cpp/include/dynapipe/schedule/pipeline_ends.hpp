#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace dynapipe {

/// Largest number of samples in an end, a window that should pass through the pipeline quickly.
inline constexpr std::size_t kMaxEndSize = 24;
/// Number of different numbers of ends that are tracked after each sample.
inline constexpr std::size_t kEndBand = 64;

/// Costs of samples in windows at the ends of pipelines, and in all windows before those.
struct EndCosts {
    std::span<const double> body_ms;  ///< (n_samples + 1,): least cost of all samples before
    std::span<const double> end_ms;   ///< row-major (n_rows, kMaxEndSize): cost, as an end, of the
                                      ///< window of k + 1 samples from a row's on; may be infinite
    std::span<const std::int32_t> row_of_sample;  ///< (n_samples,)

    [[nodiscard]] std::size_t n_samples() const { return row_of_sample.size(); }

    /// Costs of the windows that begin with a sample, by number of samples, from 1.
    [[nodiscard]] std::span<const double> from(std::size_t first) const {
        const auto row = static_cast<std::size_t>(row_of_sample[first]);
        const std::size_t n_left = n_samples() - first;
        return end_ms.subspan(row * kMaxEndSize, n_left < kMaxEndSize ? n_left : kMaxEndSize);
    }
};

/// The last samples, cut into windows.
struct Ends {
    std::size_t first;               ///< the first of these samples
    std::vector<std::size_t> sizes;  ///< sizes of their windows, in order
};

/// Cuts the last samples into n_ends windows such that these and the windows of all samples before
/// them cost least.
///
/// Exact for n_ends < kEndBand: dynamic programming over samples and numbers of ends. For more
/// ends, the best cut into a few runs of equally large ends is found first. The result is then the
/// best cut near it: one whose number of ends after every sample is within the kEndBand numbers
/// around that of the first cut, and whose ends have at most twice as many samples as its ends.
///
/// Time O(n_samples * kMaxEndSize * kEndBand) and memory O(n_samples * kEndBand), independent of
/// n_ends.
///
/// @return  sizes of n_ends windows; none if no such cut is found.
/// @throws  std::invalid_argument if a NaN among the costs prevents an answer.
Ends cut_ends(const EndCosts& costs, std::size_t n_ends);

}  // namespace dynapipe
