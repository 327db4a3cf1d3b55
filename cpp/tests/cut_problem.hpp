/// Samples to cut, and what their windows cost.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "dynapipe/batch/window_costs.hpp"
#include "dynapipe/batch/window_shapes.hpp"
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
        look_up(samples, random);
    }

    /// Sorted samples of one length begin the same windows, unless targets grow later.
    void look_up(const std::vector<std::pair<std::int64_t, std::int64_t>>& samples,
                 dynapipe::Random& random) {
        std::vector<std::int64_t> input, target, begin{0}, first, most;
        for (std::size_t i = 0; i < samples.size(); ++i) {
            input.push_back(samples[i].first);
            target.push_back(samples[i].second);
            begin.push_back(static_cast<std::int64_t>(i + 1));
            if (i == 0 || samples[i] != samples[i - 1] || samples[i].second > 0) {
                first.push_back(static_cast<std::int64_t>(i));
                most.push_back(static_cast<std::int64_t>(samples.size() - i));
            }
            row_of_sample.push_back(static_cast<std::int32_t>(first.size()) - 1);
        }
        const auto found = dynapipe::window_shapes(input, target, begin, first, most);
        const std::size_t n_shapes = found.shapes.n_rows.size();
        for (std::size_t mode = 0; mode < n_modes; ++mode) {
            auto end = static_cast<std::int64_t>(cells.size());
            for (const std::int64_t n_cells : most) {
                spans.push_back(end);
                spans.push_back(end += n_cells);
            }
            for (const std::int32_t shape : found.cells) {
                const auto cell = static_cast<std::int32_t>(mode * n_shapes) + shape;
                cells.push_back(random.below(16) == 0 ? -1 : cell);
            }
            for (std::size_t i = 0; i < n_shapes; ++i) {
                add_costs(found.shapes, i, static_cast<double>(mode), random);
            }
        }
        std::replace_if(cells.begin(), cells.end(), [&](std::int32_t c) { return !fits(c); }, -1);
    }

    /// Every mode takes longer and keeps less than the one before, but for noise.
    void add_costs(const dynapipe::Shapes& shapes, std::size_t i, double mode,
                   dynapipe::Random& random) {
        const auto rows = static_cast<double>(shapes.n_rows[i]);
        const double tokens =
            rows * static_cast<double>(shapes.row_tokens[i] + shapes.target_tokens[i]);
        for (std::size_t stage = 0; stage < limit_bytes.size(); ++stage) {
            const double ms = launch_ms + tokens * (0.5 + random.share()) / 16;
            const double stored = mode == 2 ? 0 : tokens * (0.5 + random.share()) / (1 + 3 * mode);
            costs.push_back(
                {ms, (2 + mode / 2) * ms, ms, ms / 8, tokens, stored, tokens / 8, tokens / 4});
        }
    }

    [[nodiscard]] bool fits(std::int32_t cell) const {
        for (std::size_t stage = 0; cell >= 0 && stage < limit_bytes.size(); ++stage) {
            const PassCosts& cost =
                costs[static_cast<std::size_t>(cell) * limit_bytes.size() + stage];
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
