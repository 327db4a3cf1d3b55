/// Samples to plan for, and what a plan must hold.
#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <span>
#include <vector>

#include "check.hpp"
#include "dynapipe/batch/priced_cut.hpp"
#include "dynapipe/schedule/replica_simulator.hpp"
#include "dynapipe/search/random.hpp"

namespace plan_problem {

using dynapipe::Assignment;
using dynapipe::ReplicaSimulator;

inline constexpr std::size_t kSamples = 40;
inline constexpr std::size_t kStages = 3;
inline constexpr std::size_t kModes = 2;
inline constexpr std::size_t kMaxSamples = 6;
inline constexpr dynapipe::Link kLink{0.5, 10.0, true};

/// Samples of falling length; a second mode is slower and keeps a quarter.
struct Problem {
    std::vector<dynapipe::PassCosts> costs;
    std::vector<std::int32_t> cells;
    std::vector<std::int64_t> spans;
    std::vector<std::int32_t> row_of_sample = std::vector<std::int32_t>(kSamples);
    std::vector<double> limit_bytes = std::vector<double>(kStages, 300.0);

    explicit Problem(std::uint64_t seed) {
        dynapipe::Random random(seed);
        std::vector<double> length(kSamples);
        std::generate(length.begin(), length.end(),
                      [&] { return 1.0 + static_cast<double>(random.below(50)); });
        std::sort(length.rbegin(), length.rend());
        for (std::size_t mode = 0; mode < kModes; ++mode) {
            for (std::size_t row = 0; row < kSamples; ++row) {
                spans.push_back(static_cast<std::int64_t>(cells.size()));
                spans.push_back(static_cast<std::int64_t>(cells.size() + kMaxSamples));
                for (std::size_t size = 1; size <= kMaxSamples; ++size) {
                    const bool exists = row + size <= kSamples;
                    cells.push_back(exists ? static_cast<std::int32_t>(costs.size() / kStages)
                                           : -1);
                    const double tokens = length[row] * static_cast<double>(size);
                    const double ms = 2.0 + tokens;
                    const double bytes = mode == 0 ? tokens : tokens / 4;
                    const double transient_bytes = bytes / 2;
                    const double back_ms = mode == 0 ? 2 * ms : 3 * ms;
                    for (std::size_t s = 0; s < kStages && exists; ++s) {
                        costs.push_back({ms, back_ms, ms, ms / 8, tokens, bytes, transient_bytes,
                                         transient_bytes});
                    }
                }
            }
        }
        std::iota(row_of_sample.begin(), row_of_sample.end(), 0);
    }

    [[nodiscard]] dynapipe::WindowCosts windows() const {
        return {{costs, kStages}, cells, spans, row_of_sample, kModes};
    }
    [[nodiscard]] dynapipe::PricedCutter cutter(const dynapipe::Link& link = kLink) const {
        return {windows(), limit_bytes, link};
    }
    [[nodiscard]] ReplicaSimulator simulator(bool split_backward,
                                             const dynapipe::Link& link = kLink,
                                             std::span<const double> reduce_ms = {}) const {
        return {windows(), limit_bytes, link, split_backward, reduce_ms};
    }
};

/// Makespan of a plan, each replica alternating or not.
inline double makespan_ms(ReplicaSimulator simulator, const Assignment& replicas,
                          const std::vector<double>& slowness) {
    double slowest_ms = 0.0;
    for (std::size_t r = 0; r < replicas.size(); ++r) {
        const double ms = simulator.best_makespan_ms(replicas[r], kNever);
        slowest_ms = std::max(slowest_ms, ms * slowness[r]);
    }
    return slowest_ms;
}

inline bool holds_every_sample_once(const Assignment& replicas) {
    std::vector<int> times(kSamples, 0);
    for (const auto& replica : replicas) {
        for (const auto& window : replica) {
            for (std::size_t i = window.first; i < window.first + window.size; ++i) {
                ++times[i];
            }
        }
    }
    return times == std::vector<int>(kSamples, 1) &&
           std::none_of(replicas.begin(), replicas.end(),
                        [](const auto& replica) { return replica.empty(); });
}

}  // namespace plan_problem
