#include "dynapipe/list_scheduler.hpp"

#include <algorithm>

namespace dynapipe {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();
/// What sums of times may be off by, relatively.
constexpr double kRounding = 1e-12;
constexpr std::size_t kForward = 0;
constexpr std::size_t kBackward = 1;
constexpr std::size_t kWeight = 2;

/// Where the least entry is. Four, as most pipelines have, are compared in pairs, which need not
/// wait for each other.
std::size_t soonest(std::span<const double> ms) {
    if (ms.size() == 4) {
        const std::size_t low = ms[1] < ms[0] ? 1 : 0;
        const std::size_t high = ms[3] < ms[2] ? 3 : 2;
        return std::min(ms[2], ms[3]) < std::min(ms[0], ms[1]) ? high : low;
    }
    std::size_t least = 0;
    for (std::size_t i = 1; i < ms.size(); ++i) {
        least = ms[i] < ms[least] ? i : least;
    }
    return least;
}

}  // namespace

ListScheduler::ListScheduler(const StageCosts& costs, std::span<const double> limit_bytes,
                             const Link& link, std::size_t longest_list, bool split_backward)
    : costs_(costs),
      limit_bytes_(limit_bytes),
      link_(link),
      n_stages_(costs.n_stages),
      longest_list_(longest_list),
      split_backward_(split_backward),
      prepared_at_(costs.n_microbatches(), -1),
      stages_(n_stages_),
      next_ms_(n_stages_),
      arrivals_ms_(2 * n_stages_ * (longest_list + 1)),
      passes_(3 * n_stages_ * longest_list) {
    works_.reserve(longest_list + 1);
}

double ListScheduler::run(std::span<const std::uint32_t> list, double give_up_ms) {
    give_up_ms *= 1.0 + kRounding;
    effort_ += list.size();
    if (!start(list, give_up_ms)) {
        return kNever;
    }
    return split_backward_ ? run_to_end<true>(give_up_ms) : run_to_end<false>(give_up_ms);
}

template <bool kSplit>
double ListScheduler::run_to_end(double give_up_ms) {
    choose<kSplit>(0);
    const std::size_t n_steps = kSplit ? 3 * n_stages_ : 2 * n_stages_ - 1;
    for (std::size_t n = n_steps * works_.size(); n > 0; --n, ++effort_) {
        const std::size_t stage = soonest(next_ms_);
        const Stage& next = stages_[stage];
        const double left_ms = next.path_left_ms + std::max(next.weight_left_ms, next.tail_ms);
        // Infinite if nothing may run, which a micro-batch that does not fit alone would cause.
        if (next_ms_[stage] + left_ms > give_up_ms || next_ms_[stage] == kNever) {
            return kNever;
        }
        if (!kSplit && stage + 1 == n_stages_) {
            execute_both(stage);
        } else {
            execute<kSplit>(stage);
        }
    }
    double makespan_ms = 0.0;
    for (const Stage& stage : stages_) {
        makespan_ms = std::max(makespan_ms, stage.free_ms);
    }
    return makespan_ms;
}

std::vector<PassCode> ListScheduler::order() const {
    const std::size_t n_passes = (split_backward_ ? 3 : 2) * works_.size();
    std::vector<PassCode> order;
    order.reserve(n_stages_ * n_passes);
    for (std::size_t stage = 0; stage < n_stages_; ++stage) {
        const auto first = passes_.begin() + static_cast<std::ptrdiff_t>(3 * stage * longest_list_);
        order.insert(order.end(), first, first + static_cast<std::ptrdiff_t>(n_passes));
    }
    return order;
}

void ListScheduler::prepare(std::uint32_t microbatch) {
    prepared_at_[microbatch] = static_cast<std::int32_t>(prepared_.size());
    for (std::size_t s = 0; s < n_stages_; ++s) {
        const PassCosts& cost = costs_.at(microbatch, s);
        const double weight_ms = split_backward_ ? cost.weight_ms : 0.0;
        const auto send_ms = [&](std::size_t from) {
            return link_.latency_ms +
                   costs_.at(microbatch, from).boundary_bytes / link_.bytes_per_ms;
        };
        prepared_.push_back({{cost.forward_ms, cost.backward_ms - weight_ms, weight_ms},
                             {send_ms(s), s > 0 ? send_ms(s - 1) : 0.0},
                             cost.stored_bytes,
                             cost.forward_transient_bytes,
                             cost.backward_transient_bytes});
    }
}

/// False if the makespan is certain to exceed a limit: a stage waits for the first micro-batch,
/// has its work to do, and the last one still has to go back from it.
bool ListScheduler::start(std::span<const std::uint32_t> list, double give_up_ms) {
    for (const std::uint32_t microbatch : list) {
        if (prepared_at_[microbatch] < 0) {
            prepare(microbatch);
        }
    }
    works_.clear();
    std::fill(stages_.begin(), stages_.end(), Stage{});
    for (const std::uint32_t microbatch : list) {
        const Work* works = &prepared_[static_cast<std::size_t>(prepared_at_[microbatch])];
        works_.push_back(works);
        for (std::size_t s = 0; s < n_stages_; ++s) {
            Stage& stage = stages_[s];
            stage.path_left_ms += works[s].pass_ms[kForward] + works[s].pass_ms[kBackward];
            stage.weight_left_ms += works[s].pass_ms[kWeight];
            stage.kept_bytes += works[s].stored_bytes;
            stage.greatest_transient_bytes =
                std::max({stage.greatest_transient_bytes, works[s].forward_transient_bytes,
                          works[s].backward_transient_bytes});
        }
    }
    double head_ms = 0.0;
    double tail_ms = 0.0;
    for (std::size_t s = 0; s < n_stages_; ++s) {
        Stage& stage = stages_[s];
        tail_ms += works_.back()[s].send_ms[kBackward];
        stage.tail_ms = tail_ms;
        if (head_ms + stage.path_left_ms + std::max(stage.weight_left_ms, tail_ms) > give_up_ms) {
            return false;
        }
        head_ms += works_.front()[s].pass_ms[kForward] + works_.front()[s].send_ms[kForward];
        tail_ms += works_.back()[s].pass_ms[kBackward];
        stage.memory_may_bind = stage.kept_bytes + stage.greatest_transient_bytes > limit_bytes_[s];
        stage.kept_bytes = 0.0;
        next_ms_[s] = kNever;
        for (std::size_t k : {kForward, kBackward}) {
            stage.arrivals_ms[k] = &arrivals_ms_[(2 * s + k) * (longest_list_ + 1)];
            std::fill_n(stage.arrivals_ms[k], list.size() + 1, kNever);
        }
    }
    std::fill_n(arrivals_ms_.begin(), list.size(), 0.0);
    return true;
}

/// What a stage runs next, as far as is known, and when.
template <bool kSplit>
void ListScheduler::choose(std::size_t s) {
    Stage& stage = stages_[s];
    double backward_ms = std::max(stage.free_ms, stage.next_arrival_ms(kBackward));
    const double forward_ms = std::max(stage.free_ms, stage.next_arrival_ms(kForward));
    // Memory is looked at only where it decides.
    if (kSplit && stage.memory_may_bind && backward_ms < kNever && !may_return(s)) {
        backward_ms = kNever;
    }
    const bool enters =
        forward_ms < backward_ms && (!stage.memory_may_bind || may_enter<kSplit>(s));
    stage.next = enters ? PassKind::kForward : PassKind::kBackward;
    double next_ms = enters ? forward_ms : backward_ms;
    if (kSplit && next_ms > stage.free_ms && stage.n_done[kWeight] < stage.n_done[kBackward]) {
        stage.next = PassKind::kWeight;
        next_ms = stage.free_ms;
    }
    next_ms_[s] = next_ms;
}

/// Whether the next forward pass fits, now and while each micro-batch in flight goes back.
template <bool kSplit>
bool ListScheduler::may_enter(std::size_t s) const {
    const Stage& stage = stages_[s];
    const double limit_bytes = limit_bytes_[s];
    const std::uint32_t last = stage.n_done[kForward];
    const Work& entering = work(last, s);
    double kept = stage.kept_bytes + entering.stored_bytes;
    if (kept + stage.greatest_transient_bytes <= limit_bytes) {
        return true;
    }
    if (kept + entering.forward_transient_bytes > limit_bytes) {
        return false;
    }
    for (std::uint32_t place = stage.n_done[kSplit ? kWeight : kBackward]; place <= last; ++place) {
        if (kept + work(place, s).backward_transient_bytes > limit_bytes) {
            return false;
        }
        kept -= work(place, s).stored_bytes;
    }
    return true;
}

/// Whether the next backward pass fits before gradients of weights have freed memory; if there
/// are none to come it does.
bool ListScheduler::may_return(std::size_t s) const {
    const Stage& stage = stages_[s];
    const Work& returning = work(stage.n_done[kBackward], s);
    return stage.n_done[kWeight] == stage.n_done[kBackward] ||
           stage.kept_bytes + returning.backward_transient_bytes <= limit_bytes_[s];
}

template <bool kSplit>
void ListScheduler::execute(std::size_t s) {
    Stage& stage = stages_[s];
    const auto k = static_cast<std::size_t>(stage.next);
    passes_[3 * s * longest_list_ + stage.n_passes++] = pass_code(stage.n_done[k], stage.next);
    const std::uint32_t place = stage.n_done[k]++;
    const Work& done = work(place, s);
    stage.free_ms = next_ms_[s] + done.pass_ms[k];
    (k == kWeight ? stage.weight_left_ms : stage.path_left_ms) -= done.pass_ms[k];
    if (k == kForward) {
        stage.kept_bytes += done.stored_bytes;
    } else if (k == (kSplit ? kWeight : kBackward)) {
        // Fractions of bytes leave a rounding error behind.
        stage.kept_bytes =
            stage.n_done[k] == stage.n_done[kForward] ? 0.0 : stage.kept_bytes - done.stored_bytes;
    }
    if (k == kForward && s + 1 == n_stages_) {
        stage.arrivals_ms[kBackward][place] = stage.free_ms;
    } else if (k == kForward || (k == kBackward && s > 0)) {
        send<kSplit>(s, k, place);
    }
    choose<kSplit>(s);
}

/// A forward pass of the last stage and its backward pass, which is always next.
void ListScheduler::execute_both(std::size_t s) {
    Stage& stage = stages_[s];
    const std::uint32_t place = stage.n_done[kForward]++;
    ++stage.n_done[kBackward];
    passes_[3 * s * longest_list_ + stage.n_passes++] = pass_code(place, PassKind::kForward);
    passes_[3 * s * longest_list_ + stage.n_passes++] = pass_code(place, PassKind::kBackward);
    const Work& done = work(place, s);
    stage.free_ms = next_ms_[s] + done.pass_ms[kForward] + done.pass_ms[kBackward];
    stage.path_left_ms -= done.pass_ms[kForward] + done.pass_ms[kBackward];
    if (s > 0) {
        send<false>(s, kBackward, place);
    }
    choose<false>(s);
}

template <bool kSplit>
void ListScheduler::send(std::size_t from, std::size_t k, std::uint32_t place) {
    const std::size_t to = k == kForward ? from + 1 : from - 1;
    Stage& stage = stages_[from];
    double& link_free_ms = stage.link_free_ms[link_.full_duplex ? k : 0];
    link_free_ms = std::max(stage.free_ms, link_free_ms) + work(place, from).send_ms[k];
    Stage& receiver = stages_[to];
    receiver.arrivals_ms[k][place] = link_free_ms;
    if (receiver.n_done[k] == place) {  // what it waits for
        choose<kSplit>(to);
    }
}

}  // namespace dynapipe
