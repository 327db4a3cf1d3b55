/// Samples to cut, and what their windows cost.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "dynapipe/batch/window_costs.hpp"
#include "dynapipe/search/random.hpp"

namespace cut_problem {

using dynapipe::PassCosts;

/// Sorted samples, of two lengths each if there is a decoder, and what their windows cost.
struct Problem {
    std::size_t n_modes = 3;
    double launch_ms;
    std::vector<double> limit_bytes;
    std::vector<PassCosts> costs;
    std::vector<std::int32_t> cells;
    std::vector<std::int32_t> row_of_sample;
    std::vector<std::int64_t> spans;

    Problem(std::size_t n_samples, std::size_t n_stages, bool has_decoder, double limit,
            dynapipe::Random& random)
        : launch_ms(n_samples < 10 ? 1 : 40) {  // so that long windows pay where they fit
        std::vector<std::pair<std::int64_t, std::int64_t>> samples(n_samples);
        for (auto& [input, target] : samples) {
            input = static_cast<std::int64_t>(8 * (1 + random.below(6)));
            target = has_decoder ? static_cast<std::int64_t>(8 * (1 + random.below(3))) : 0;
        }
        std::sort(samples.rbegin(), samples.rend());
        limit_bytes.assign(n_stages, limit);
        limit_bytes.back() *= 0.8;
        // Sorted samples of one length begin the same windows, unless targets grow later.
        std::vector<std::size_t> first;
        for (std::size_t i = 0; i < samples.size(); ++i) {
            if (i == 0 || samples[i] != samples[i - 1] || samples[i].second > 0) {
                first.push_back(i);
            }
            row_of_sample.push_back(static_cast<std::int32_t>(first.size()) - 1);
        }
        for (std::size_t mode = 0; mode < n_modes; ++mode) {
            for (const std::size_t begin : first) {
                spans.push_back(static_cast<std::int64_t>(cells.size()));
                std::int64_t input = 0, target = 0;
                for (std::size_t end = begin; end < samples.size(); ++end) {
                    input = std::max(input, samples[end].first);
                    target = std::max(target, samples[end].second);
                    const auto cell = static_cast<std::int32_t>(costs.size() / limit_bytes.size());
                    const auto n_rows = static_cast<double>(end + 1 - begin);
                    add_costs(n_rows * static_cast<double>(input + target),
                              static_cast<double>(mode), random);
                    cells.push_back(random.below(16) == 0 ? -1 : cell);
                }
                spans.push_back(static_cast<std::int64_t>(cells.size()));
            }
        }
        std::replace_if(cells.begin(), cells.end(), [&](std::int32_t c) { return !fits(c); }, -1);
    }

    /// Every mode takes longer and keeps less than the one before, but for noise.
    void add_costs(double tokens, double mode, dynapipe::Random& random) {
        for (std::size_t stage = 0; stage < limit_bytes.size(); ++stage) {
            const double ms = launch_ms + tokens * (0.5 + random.share()) / 16;
            const double stored = mode == 2 ? 0 : tokens * (0.5 + random.share()) / (1 + 3 * mode);
            costs.push_back(
                {ms, (2 + mode / 2) * ms, ms, ms / 8, tokens, stored, tokens / 8, tokens / 4});
        }
    }

    [[nodiscard]] const PassCosts& at(std::int32_t cell, std::size_t stage) const {
        return costs[static_cast<std::size_t>(cell) * limit_bytes.size() + stage];
    }

    [[nodiscard]] bool fits(std::int32_t cell) const {
        for (std::size_t stage = 0; cell >= 0 && stage < limit_bytes.size(); ++stage) {
            const PassCosts& cost = at(cell, stage);
            if (cost.stored_bytes + cost.backward_transient_bytes > limit_bytes[stage]) {
                return false;
            }
        }
        return true;
    }

    [[nodiscard]] dynapipe::WindowCosts windows() const {
        return {{costs, limit_bytes.size()}, cells, spans, row_of_sample, n_modes};
    }
};

}  // namespace cut_problem
