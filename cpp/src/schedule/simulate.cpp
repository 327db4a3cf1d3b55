#include "dynapipe/schedule/simulate.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

namespace dynapipe {
namespace {

constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();

}  // namespace

Simulator::Simulator(const StageCosts& costs, std::span<const double> static_bytes,
                     const Link& link)
    : costs_(costs),
      static_bytes_(static_bytes),
      link_(link),
      n_stages_(costs.n_stages),
      input_ms_(kKinds * costs.n_microbatches() * costs.n_stages),
      link_free_ms_(2 * n_stages_) {}

const Timeline& Simulator::run(std::span<const PassCode> order) {
    order_ = order;
    start();
    while (!awake_.empty()) {
        const std::size_t stage = awake_.back();
        awake_.pop_back();
        while (awaits_known_input(stage)) {
            run_next_pass(stage);
        }
    }
    found_.peak_bytes.clear();
    for (const StageMemory& memory : memory_) {
        found_.peak_bytes.push_back(memory.peak_bytes);
    }
    const bool done = std::all_of(found_.n_started.begin(), found_.n_started.end(),
                                  [this](std::size_t n) { return n == n_passes_; });
    found_.makespan_ms = done ? found_.makespan_ms : std::numeric_limits<double>::infinity();
    return found_;
}

void Simulator::start() {
    n_passes_ = order_.size() / n_stages_;
    splits_backward_ = n_passes_ > 2 * costs_.n_microbatches();
    std::fill(input_ms_.begin(), input_ms_.end(), kUnknown);
    std::fill(link_free_ms_.begin(), link_free_ms_.end(), 0.0);
    memory_.clear();
    for (const double bytes : static_bytes_) {
        memory_.push_back({.kept_bytes = bytes, .peak_bytes = bytes});
    }
    for (auto* times_ms :
         {&found_.start_ms, &found_.end_ms, &found_.send_start_ms, &found_.send_end_ms}) {
        times_ms->assign(order_.size(), kUnknown);
    }
    found_.busy_ms.assign(n_stages_, 0.0);
    found_.n_started.assign(n_stages_, 0);
    found_.makespan_ms = 0.0;
    for (std::size_t i = 0; i < costs_.n_microbatches(); ++i) {
        input_ms(0, pass_code(i, PassKind::kForward)) = 0.0;
    }
    awake_.assign(1, 0);
}

inline double Simulator::send_ms(const PassCosts& cost) const {
    return link_.latency_ms + cost.boundary_bytes / link_.bytes_per_ms;
}

/// When the input of a pass is at its stage.
inline double& Simulator::input_ms(std::size_t stage, PassCode code) {
    return input_ms_[stage * kKinds * costs_.n_microbatches() + static_cast<std::size_t>(code)];
}

inline bool Simulator::awaits_known_input(std::size_t stage) {
    const std::size_t n = found_.n_started[stage];
    return n < n_passes_ && !std::isnan(input_ms(stage, order_[stage * n_passes_ + n]));
}

inline double Simulator::pass_ms(PassKind kind, const PassCosts& cost) const {
    switch (kind) {
        case PassKind::kForward:
            return cost.forward_ms;
        case PassKind::kBackward:
            return splits_backward_ ? cost.gradient_ms() : cost.backward_ms;
        default:
            return cost.weight_ms;
    }
}

inline void Simulator::run_next_pass(std::size_t stage) {
    const std::size_t n = found_.n_started[stage]++;
    const std::size_t place = stage * n_passes_ + n;
    const PassCode code = order_[place];
    const PassCosts& cost = costs_.at(microbatch_of(code), stage);
    const double takes_ms = pass_ms(kind_of(code), cost);
    const double free_ms = n == 0 ? 0.0 : found_.end_ms[place - 1];
    const double start_ms = std::max(free_ms, input_ms(stage, code));
    const double end_ms = start_ms + takes_ms;
    found_.start_ms[place] = start_ms;
    found_.end_ms[place] = end_ms;
    found_.busy_ms[stage] += takes_ms;
    found_.makespan_ms = std::max(found_.makespan_ms, end_ms);
    memory_[stage].run(kind_of(code), cost, splits_backward_);
    pass_on(stage, code, place);
}

/// Hands what a pass produced to those that need it.
inline void Simulator::pass_on(std::size_t stage, PassCode code, std::size_t place) {
    const std::size_t microbatch = microbatch_of(code);
    switch (kind_of(code)) {
        case PassKind::kForward:
            if (stage + 1 < n_stages_) {
                send(stage, stage + 1, code, place);
            } else {
                input_ms(stage, pass_code(microbatch, PassKind::kBackward)) = found_.end_ms[place];
            }
            break;
        case PassKind::kBackward:
            input_ms(stage, pass_code(microbatch, PassKind::kWeight)) = found_.end_ms[place];
            if (stage > 0) {
                send(stage, stage - 1, code, place);
            }
            break;
        case PassKind::kWeight:
            break;
    }
}

inline void Simulator::send(std::size_t stage, std::size_t receiver, PassCode code,
                            std::size_t place) {
    const bool other_way = link_.full_duplex && receiver < stage;
    double& link_free_ms = link_free_ms_[2 * stage + (other_way ? 1 : 0)];
    const double start_ms = std::max(found_.end_ms[place], link_free_ms);
    link_free_ms = start_ms + send_ms(costs_.at(microbatch_of(code), std::min(stage, receiver)));
    found_.send_start_ms[place] = start_ms;
    found_.send_end_ms[place] = link_free_ms;
    input_ms(receiver, code) = link_free_ms;
    awake_.push_back(receiver);
}

}  // namespace dynapipe
