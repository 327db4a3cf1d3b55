#include "dynapipe/priced_cut.hpp"

#include <algorithm>
#include <limits>

namespace dynapipe {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();
/// Most samples of a window at an end: it is to be passed quickly.
constexpr std::size_t kMostOfAnEnd = 24;

}  // namespace

PricedCutter::PricedCutter(const WindowCosts& windows, std::span<const double> limit_bytes,
                           const Link& link)
    : windows_(windows),
      ratings_(windows.costs.n_microbatches()),
      cost_(windows.n_rows() * windows.max_samples),
      mode_(cost_.size()),
      longest_(windows.n_rows()),
      front_(windows.n_samples() + 1) {
    const std::size_t n_stages = windows.costs.n_stages;
    for (std::size_t i = 0; i < ratings_.size(); ++i) {
        Rating& rating = ratings_[i];
        double all_ms = 0.0;
        for (std::size_t s = 0; s < n_stages; ++s) {
            const PassCosts& cost = windows.costs.at(i, s);
            const double stage_ms = cost.forward_ms + cost.backward_ms;
            rating.work_ms = std::max(rating.work_ms, stage_ms);
            all_ms += stage_ms;
            if (s + 1 < n_stages) {
                all_ms += 2 * (link.latency_ms + cost.boundary_bytes / link.bytes_per_ms);
            }
            if (cost.stored_bytes > 0) {
                rating.kept_share = std::max(rating.kept_share, cost.stored_bytes / limit_bytes[s]);
            }
        }
        rating.fill_ms = all_ms - rating.work_ms;
    }
    for (std::uint32_t mode = 0; mode < windows.n_modes; ++mode) {
        for (std::uint32_t place = 0; place < cost_.size(); ++place) {
            const std::int32_t cell = windows.cells[mode * cost_.size() + place];
            if (cell >= 0) {
                uses_.push_back({place, static_cast<std::uint32_t>(cell), mode});
            }
        }
    }
}

Cut PricedCutter::cut(double price, double longest_ms, std::size_t n_ends) {
    price_windows(price, longest_ms);
    cut_from_front();
    cut_ends(n_ends);
    const std::size_t n = windows_.n_samples();
    std::size_t border = n;
    double least = kNever;
    for (std::size_t i = first_end_; i <= n; ++i) {
        const double sum = front_[i] + ends_[n_ends][i - first_end_];
        if (sum < least) {
            least = sum;
            border = i;
        }
    }
    Cut found;
    if (least == kNever) {
        return found;
    }
    found.body = body_up_to(border);
    for (std::size_t left = n_ends; left > 0; --left) {
        // The sums are computed as in `cut_ends`, so equality is exact.
        std::size_t size = 1;
        while (end_ms(border, size) + ends_[left - 1][border + size - first_end_] !=
               ends_[left][border - first_end_]) {
            ++size;
        }
        found.ends.push_back(window(border, size));
        border += size;
    }
    return found;
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

/// Of the window at an end; infinite if it may not be used.
double PricedCutter::end_ms(std::size_t first, std::size_t size) const {
    const auto row = static_cast<std::size_t>(windows_.row_of_sample[first]);
    if (cost_[row * windows_.max_samples + size - 1] == kNever) {
        return kNever;
    }
    const Window end = window(first, size);
    return work_ms(end) + fill_ms(end) / 2;
}

Window PricedCutter::window(std::size_t first, std::size_t size) const {
    const auto row = static_cast<std::size_t>(windows_.row_of_sample[first]);
    return {static_cast<std::uint32_t>(first), static_cast<std::uint32_t>(size),
            mode_[row * windows_.max_samples + size - 1]};
}

/// Most samples of a window that begins with a sample.
std::size_t PricedCutter::longest_window(std::size_t first) const {
    return std::min(longest_[static_cast<std::size_t>(windows_.row_of_sample[first])],
                    windows_.n_samples() - first);
}

void PricedCutter::price_windows(double price, double longest_ms) {
    std::fill(cost_.begin(), cost_.end(), kNever);
    for (const Use& use : uses_) {
        const Rating& rating = ratings_[use.microbatch];
        const double cost = rating.work_ms * (1 + price * rating.kept_share);
        const bool is_alone = use.place % windows_.max_samples == 0;
        if (cost < cost_[use.place] && (is_alone || rating.work_ms <= longest_ms)) {
            cost_[use.place] = cost;
            mode_[use.place] = use.mode;
        }
    }
    for (std::size_t row = 0; row < longest_.size(); ++row) {
        longest_[row] = windows_.max_samples;
        while (longest_[row] > 0 &&
               cost_[row * windows_.max_samples + longest_[row] - 1] == kNever) {
            --longest_[row];
        }
    }
}

/// From the first sample to the last, so that the cost of all beginnings is known.
void PricedCutter::cut_from_front() {
    std::fill(front_.begin(), front_.end(), kNever);
    front_[0] = 0.0;
    for (std::size_t i = 0; i < windows_.n_samples(); ++i) {
        const auto row = static_cast<std::size_t>(windows_.row_of_sample[i]);
        const double* cost = &cost_[row * windows_.max_samples];
        const double before = front_[i];
        double* after = &front_[i + 1];
        const std::size_t n = longest_window(i);
        for (std::size_t k = 0; k < n; ++k) {
            after[k] = std::min(after[k], before + cost[k]);
        }
    }
}

void PricedCutter::cut_ends(std::size_t n_ends) {
    const std::size_t n = windows_.n_samples();
    first_end_ = n - std::min(n, n_ends * kMostOfAnEnd);
    ends_.assign(n_ends + 1, std::vector<double>(n - first_end_ + 1, kNever));
    ends_[0].back() = 0.0;
    for (std::size_t left = 1; left <= n_ends; ++left) {
        for (std::size_t i = first_end_; i < n; ++i) {
            double& least = ends_[left][i - first_end_];
            const std::size_t most = std::min(longest_window(i), kMostOfAnEnd);
            for (std::size_t size = 1; size <= most; ++size) {
                const double rest_ms = ends_[left - 1][i + size - first_end_];
                least = std::min(least, end_ms(i, size) + rest_ms);
            }
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
                   front_[first] + cost_[row * windows_.max_samples + size - 1] == front_[end];
        };
        while (!reaches(end - size)) {
            ++size;
        }
        body.push_back(window(end - size, size));
        end -= size;
    }
    std::reverse(body.begin(), body.end());
    return body;
}

}  // namespace dynapipe
