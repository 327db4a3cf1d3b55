#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "dynapipe/batch/rating.hpp"
#include "dynapipe/batch/window_costs.hpp"

namespace dynapipe {

/// Costs of all possible micro-batches. Entry begin[l] + k of both tables belongs to the
/// micro-batch of k + 1 samples whose first sample has length l. A micro-batch with an infinite
/// entry, or without an entry, may not be used. No entry is negative or NaN.
struct MicroBatchTables {
    std::span<const double> work_ms;  ///< forward and backward time on the slowest stage
    std::span<const double> fill_ms;  ///< forward and backward time on all other stages together
    std::span<const std::int64_t> begin;  ///< (n_lengths + 1,), ascending, 0 to n_entries

    [[nodiscard]] std::size_t at(std::size_t length) const {
        return static_cast<std::size_t>(begin[length]);
    }
    [[nodiscard]] std::size_t max_samples(std::size_t length) const {
        return at(length + 1) - at(length);
    }
};

struct Split {
    std::vector<std::size_t> sizes;  ///< samples per micro-batch, in order; empty if none exists
    double objective_ms;             ///< +infinity if none exists
    std::size_t n_solves;            ///< number of limits on the fill that were tried
};

/// Cuts a list of samples into consecutive micro-batches M_1, M_2, ... that minimise
///
///     max_i fill_ms(M_i) + (1 / n_replicas) * sum_i work_ms(M_i)        [ms]
///
/// exactly: the pipeline fills and drains at the pace of its slowest micro-batch, and in between is
/// busy with an equal share of the work of all micro-batches.
///
/// @param length_of_sample  per sample, in the order in which they are cut, its row in the tables.
/// @param n_replicas        number of pipelines that share the work, >= 1.
///
/// Time O(n_solves * n_samples * m) if micro-batches of finite cost have up to m samples; memory
/// O(size of the tables + n_samples). n_solves is at most about the number of distinct fills, and
/// typically a few dozen.
///
/// Source: Jiang et al., "DynaPipe", EuroSys 2024, doi:10.1145/3627703.3629585, equations 1 and
/// 2, generalised to stages of unequal cost. The paper tries limits on the slowest micro-batch at
/// fixed distances. Here the next limit is the fill of the best split under the previous limit, or
/// a smaller one if no split in between can be better.
Split split_samples(std::span<const std::int32_t> length_of_sample, const MicroBatchTables& tables,
                    std::size_t n_replicas);

/// Cuts the samples of windows by `split_samples`, every window in the mode with the least work
/// among those in which it keeps no more than a share of the memory of a stage; one sample alone
/// may keep all. If these are fewer than replicas, the best split into windows of at most n_samples
/// / n_replicas samples.
///
/// @param ratings        per entry of the costs of the windows.
/// @param largest_share  of the memory that the model leaves on a stage, in (0, 1].
/// @return               the windows in order; none if there is no such split.
std::vector<Window> split_windows(const WindowCosts& windows, std::span<const Rating> ratings,
                                  double largest_share, std::size_t n_replicas);

}  // namespace dynapipe
