#include "dynapipe/batch/balance_work.hpp"

#include <algorithm>
#include <functional>
#include <iterator>
#include <tuple>
#include <utility>

namespace dynapipe {
namespace {

using Items = std::vector<std::uint32_t>;

/// Items of a replica and the sum of their work.
struct Load {
    double work_ms;
    Items items;

    friend bool operator<(const Load& a, const Load& b) {
        return std::tie(a.work_ms, a.items) < std::tie(b.work_ms, b.items);
    }
    friend bool operator>(const Load& a, const Load& b) { return b < a; }
};

/// Some items on replicas, the most loaded first. Replicas without items are left out, so that
/// assignments of few items are small.
struct Assigned {
    double negative_spread_ms;
    std::vector<Load> loads;

    Assigned(std::vector<Load> unordered, std::size_t n_replicas) : loads(std::move(unordered)) {
        std::sort(loads.begin(), loads.end(), std::greater<>());
        const double least_ms = loads.size() == n_replicas ? loads.back().work_ms : 0.0;
        negative_spread_ms = least_ms - loads.front().work_ms;
    }

    friend bool operator>(const Assigned& a, const Assigned& b) {
        return std::tie(b.negative_spread_ms, b.loads) < std::tie(a.negative_spread_ms, a.loads);
    }
};

/// Both together, the most loaded replica of one with the least loaded of the other, and so on.
Assigned combined(Assigned one, Assigned other, std::size_t n_replicas) {
    const std::size_t n_both = one.loads.size() + other.loads.size();
    for (std::size_t n_shared = n_both - std::min(n_both, n_replicas); n_shared > 0; --n_shared) {
        // The least loaded of the other meets the most loaded of those that one has to share.
        Load& mine = one.loads[one.loads.size() - n_shared];
        const Load& theirs = other.loads.back();
        mine.work_ms += theirs.work_ms;
        mine.items.insert(mine.items.end(), theirs.items.begin(), theirs.items.end());
        other.loads.pop_back();
    }
    std::move(other.loads.begin(), other.loads.end(), std::back_inserter(one.loads));
    return {std::move(one.loads), n_replicas};
}

}  // namespace

std::vector<Items> balance_work(std::span<const double> work_ms, std::size_t n_replicas) {
    std::vector<Assigned> heap;
    const auto put = [&](Assigned assigned) {
        heap.push_back(std::move(assigned));
        std::push_heap(heap.begin(), heap.end(), std::greater<>());
    };
    const auto take_widest = [&] {
        std::pop_heap(heap.begin(), heap.end(), std::greater<>());
        Assigned widest = std::move(heap.back());
        heap.pop_back();
        return widest;
    };
    for (std::uint32_t i = 0; i < work_ms.size(); ++i) {
        put({{Load{work_ms[i], Items{i}}}, n_replicas});
    }
    while (heap.size() > 1) {
        Assigned widest = take_widest();
        put(combined(std::move(widest), take_widest(), n_replicas));
    }
    std::vector<Items> replicas;
    for (Load& load : take_widest().loads) {
        std::sort(load.items.begin(), load.items.end());
        replicas.push_back(std::move(load.items));
    }
    std::sort(replicas.begin(), replicas.end());
    return replicas;
}

}  // namespace dynapipe
