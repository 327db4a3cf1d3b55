#include "dynapipe/list_scheduler.hpp"

#include <algorithm>

namespace dynapipe {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();

}  // namespace

ListScheduler::ListScheduler(const StageCosts& costs, std::span<const double> limit_bytes,
                             const Link& link, std::size_t longest_list)
    : costs_(costs),
      limit_bytes_(limit_bytes),
      link_(link),
      n_stages_(costs.n_stages),
      longest_list_(longest_list),
      stages_(n_stages_),
      arrivals_ms_(2 * n_stages_ * longest_list),
      passes_(2 * n_stages_ * longest_list) {}

double ListScheduler::run(std::span<const std::uint32_t> list, double give_up_ms) {
    start(list);
    double makespan_ms = 0.0;
    for (std::size_t n_left = 2 * list.size() * n_stages_; n_left > 0; --n_left) {
        std::size_t stage = 0;
        for (std::size_t s = 1; s < n_stages_; ++s) {
            stage = stages_[s].next_ms < stages_[stage].next_ms ? s : stage;
        }
        // Infinite if nothing may run, which a micro-batch that does not fit alone would cause.
        if (stages_[stage].next_ms + stages_[stage].work_left_ms > give_up_ms ||
            stages_[stage].next_ms == kNever) {
            return kNever;
        }
        execute(stage);
        makespan_ms = std::max(makespan_ms, stages_[stage].free_ms);
        for (std::size_t s = stage - (stage > 0); s <= stage + (stage + 1 < n_stages_); ++s) {
            choose(s);
        }
    }
    return makespan_ms;
}

std::vector<PassCode> ListScheduler::order() const {
    std::vector<PassCode> order;
    order.reserve(2 * n_stages_ * list_.size());
    for (std::size_t stage = 0; stage < n_stages_; ++stage) {
        const auto first = passes_.begin() + static_cast<std::ptrdiff_t>(2 * stage * longest_list_);
        order.insert(order.end(), first, first + static_cast<std::ptrdiff_t>(2 * list_.size()));
    }
    return order;
}

void ListScheduler::start(std::span<const std::uint32_t> list) {
    list_ = list;
    std::fill(stages_.begin(), stages_.end(), Stage{});
    for (std::size_t place = 0; place < list.size(); ++place) {
        arrival_ms(0, place, false) = 0.0;
        for (std::size_t s = 0; s < n_stages_; ++s) {
            const PassCosts& cost = cost_of(place, s);
            stages_[s].work_left_ms += cost.forward_ms + cost.backward_ms;
        }
    }
    stages_.front().n_arrived_forward = list.size();
    for (std::size_t s = 0; s < n_stages_; ++s) {
        choose(s);
    }
}

void ListScheduler::choose(std::size_t s) {
    Stage& stage = stages_[s];
    const double backward_ms = stage.n_backward < stage.n_arrived_backward
                                   ? std::max(stage.free_ms, arrival_ms(s, stage.n_backward, true))
                                   : kNever;
    const double forward_ms = stage.n_forward < stage.n_arrived_forward
                                  ? std::max(stage.free_ms, arrival_ms(s, stage.n_forward, false))
                                  : kNever;
    // Memory is looked at only where it decides.
    stage.next_is_backward = backward_ms <= forward_ms || !has_room(s);
    stage.next_ms = stage.next_is_backward ? backward_ms : forward_ms;
}

bool ListScheduler::has_room(std::size_t s) const {
    const Stage& stage = stages_[s];
    const double limit_bytes = limit_bytes_[s];
    const PassCosts& entering = cost_of(stage.n_forward, s);
    double kept = stage.kept_bytes + entering.stored_bytes;
    if (kept + entering.forward_transient_bytes > limit_bytes) {
        return false;
    }
    for (std::size_t place = stage.n_backward; place <= stage.n_forward; ++place) {
        const PassCosts& cost = cost_of(place, s);
        if (kept + cost.backward_transient_bytes > limit_bytes) {
            return false;
        }
        kept -= cost.stored_bytes;
    }
    return true;
}

void ListScheduler::execute(std::size_t s) {
    Stage& stage = stages_[s];
    const bool backward = stage.next_is_backward;
    const std::size_t place = backward ? stage.n_backward++ : stage.n_forward++;
    const PassCosts& cost = cost_of(place, s);
    const double pass_ms = backward ? cost.backward_ms : cost.forward_ms;
    passes_[2 * s * longest_list_ + stage.n_forward + stage.n_backward - 1] =
        pass_code(place, backward ? PassKind::kBackward : PassKind::kForward);
    stage.free_ms = stage.next_ms + pass_ms;
    stage.work_left_ms -= pass_ms;
    stage.kept_bytes += backward ? -cost.stored_bytes : cost.stored_bytes;
    if (stage.n_forward == stage.n_backward) {
        stage.kept_bytes = 0.0;  // fractions of bytes leave a rounding error behind
    }
    if (backward && s > 0) {
        send(s, s - 1, place, stage.free_ms);
    } else if (!backward && s + 1 < n_stages_) {
        send(s, s + 1, place, stage.free_ms);
    } else if (!backward) {
        arrival_ms(s, place, true) = stage.free_ms;
        ++stage.n_arrived_backward;
    }
}

void ListScheduler::send(std::size_t from, std::size_t to, std::size_t place, double ready_ms) {
    const bool backward = to < from;
    double& link_free_ms = stages_[from].link_free_ms[link_.full_duplex && backward ? 1 : 0];
    const double bytes = cost_of(place, std::min(from, to)).boundary_bytes;
    link_free_ms =
        std::max(ready_ms, link_free_ms) + (link_.latency_ms + bytes / link_.bytes_per_ms);
    arrival_ms(to, place, backward) = link_free_ms;
    ++(backward ? stages_[to].n_arrived_backward : stages_[to].n_arrived_forward);
}

}  // namespace dynapipe
