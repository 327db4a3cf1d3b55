#include "dynapipe/search/work_cache.hpp"

#include <algorithm>
#include <limits>
#include <utility>

namespace dynapipe {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();

}  // namespace

WorkCache::WorkCache(const StageCosts& costs, const Link& link, bool split_backward)
    : costs_(costs),
      link_(link),
      split_backward_(split_backward),
      kind_of_stage_(costs.n_stages),
      known_at_(costs.n_microbatches(), -1) {
    const auto kinds = [&](std::size_t s) {
        return std::pair(costs.kind_of(s), s > 0 ? costs.kind_of(s - 1) : costs.n_kinds);
    };
    for (std::size_t s = 0; s < costs.n_stages; ++s) {
        const auto same = std::find_if(first_of_kind_.begin(), first_of_kind_.end(),
                                       [&](std::size_t first) { return kinds(first) == kinds(s); });
        kind_of_stage_[s] = static_cast<std::size_t>(same - first_of_kind_.begin());
        if (same == first_of_kind_.end()) {
            first_of_kind_.push_back(s);
        }
    }
}

std::span<const StageWork* const> WorkCache::look_up(std::span<const std::uint32_t> list) {
    for (const std::uint32_t microbatch : list) {
        if (known_at_[microbatch] < 0) {
            add(microbatch);
        }
    }
    found_.clear();
    for (const std::uint32_t microbatch : list) {
        const auto place = static_cast<std::size_t>(known_at_[microbatch]);
        found_.push_back(&known_[place * first_of_kind_.size()]);
    }
    return found_;
}

void WorkCache::add(std::uint32_t microbatch) {
    known_at_[microbatch] = static_cast<std::int32_t>(known_.size() / first_of_kind_.size());
    for (const std::size_t s : first_of_kind_) {
        const PassCosts& cost = costs_.at(microbatch, s);
        const double weight_ms = split_backward_ ? cost.weight_ms : 0.0;
        const auto send_ms = [&](std::size_t from) {
            return link_.latency_ms +
                   costs_.at(microbatch, from).boundary_bytes / link_.bytes_per_ms;
        };
        const double whole_ms = cost.backward_ms;
        // All are infinite if it cannot run, and a difference would be no number.
        const double gradient_ms =
            split_backward_ && whole_ms != kNever ? cost.gradient_ms() : whole_ms;
        known_.push_back({{cost.forward_ms, gradient_ms, weight_ms},
                          {send_ms(s), s > 0 ? send_ms(s - 1) : 0.0},
                          cost.stored_bytes,
                          cost.forward_transient_bytes,
                          cost.backward_transient_bytes});
    }
}

}  // namespace dynapipe
