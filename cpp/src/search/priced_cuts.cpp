#include "dynapipe/search/priced_cuts.hpp"

#include <algorithm>
#include <functional>
#include <utility>

namespace dynapipe {
namespace {

/// The larger of work, and of micro-batches one after the other in the memory that they keep.
double even_share_ms(const Cut& cut, const PricedCutter& cutter, std::size_t n_replicas) {
    double work_ms = 0.0;
    double kept_ms = 0.0;
    double longest_fill_ms = 0.0;
    for (const std::vector<Window>& windows : {std::cref(cut.body), std::cref(cut.ends)}) {
        for (const Window& window : windows) {
            const double fill_ms = cutter.fill_ms(window);
            work_ms += cutter.work_ms(window);
            kept_ms += cutter.kept_share(window) * (cutter.work_ms(window) + fill_ms);
            longest_fill_ms = std::max(longest_fill_ms, fill_ms);
        }
    }
    const auto n = static_cast<double>(n_replicas);
    return std::max(work_ms / n + longest_fill_ms, kept_ms / n);
}

}  // namespace

std::vector<PricedCut> priced_cuts(PricedCutter& cutter, std::size_t n_replicas,
                                   std::span<const double> prices) {
    std::vector<PricedCut> cuts;
    for (const double price : prices) {
        const CutRule rule{.memory_price = price};
        Cut cut = cutter.cut(rule, 2 * n_replicas);
        const double estimate_ms = even_share_ms(cut, cutter, n_replicas);
        cuts.push_back({rule, std::move(cut), estimate_ms});
    }
    std::stable_sort(cuts.begin(), cuts.end(), [](const PricedCut& a, const PricedCut& b) {
        return a.estimate_ms < b.estimate_ms;
    });
    return cuts;
}

}  // namespace dynapipe
