#include "dynapipe/batch/priced_cut.hpp"

#include <algorithm>
#include <limits>
#include <stdexcept>
#include <utility>

namespace dynapipe {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();

std::vector<Rating> ratings_of(const WindowCosts& windows, std::span<const double> limit_bytes,
                               const Link& link) {
    const StageCosts& costs = windows.costs;
    std::vector<Rating> ratings(costs.n_microbatches());
    const std::vector<double> limit_of_kinds = least_of_kinds(costs, limit_bytes);
    std::vector<double> stage_ms(costs.n_kinds), send_ms(costs.n_kinds);
    for (std::size_t i = 0; i < ratings.size(); ++i) {
        Rating& rating = ratings[i];
        for (std::size_t kind = 0; kind < costs.n_kinds; ++kind) {
            const PassCosts& cost = costs.entries[i * costs.n_kinds + kind];
            stage_ms[kind] = cost.forward_ms + cost.backward_ms;
            send_ms[kind] = 2 * (link.latency_ms + cost.boundary_bytes / link.bytes_per_ms);
            rating.work_ms = std::max(rating.work_ms, stage_ms[kind]);
            if (cost.stored_bytes > 0) {
                rating.kept_share =
                    std::max(rating.kept_share, cost.stored_bytes / limit_of_kinds[kind]);
            }
        }
        double all_ms = 0.0;
        for (std::size_t s = 0; s < costs.n_stages; ++s) {
            const std::size_t kind = costs.kind_of(s);
            all_ms += stage_ms[kind];
            if (s + 1 < costs.n_stages) {
                all_ms += send_ms[kind];
            }
        }
        rating.fill_ms = all_ms - rating.work_ms;
    }
    return ratings;
}

}  // namespace

PricedCutter::PricedCutter(const WindowCosts& windows, std::span<const double> limit_bytes,
                           const Link& link)
    : PricedCutter(windows, ratings_of(windows, limit_bytes, link)) {}

PricedCutter::PricedCutter(const WindowCosts& windows, std::vector<Rating> ratings)
    : windows_(windows),
      ratings_(std::move(ratings)),
      longest_(windows.n_rows()),
      front_(windows.n_samples() + 1) {
    collect_uses();
    cost_.resize(begin_.back());
    use_.resize(begin_.back());
}

void PricedCutter::collect_uses() {
    std::vector<std::size_t> first(windows_.n_rows());
    for (std::size_t i = windows_.n_samples(); i-- > 0;) {
        first[static_cast<std::size_t>(windows_.row_of_sample[i])] = i;
    }
    begin_.push_back(0);
    for (const std::size_t each : first) {
        add_uses(each);
    }
}

void PricedCutter::add_uses(std::size_t first) {
    std::size_t longest = 0;
    for (std::uint32_t mode = 0; mode < windows_.n_modes; ++mode) {
        const std::span<const std::int32_t> cells = windows_.row(first, mode);
        const std::size_t most = std::min(cells.size(), windows_.n_samples() - first);
        for (std::size_t size = 1; size <= most; ++size) {
            const std::int32_t cell = cells[size - 1];
            if (cell < 0) {
                continue;
            }
            const Rating& rating = ratings_[static_cast<std::size_t>(cell)];
            uses_.push_back({static_cast<std::uint32_t>(begin_.back() + size - 1),
                             static_cast<std::uint32_t>(cell), mode, size == 1, rating.work_ms,
                             rating.kept_share});
            longest = std::max(longest, size);
        }
    }
    begin_.push_back(begin_.back() + longest);
}

Cut PricedCutter::cut(const CutRule& rule, std::size_t n_ends) {
    price_windows(rule);
    return cheapest(n_ends);
}

Cut PricedCutter::cut_below(double fill_ms) {
    for (std::size_t place = 0; place < cost_.size(); ++place) {
        if (cost_[place] < kNever && of(uses_[use_[place]]).fill_ms >= fill_ms) {
            cost_[place] = kNever;
        }
    }
    find_longest();
    return cheapest(0);
}

Cut PricedCutter::cheapest(std::size_t n_ends) {
    cut_from_front();
    const std::size_t n_samples = windows_.n_samples();
    const std::size_t size = best_end_size(n_ends);
    Cut cut;
    if (size == 0) {
        return cut;
    }
    cut.body = body_up_to(n_samples - size * n_ends);
    for (std::size_t first = n_samples - size * n_ends; first < n_samples; first += size) {
        cut.ends.push_back(window(first, size));
    }
    return cut;
}

/// Number of samples in each end so that these and the body before them cost least; 0 if there is
/// no such cut.
std::size_t PricedCutter::best_end_size(std::size_t n_ends) const {
    const std::size_t n_samples = windows_.n_samples();
    std::size_t best = 0;
    double least_ms = kNever;
    for (std::size_t size = 1; size <= kMaxEndSize && size * n_ends <= n_samples; ++size) {
        double ms = front_[n_samples - size * n_ends];
        for (std::size_t i = n_samples - size * n_ends; i < n_samples; i += size) {
            ms += end_ms(i, size);
        }
        if (ms < least_ms) {
            least_ms = ms;
            best = size;
        }
    }
    return best;
}

void PricedCutter::choose_mode(Window& window, double price) const {
    double least = kNever;
    for (std::uint32_t mode = 0; mode < windows_.n_modes; ++mode) {
        const std::int32_t cell = windows_.cell(window.first, window.size, mode);
        if (cell < 0) {
            continue;
        }
        const Rating& rating = ratings_[static_cast<std::size_t>(cell)];
        const double cost = rating.work_ms * (1 + price * rating.kept_share);
        if (cost < least) {
            least = cost;
            window.mode = mode;
        }
    }
}

Window PricedCutter::window(std::size_t first, std::size_t size) const {
    return {static_cast<std::uint32_t>(first), static_cast<std::uint32_t>(size),
            uses_[use_[place(first, size)]].mode};
}

/// Most samples of a window that begins with a sample.
std::size_t PricedCutter::longest_window(std::size_t first) const {
    return std::min(longest_[static_cast<std::size_t>(windows_.row_of_sample[first])],
                    windows_.n_samples() - first);
}

void PricedCutter::price_windows(const CutRule& rule) {
    std::fill(cost_.begin(), cost_.end(), kNever);
    for (std::size_t i = 0; i < uses_.size(); ++i) {
        const Use& use = uses_[i];
        const double cost = use.work_ms * (1 + rule.memory_price * use.kept_share);
        const bool is_allowed = use.mode == rule.mode.value_or(use.mode) &&
                                (use.is_alone || (use.work_ms <= rule.longest_ms &&
                                                  use.kept_share <= rule.most_kept_share));
        if (cost < cost_[use.place] && is_allowed) {
            cost_[use.place] = cost;
            use_[use.place] = i;
        }
    }
    for (std::size_t row = 0; row < longest_.size(); ++row) {
        longest_[row] = begin_[row + 1] - begin_[row];
    }
    find_longest();
}

void PricedCutter::find_longest() {
    for (std::size_t row = 0; row < longest_.size(); ++row) {
        while (longest_[row] > 0 && cost_[begin_[row] + longest_[row] - 1] == kNever) {
            --longest_[row];
        }
    }
}

/// Cost of a window at an end; infinite if it may not be used.
double PricedCutter::end_ms(std::size_t first, std::size_t size) const {
    if (size > longest_window(first) || cost_[place(first, size)] == kNever) {
        return kNever;
    }
    const Rating& rating = of(uses_[use_[place(first, size)]]);
    return rating.work_ms + rating.fill_ms / 2;
}

/// From the first sample to the last, so that the cost of all beginnings is known.
void PricedCutter::cut_from_front() {
    std::fill(front_.begin(), front_.end(), kNever);
    front_[0] = 0.0;
    for (std::size_t i = 0; i < windows_.n_samples(); ++i) {
        const double* cost = cost_.data() + place(i, 1);
        const double before = front_[i];
        double* after = &front_[i + 1];
        const std::size_t n = longest_window(i);
        for (std::size_t k = 0; k < n; ++k) {
            after[k] = std::min(after[k], before + cost[k]);
        }
    }
}

std::vector<Window> PricedCutter::body_up_to(std::size_t end) const {
    std::vector<Window> body;
    while (end > 0) {
        std::size_t size = 1;  // the sums are computed as in `cut_from_front`
        const auto reaches = [&](std::size_t first) {
            const auto row = static_cast<std::size_t>(windows_.row_of_sample[first]);
            return size <= longest_[row] &&
                   front_[first] + cost_[begin_[row] + size - 1] == front_[end];
        };
        while (size <= end && !reaches(end - size)) {
            ++size;
        }
        if (size > end) {
            throw std::invalid_argument("the cost of a window is no number");
        }
        body.push_back(window(end - size, size));
        end -= size;
    }
    std::reverse(body.begin(), body.end());
    return body;
}

}  // namespace dynapipe
