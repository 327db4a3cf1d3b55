/// Reductions of gradients, which stages begin after their last passes.
#pragma once

#include <algorithm>
#include <span>
#include <vector>

#include "dynapipe/schedule/simulate.hpp"
#include "dynapipe/search/random.hpp"

namespace reductions {

/// What each stage takes; half of the stages and more take nothing.
inline std::vector<double> drawn(dynapipe::Random& random, std::size_t n_stages) {
    std::vector<double> reduce_ms;
    for (std::size_t s = 0; s < n_stages; ++s) {
        const bool reduces = random.below(2) == 0;
        reduce_ms.push_back(reduces ? static_cast<double>(random.below(20)) : 0.0);
    }
    return reduce_ms;
}

/// When the gradients of all stages are reduced.
inline double end_ms(const dynapipe::Timeline& timeline, std::span<const double> reduce_ms) {
    const std::size_t n_passes = timeline.end_ms.size() / reduce_ms.size();
    double ms = 0.0;
    for (std::size_t s = 0; s < reduce_ms.size(); ++s) {
        ms = std::max(ms, timeline.end_ms[(s + 1) * n_passes - 1] + reduce_ms[s]);
    }
    return ms;
}

}  // namespace reductions
