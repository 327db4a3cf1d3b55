#include "dynapipe/simulate.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

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
          n_passes_(2 * costs.n_microbatches()),
          input_ms_(order.size(), kUnknown),
          link_free_ms_(2 * n_stages_, 0.0),
          kept_bytes_(static_bytes.begin(), static_bytes.end()),
          found_{.start_ms = input_ms_,
                 .end_ms = input_ms_,
                 .send_start_ms = input_ms_,
                 .send_end_ms = input_ms_,
                 .peak_bytes = kept_bytes_,
                 .busy_ms = std::vector<double>(n_stages_, 0.0),
                 .n_started = std::vector<std::size_t>(n_stages_, 0)} {}

    Timeline run() {
        for (std::size_t i = 0; i < costs_.n_microbatches(); ++i) {
            input_ms(0, pass_code(i, false)) = 0.0;
        }
        awake_.push_back(0);
        while (!awake_.empty()) {
            const std::size_t stage = awake_.back();
            awake_.pop_back();
            while (awaits_known_input(stage)) {
                run_next_pass(stage);
            }
        }
        return std::move(found_);
    }

  private:
    /// When the input of a pass is at its stage.
    double& input_ms(std::size_t stage, PassCode code) {
        return input_ms_[stage * n_passes_ + static_cast<std::size_t>(code)];
    }

    bool awaits_known_input(std::size_t stage) {
        const std::size_t n = found_.n_started[stage];
        return n < n_passes_ && !std::isnan(input_ms(stage, order_[stage * n_passes_ + n]));
    }

    void run_next_pass(std::size_t stage) {
        const std::size_t n = found_.n_started[stage]++;
        const std::size_t place = stage * n_passes_ + n;
        const PassCode code = order_[place];
        const PassCosts& cost = costs_.at(microbatch_of(code), stage);
        const double pass_ms = is_backward(code) ? cost.backward_ms : cost.forward_ms;
        const double free_ms = n == 0 ? 0.0 : found_.end_ms[place - 1];
        const double start_ms = std::max(free_ms, input_ms(stage, code));
        found_.start_ms[place] = start_ms;
        found_.end_ms[place] = start_ms + pass_ms;
        found_.busy_ms[stage] += pass_ms;
        account_memory(stage, code, cost);
        pass_on(stage, code, place);
    }

    void account_memory(std::size_t stage, PassCode code, const PassCosts& cost) {
        double& kept = kept_bytes_[stage];
        kept += is_backward(code) ? 0.0 : cost.stored_bytes;
        const double transient =
            is_backward(code) ? cost.backward_transient_bytes : cost.forward_transient_bytes;
        found_.peak_bytes[stage] = std::max(found_.peak_bytes[stage], kept + transient);
        kept -= is_backward(code) ? cost.stored_bytes : 0.0;
    }

    /// Hands what a pass produced to the one that needs it.
    void pass_on(std::size_t stage, PassCode code, std::size_t place) {
        const bool backward = is_backward(code);
        if (!backward && stage + 1 == n_stages_) {
            input_ms(stage, pass_code(microbatch_of(code), true)) = found_.end_ms[place];
        } else if (!backward) {
            send(stage, stage + 1, code, place);
        } else if (stage > 0) {
            send(stage, stage - 1, code, place);
        }
    }

    void send(std::size_t stage, std::size_t receiver, PassCode code, std::size_t place) {
        const bool other_way = link_.full_duplex && receiver < stage;
        double& link_free_ms = link_free_ms_[2 * stage + (other_way ? 1 : 0)];
        const double start_ms = std::max(found_.end_ms[place], link_free_ms);
        const double bytes =
            costs_.at(microbatch_of(code), std::min(stage, receiver)).boundary_bytes;
        link_free_ms = start_ms + (link_.latency_ms + bytes / link_.bytes_per_ms);
        found_.send_start_ms[place] = start_ms;
        found_.send_end_ms[place] = link_free_ms;
        input_ms(receiver, code) = link_free_ms;
        awake_.push_back(receiver);
    }

    std::span<const PassCode> order_;
    StageCosts costs_;
    Link link_;
    std::size_t n_stages_;
    std::size_t n_passes_;
    std::vector<double> input_ms_;      ///< row-major (n_stages, n_passes), by code
    std::vector<double> link_free_ms_;  ///< per stage, forwards and backwards
    std::vector<double> kept_bytes_;    ///< per stage
    std::vector<std::size_t> awake_;    ///< stages that may be able to go on
    Timeline found_;
};

}  // namespace

Timeline simulate(std::span<const PassCode> order, const StageCosts& costs,
                  std::span<const double> static_bytes, const Link& link) {
    return Simulation(order, costs, static_bytes, link).run();
}

}  // namespace dynapipe
