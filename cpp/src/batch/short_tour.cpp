#include "dynapipe/batch/short_tour.hpp"

#include <algorithm>
#include <cstdlib>
#include <limits>
#include <numeric>
#include <utility>

namespace dynapipe {
namespace {

constexpr int kMaxRounds = 100;
constexpr std::size_t kMaxAhead = 2000;  // points among which the nearest is looked for

class Tour {
  public:
    Tour(std::span<const std::int64_t> x, std::span<const std::int64_t> y)
        : x_(x), y_(y), order_(x.size()) {
        std::iota(order_.begin(), order_.end(), std::int64_t{0});
    }

    /// Begins at one end and goes to the nearest point; the first of several equally near.
    void visit_nearest() {
        if (order_.size() > kMaxAhead) {
            std::stable_sort(order_.begin(), order_.end(),
                             [this](auto a, auto b) { return sum(a) > sum(b); });
        }
        std::size_t next = 0;
        for (std::size_t i = 1; i < order_.size(); ++i) {
            next = sum(order_[i]) > sum(order_[next]) ? i : next;
        }
        for (std::size_t done = 0; done < order_.size(); ++done) {
            std::swap(order_[done], order_[next]);
            std::int64_t least = std::numeric_limits<std::int64_t>::max();
            const std::size_t end = std::min(order_.size(), done + 1 + kMaxAhead);
            for (std::size_t i = done + 1; i < end; ++i) {
                const std::int64_t away = distance(order_[done], order_[i]);
                if (away < least) {
                    least = away;
                    next = i;
                }
            }
        }
    }

    /// Turns parts of the tour around; whether that made it shorter.
    bool improve(std::size_t reach) {
        bool is_shorter = false;
        for (std::size_t first = 1; first < order_.size(); ++first) {
            const std::size_t end = std::min(order_.size(), first + reach);
            for (std::size_t last = first + 1; last < end; ++last) {
                if (gain(first, last) > 0) {
                    const auto begin = order_.begin();
                    std::reverse(begin + static_cast<std::ptrdiff_t>(first),
                                 begin + static_cast<std::ptrdiff_t>(last) + 1);
                    is_shorter = true;
                }
            }
        }
        return is_shorter;
    }

    [[nodiscard]] std::vector<std::int64_t> take() { return std::move(order_); }

  private:
    [[nodiscard]] std::int64_t sum(std::int64_t point) const {
        const auto i = static_cast<std::size_t>(point);
        return x_[i] + y_[i];
    }

    [[nodiscard]] std::int64_t distance(std::int64_t from, std::int64_t to) const {
        const auto i = static_cast<std::size_t>(from);
        const auto j = static_cast<std::size_t>(to);
        return std::abs(x_[i] - x_[j]) + std::abs(y_[i] - y_[j]);
    }

    /// Length saved by turning order_[first..last] around; the tour is open behind its last point.
    [[nodiscard]] std::int64_t gain(std::size_t first, std::size_t last) const {
        const std::int64_t before = order_[first - 1];
        std::int64_t saved = distance(before, order_[first]) - distance(before, order_[last]);
        if (last + 1 < order_.size()) {
            const std::int64_t behind = order_[last + 1];
            saved += distance(order_[last], behind) - distance(order_[first], behind);
        }
        return saved;
    }

    std::span<const std::int64_t> x_;
    std::span<const std::int64_t> y_;
    std::vector<std::int64_t> order_;
};

}  // namespace

std::vector<std::int64_t> short_tour(std::span<const std::int64_t> x,
                                     std::span<const std::int64_t> y, std::size_t reach) {
    Tour tour(x, y);
    tour.visit_nearest();
    for (int round = 0; round < kMaxRounds && tour.improve(reach); ++round) {
    }
    return tour.take();
}

}  // namespace dynapipe
