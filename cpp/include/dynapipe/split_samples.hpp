#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace dynapipe {

/// What every possible micro-batch costs. Entry begin[l] + k of both tables is of a micro-batch of
/// k + 1 samples, the first of which has length l. A micro-batch with an infinite entry, or
/// without any, may not be used. No entry is negative or NaN.
struct MicroBatchTables {
    std::span<const double> work_ms;  ///< forward and backward time on the slowest stage
    std::span<const double> fill_ms;  ///< forward and backward time on all other stages together
    std::span<const std::int64_t> begin;  ///< (n_lengths + 1,), ascending, 0 to all entries

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
    std::size_t n_solves;            ///< limits on the fill that were tried
};

/// Cuts a list of samples into consecutive micro-batches M_1, M_2, ... that minimise
///
///     max_i fill_ms(M_i) + (1 / n_replicas) * sum_i work_ms(M_i)        [ms]
///
/// exactly: the time in which a pipeline fills and drains at the pace of its slowest
/// micro-batch, and in between is busy with an equal share of the work of all.
///
/// @param length_of_sample  per sample, in the order to cut, its row in the tables.
/// @param n_replicas        pipelines that share the work, >= 1.
///
/// Time O(n_solves * n_samples * m) for micro-batches of finite cost of up to m samples, memory
/// O(size of the tables + n_samples). n_solves is at most about the number of distinct fills;
/// typically some dozens.
///
/// Source: Jiang et al., "DynaPipe", EuroSys 2024, doi:10.1145/3627703.3629585, equations 1 and
/// 2, for stages of unequal cost. The paper tries limits on the slowest micro-batch at fixed
/// distances. Here the next limit is what the best split under the last one really uses, or less
/// where no split in between can win.
Split split_samples(std::span<const std::int32_t> length_of_sample, const MicroBatchTables& tables,
                    std::size_t n_replicas);

/// A split that no other beats in both fill and work.
struct FrontPoint {
    double fill_ms;                  ///< of the micro-batch that fills slowest
    double work_ms;                  ///< of all micro-batches
    std::vector<std::size_t> sizes;  ///< samples per micro-batch, in order
};

/// The exact Pareto front of the splits: for every limit on the fill the least sum of work, most
/// fill and least work first. Whatever the number of replicas, the split of `split_samples` is on
/// it. Sums are those of floating-point numbers from the last micro-batch to the first, and are
/// compared as such.
///
/// Time O(n_points * n_samples * m) for micro-batches of up to m samples, and every point has other
/// work: at most as many as there are distinct fills, typically hundreds.
std::vector<FrontPoint> split_front(std::span<const std::int32_t> length_of_sample,
                                    const MicroBatchTables& tables);

}  // namespace dynapipe
