#include "dynapipe/search/arrange_windows.hpp"

#include <algorithm>

namespace dynapipe {

Assignment spread(const Cut& cut, const PricedCutter& cutter, std::span<const double> slowness,
                  bool balances_fill) {
    const std::size_t n_replicas = slowness.size();
    std::vector<Window> ends = cut.ends;
    std::vector<Window> body = cut.body;
    const auto by_work = [&](const Window& a, const Window& b) {
        return cutter.work_ms(a) < cutter.work_ms(b);
    };
    std::stable_sort(ends.begin(), ends.end(), by_work);
    std::stable_sort(body.begin(), body.end(),
                     [&](const Window& a, const Window& b) { return by_work(b, a); });
    Assignment replicas(n_replicas);
    std::vector<double> load_ms(n_replicas, 0.0), fill_ms(n_replicas, 0.0);
    for (std::size_t i = 0; i < ends.size(); ++i) {
        const std::size_t r = i < n_replicas ? i : ends.size() - 1 - i;
        replicas[r].push_back(ends[i]);
        load_ms[r] += cutter.work_ms(ends[i]);
    }
    std::vector<double> then_ms(n_replicas);
    for (const Window& window : body) {
        const double window_fill_ms = balances_fill ? cutter.fill_ms(window) : 0.0;
        for (std::size_t r = 0; r < n_replicas; ++r) {
            then_ms[r] = (load_ms[r] + std::max(fill_ms[r], window_fill_ms)) * slowness[r];
        }
        const auto least = std::min_element(then_ms.begin(), then_ms.end());
        const auto r = static_cast<std::size_t>(least - then_ms.begin());
        replicas[r].insert(replicas[r].end() - 1, window);
        load_ms[r] += cutter.work_ms(window);
        fill_ms[r] = std::max(fill_ms[r], window_fill_ms);
    }
    return replicas;
}

void arrange(std::vector<Window>& replica, const PricedCutter& cutter, double rise) {
    if (replica.size() < 4) {
        return;
    }
    std::vector<Window> body(replica.begin() + 1, replica.end() - 1);
    std::stable_sort(body.begin(), body.end(), [&](const Window& a, const Window& b) {
        return cutter.work_ms(a) < cutter.work_ms(b);
    });
    std::size_t front = 1;
    std::size_t back = replica.size() - 2;
    double share = 0.0;
    for (const Window& window : body) {
        share += rise;
        const bool rises = share >= 1.0;
        share -= rises ? 1.0 : 0.0;
        replica[rises ? front++ : back--] = window;
    }
}

}  // namespace dynapipe
