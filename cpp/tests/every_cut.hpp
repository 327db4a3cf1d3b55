/// The least cost of all cuts that there are, straight from the definition.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "check.hpp"
#include "cut_problem.hpp"
#include "dynapipe/batch/priced_cut.hpp"
#include "dynapipe/cost/link.hpp"

namespace every_cut {

using cut_problem::Problem;
using dynapipe::Cut;
using dynapipe::CutRule;
using dynapipe::kMaxEndSize;
using dynapipe::PassCosts;
using dynapipe::Window;

constexpr dynapipe::Link kLink{0.25, 40.0, true};

/// Rules of windows and cuts, as the header states them.
struct Prices {
    const Problem& problem;
    CutRule rule;

    /// At the price; infinite if the window may not be used.
    [[nodiscard]] double body_ms(const Window& window) const {
        const std::int32_t cell = problem.windows().cell(window.first, window.size, window.mode);
        if (cell < 0) {
            return kNever;
        }
        double share = 0;
        for (std::size_t s = 0; s < problem.limit_bytes.size(); ++s) {
            share = std::max(share, problem.at(cell, s).stored_bytes / problem.limit_bytes[s]);
        }
        if (window.mode != rule.mode.value_or(window.mode) ||
            (window.size > 1 &&
             (work_ms(cell) > rule.longest_ms || share > rule.most_kept_share))) {
            return kNever;
        }
        return work_ms(cell) * (1 + rule.memory_price * share);
    }

    /// With half of the fill, in the mode that is best at the price.
    [[nodiscard]] double end_ms(const Window& window) const {
        if (window.size > kMaxEndSize || body_ms(window) != body_ms(best_mode(window)) ||
            body_ms(window) == kNever) {
            return kNever;
        }
        const std::int32_t cell = problem.windows().cell(window.first, window.size, window.mode);
        double way_ms = 0;
        for (std::size_t s = 0; s < problem.limit_bytes.size(); ++s) {
            const PassCosts& cost = problem.at(cell, s);
            way_ms += cost.forward_ms + cost.backward_ms;
            if (s + 1 < problem.limit_bytes.size()) {
                way_ms += 2 * (kLink.latency_ms + cost.boundary_bytes / kLink.bytes_per_ms);
            }
        }
        return work_ms(cell) + (way_ms - work_ms(cell)) / 2;
    }

    [[nodiscard]] Window best_mode(Window window) const {
        Window best = window;
        for (window.mode = 0; window.mode < problem.n_modes; ++window.mode) {
            best = body_ms(window) < body_ms(best) ? window : best;
        }
        return best;
    }

    [[nodiscard]] double work_ms(std::int32_t cell) const {
        double slowest_ms = 0;
        for (std::size_t s = 0; s < problem.limit_bytes.size(); ++s) {
            const PassCosts& cost = problem.at(cell, s);
            slowest_ms = std::max(slowest_ms, cost.forward_ms + cost.backward_ms);
        }
        return slowest_ms;
    }

    [[nodiscard]] double cut_ms(const Cut& cut) const {
        double sum_ms = 0;
        for (const Window& window : cut.body) {
            sum_ms += body_ms(window);
        }
        for (const Window& window : cut.ends) {
            sum_ms += end_ms(window);
        }
        return sum_ms;
    }
};

/// All cuts that there are, in every mode of every window, window by window.
inline double least_of_every_cut_and_mode(const Prices& prices, std::uint32_t first,
                                          std::size_t n_samples, std::size_t n_ends, Cut& windows) {
    if (first == n_samples) {
        return windows.ends.size() == n_ends ? prices.cut_ms(windows) : kNever;
    }
    double least_ms = kNever;
    for (std::uint32_t size = 1; first + size <= n_samples; ++size) {
        for (std::uint32_t mode = 0; mode < prices.problem.n_modes; ++mode) {
            for (std::vector<Window>* part : {&windows.body, &windows.ends}) {
                const bool has_ends = !windows.ends.empty();
                if (has_ends && (part == &windows.body || windows.ends.front().size != size)) {
                    continue;
                }
                part->push_back({first, size, mode});
                least_ms = std::min(
                    least_ms,
                    least_of_every_cut_and_mode(prices, first + size, n_samples, n_ends, windows));
                part->pop_back();
            }
        }
    }
    return least_ms;
}

/// The same, sample by sample: for more samples than one can enumerate.
inline double least_by_recurrence(const Prices& prices, std::size_t n_samples, std::size_t n_ends) {
    std::vector<double> front_ms{0};
    for (std::uint32_t end = 1; end <= n_samples; ++end) {
        front_ms.push_back(kNever);
        for (std::uint32_t first = 0; first < end; ++first) {
            const Window window = prices.best_mode({first, end - first, 0});
            front_ms[end] = std::min(front_ms[end], front_ms[first] + prices.body_ms(window));
        }
    }
    double least_ms = kNever;
    for (std::uint32_t size = 1; size <= kMaxEndSize && size * n_ends <= n_samples; ++size) {
        double ms = front_ms[n_samples - size * n_ends];
        for (std::size_t end = 0; end < n_ends; ++end) {
            const auto first = static_cast<std::uint32_t>(n_samples - size * (end + 1));
            ms += prices.end_ms(prices.best_mode({first, size, 0}));
        }
        least_ms = std::min(least_ms, ms);
    }
    return least_ms;
}

}  // namespace every_cut
