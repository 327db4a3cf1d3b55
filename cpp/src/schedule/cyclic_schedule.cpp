#include "dynapipe/schedule/cyclic_schedule.hpp"

#include <algorithm>
#include <stdexcept>

namespace dynapipe {
namespace {

/// One stage and what it has run. Micro-batches pass first in, first out, so that those from
/// n_backward to n_forward are the ones in flight.
class Stage {
  public:
    Stage(const StageCosts& costs, std::size_t stage, double limit_bytes)
        : costs_(costs), stage_(stage), limit_bytes_(limit_bytes) {}

    [[nodiscard]] std::size_t n_forward() const { return n_forward_; }
    [[nodiscard]] std::size_t n_backward() const { return n_backward_; }
    [[nodiscard]] const std::vector<PassCode>& order() const { return order_; }

    /// Whether the next micro-batch may enter: it fits now, and leaves room for the backward
    /// pass of each one before it, and for its own.
    [[nodiscard]] bool has_room() const {
        double kept_bytes = 0.0;  // of micro-batch i and those behind it
        for (std::size_t i = n_forward_ + 1; i-- > n_backward_;) {
            kept_bytes += costs_.at(i, stage_).stored_bytes;
            if (kept_bytes + costs_.at(i, stage_).backward_transient_bytes > limit_bytes_) {
                return false;
            }
        }
        return kept_bytes + costs_.at(n_forward_, stage_).forward_transient_bytes <= limit_bytes_;
    }

    void run_forward() { order_.push_back(pass_code(n_forward_++, PassKind::kForward)); }

    void run_backward() { order_.push_back(pass_code(n_backward_++, PassKind::kBackward)); }

  private:
    StageCosts costs_;
    std::size_t stage_;
    double limit_bytes_;
    std::size_t n_forward_ = 0;
    std::size_t n_backward_ = 0;
    std::vector<PassCode> order_;
};

/// Numbers of micro-batches that have reached a pass, by stage, when a cycle begins.
struct Ready {
    std::vector<std::size_t> forward;
    std::vector<std::size_t> backward;
};

Ready ready_passes(const std::vector<Stage>& stages, std::size_t n_microbatches) {
    Ready ready;
    for (std::size_t s = 0; s < stages.size(); ++s) {
        const bool last = s + 1 == stages.size();
        ready.forward.push_back(s == 0 ? n_microbatches : stages[s - 1].n_forward());
        ready.backward.push_back(last ? stages[s].n_forward() : stages[s + 1].n_backward());
    }
    return ready;
}

/// Returns whether any pass was run.
bool run_cycle(std::vector<Stage>& stages, const Ready& ready) {
    bool any = false;
    for (std::size_t s = 0; s < stages.size(); ++s) {
        Stage& stage = stages[s];
        if (stage.n_backward() < ready.backward[s]) {
            stage.run_backward();
            any = true;
        }
        if (stage.n_forward() < ready.forward[s] && stage.has_room()) {
            stage.run_forward();
            any = true;
        }
    }
    return any;
}

}  // namespace

std::vector<PassCode> cyclic_schedule(const StageCosts& costs,
                                      std::span<const double> limit_bytes) {
    std::vector<Stage> stages;
    for (std::size_t s = 0; s < costs.n_stages; ++s) {
        stages.emplace_back(costs, s, limit_bytes[s]);
    }
    while (stages.front().n_backward() < costs.n_microbatches()) {
        if (!run_cycle(stages, ready_passes(stages, costs.n_microbatches()))) {
            throw std::invalid_argument("a micro-batch needs more than the limit of a stage");
        }
    }
    std::vector<PassCode> order;
    for (const Stage& stage : stages) {
        order.insert(order.end(), stage.order().begin(), stage.order().end());
    }
    return order;
}

}  // namespace dynapipe
