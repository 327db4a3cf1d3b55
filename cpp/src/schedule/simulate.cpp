#include "dynapipe/schedule/simulate.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

namespace dynapipe {
namespace {

constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();

class Simulation {
  public:
    Simulation(std::span<const PassCode> order, const StageCosts& costs,
               std::span<const double> static_bytes, const Link& link)
        : order_(order),
          costs_(costs),
          link_(link),
          n_stages_(costs.n_stages),
          n_passes_(order.size() / n_stages_),
          splits_backward_(n_passes_ > 2 * costs.n_microbatches()),
          input_ms_(kKinds * costs.n_microbatches() * n_stages_, kUnknown),
          link_free_ms_(2 * n_stages_),
          kept_bytes_(static_bytes.begin(), static_bytes.end()) {
        for (auto* times_ms :
             {&found_.start_ms, &found_.end_ms, &found_.send_start_ms, &found_.send_end_ms}) {
            times_ms->assign(order.size(), kUnknown);
        }
        found_.peak_bytes = kept_bytes_;
        found_.busy_ms.assign(n_stages_, 0.0);
        found_.n_started.assign(n_stages_, 0);
        for (std::size_t i = 0; i < costs.n_microbatches(); ++i) {
            input_ms(0, pass_code(i, PassKind::kForward)) = 0.0;
        }
    }

    Timeline run() {
        std::size_t n_left = order_.size();
        while (!awake_.empty()) {
            const std::size_t stage = awake_.back();
            awake_.pop_back();
            for (; awaits_known_input(stage); --n_left) {
                run_next_pass(stage);
            }
        }
        if (n_left > 0) {
            found_.makespan_ms = std::numeric_limits<double>::infinity();
        }
        return std::move(found_);
    }

  private:
    [[nodiscard]] double send_ms(const PassCosts& cost) const {
        return link_.latency_ms + cost.boundary_bytes / link_.bytes_per_ms;
    }

    /// When the input of a pass is at its stage.
    double& input_ms(std::size_t stage, PassCode code) {
        return input_ms_[stage * kKinds * costs_.n_microbatches() + static_cast<std::size_t>(code)];
    }

    [[nodiscard]] bool awaits_known_input(std::size_t stage) {
        const std::size_t n = found_.n_started[stage];
        return n < n_passes_ && !std::isnan(input_ms(stage, order_[stage * n_passes_ + n]));
    }

    [[nodiscard]] double pass_ms(PassKind kind, const PassCosts& cost) const {
        switch (kind) {
            case PassKind::kForward:
                return cost.forward_ms;
            case PassKind::kBackward:
                return splits_backward_ ? cost.gradient_ms() : cost.backward_ms;
            default:
                return cost.weight_ms;
        }
    }

    void run_next_pass(std::size_t stage) {
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
        account(stage, kind_of(code), cost);
        pass_on(stage, code, place);
    }

    /// Hands what a pass produced to those that need it.
    void pass_on(std::size_t stage, PassCode code, std::size_t place) {
        const std::size_t microbatch = microbatch_of(code);
        switch (kind_of(code)) {
            case PassKind::kForward:
                if (stage + 1 < n_stages_) {
                    send(stage, stage + 1, code, place);
                } else {
                    input_ms(stage, pass_code(microbatch, PassKind::kBackward)) =
                        found_.end_ms[place];
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

    void send(std::size_t stage, std::size_t receiver, PassCode code, std::size_t place) {
        const bool other_way = link_.full_duplex && receiver < stage;
        double& link_free_ms = link_free_ms_[2 * stage + (other_way ? 1 : 0)];
        const double start_ms = std::max(found_.end_ms[place], link_free_ms);
        link_free_ms =
            start_ms + send_ms(costs_.at(microbatch_of(code), std::min(stage, receiver)));
        found_.send_start_ms[place] = start_ms;
        found_.send_end_ms[place] = link_free_ms;
        input_ms(receiver, code) = link_free_ms;
        awake_.push_back(receiver);
    }

    /// What a forward pass stores is released by the last pass of its micro-batch.
    void account(std::size_t stage, PassKind kind, const PassCosts& cost) {
        const bool forward = kind == PassKind::kForward;
        double& kept_bytes = kept_bytes_[stage];
        kept_bytes += forward ? cost.stored_bytes : 0.0;
        const double transient_bytes =
            forward ? cost.forward_transient_bytes : cost.backward_transient_bytes;
        found_.peak_bytes[stage] = std::max(found_.peak_bytes[stage], kept_bytes + transient_bytes);
        const PassKind last = splits_backward_ ? PassKind::kWeight : PassKind::kBackward;
        kept_bytes -= kind == last ? cost.stored_bytes : 0.0;
    }

    std::span<const PassCode> order_;
    const StageCosts& costs_;
    const Link& link_;
    std::size_t n_stages_;
    std::size_t n_passes_;
    bool splits_backward_;
    std::vector<double> input_ms_;       ///< row-major (n_stages, 3 * n_microbatches), by code
    std::vector<double> link_free_ms_;   ///< per stage, to the next and to the previous stage
    std::vector<double> kept_bytes_;     ///< per stage, between two passes
    std::vector<std::size_t> awake_{0};  ///< stages that may be able to proceed
    Timeline found_;
};

}  // namespace

Timeline simulate(std::span<const PassCode> order, const StageCosts& costs,
                  std::span<const double> static_bytes, const Link& link) {
    return Simulation(order, costs, static_bytes, link).run();
}

}  // namespace dynapipe
