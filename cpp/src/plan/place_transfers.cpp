#include "dynapipe/plan/place_transfers.hpp"

#include <algorithm>
#include <deque>
#include <functional>
#include <limits>
#include <optional>
#include <queue>
#include <stdexcept>
#include <utility>

namespace dynapipe {
namespace {

// Gradients that a rank sends, or activations if there are no backward passes, stay in memory until
// waited for, which no account includes.
constexpr std::size_t kSendsInFlight = 2;

constexpr double kNever = std::numeric_limits<double>::infinity();

/// Kinds of passes in a schedule.
enum class Passes : std::uint8_t {
    forward_only,  ///< no gradients
    whole,         ///< gradients, each in one backward pass
    split          ///< gradients, those of weights in passes of their own
};

Passes passes_of(std::span<const PassCode> order) {
    const auto has = [order](PassKind kind) {
        return std::any_of(order.begin(), order.end(),
                           [kind](PassCode code) { return kind_of(code) == kind; });
    };
    if (has(PassKind::kWeight)) {
        return Passes::split;
    }
    return order.empty() || has(PassKind::kBackward) ? Passes::whole : Passes::forward_only;
}

using Peer = std::optional<std::uint32_t>;

/// Hands out the lowest free slot and takes back a micro-batch's slots together.
class ReceiveSlots {
  public:
    explicit ReceiveSlots(std::size_t n_microbatches) : held_(n_microbatches) {}

    std::uint32_t take(std::uint32_t microbatch) {
        if (free_.empty()) {
            free_.push(n_slots_++);
        }
        const std::uint32_t slot = free_.top();
        free_.pop();
        held_[microbatch].push_back(slot);
        return slot;
    }

    void release(std::uint32_t microbatch) {
        for (const std::uint32_t slot : held_[microbatch]) {
            free_.push(slot);
        }
        held_[microbatch].clear();
    }

  private:
    std::priority_queue<std::uint32_t, std::vector<std::uint32_t>, std::greater<>> free_;
    std::uint32_t n_slots_ = 0;
    std::vector<std::vector<std::uint32_t>> held_;
};

/// The rows of a stage between two ranks, as far as they are written.
class Stage {
  public:
    Stage(Peer before, Peer behind, Passes passes, std::size_t n_microbatches)
        : before_(before), behind_(behind), passes_(passes), slots_(n_microbatches) {
        rows_.reserve(n_microbatches * 13 + 2);
    }

    void receive(std::uint32_t i, Payload payload, std::uint32_t peer) {
        rows_.push_back({Kind::start_receive, i, payload, peer, slots_.take(i)});
    }

    void forward(std::uint32_t i) {
        const bool is_last = passes_ == Passes::forward_only;
        if (is_last) {
            keep_few_sends();
        }
        rows_.push_back({Kind::load, i});
        if (before_) {
            rows_.push_back({Kind::wait_receive, i, Payload::activation});
        }
        rows_.push_back({Kind::forward, i});
        if (behind_) {
            rows_.push_back({Kind::start_send, i, Payload::activation, *behind_});
        }
        if (is_last) {
            slots_.release(i);
            if (behind_) {
                sent_.push_back({Kind::wait_send, i, Payload::activation});
            }
        }
    }

    void backward(std::uint32_t i) {
        if (behind_) {
            rows_.push_back({Kind::wait_receive, i, Payload::gradient});
            rows_.push_back({Kind::wait_send, i, Payload::activation});
        }
        keep_few_sends();
        const bool splits = passes_ == Passes::split;
        rows_.push_back({splits ? Kind::backward_input : Kind::backward, i});
        if (!splits) {
            slots_.release(i);
        }
        if (before_) {
            rows_.push_back({Kind::start_send, i, Payload::gradient, *before_});
            sent_.push_back({Kind::wait_send, i, Payload::gradient});
        }
    }

    void weight(std::uint32_t i) {
        rows_.push_back({Kind::backward_weight, i});
        slots_.release(i);
    }

    std::vector<Row> finish() {
        while (!sent_.empty()) {
            wait_for_oldest_send();
        }
        if (passes_ != Passes::forward_only) {
            rows_.push_back({Kind::reduce_gradients});
            rows_.push_back({Kind::step_optimizer});
        }
        return std::move(rows_);
    }

  private:
    void keep_few_sends() {
        if (sent_.size() == kSendsInFlight) {
            wait_for_oldest_send();
        }
    }

    void wait_for_oldest_send() {
        rows_.push_back(sent_.front());
        sent_.pop_front();
    }

    Peer before_;
    Peer behind_;
    Passes passes_;
    std::vector<Row> rows_;
    ReceiveSlots slots_;
    std::deque<Row> sent_;  ///< waits for sends that the stage has started
};

/// The passes of all stages by end, but each behind those it depends on, where ends are equal.
class VisitOrder {
  public:
    VisitOrder(std::span<const PassCode> order, std::span<const double> end_ms,
               std::size_t n_stages)
        : order_(order), end_ms_(end_ms), n_passes_(order.size() / n_stages), ready_ms_(n_stages) {
        for (std::size_t s = 0; s < n_stages; ++s) {
            next_.push_back(s * n_passes_);
            is_done_.emplace_back(n_passes_ * kKinds);
        }
        for (std::size_t s = 0; s < n_stages; ++s) {
            update(s);
        }
    }

    /// The place of the next pass, on the first stage that has one that ends as early.
    std::size_t take() {
        const auto soonest = std::min_element(ready_ms_.begin(), ready_ms_.end());
        const auto s = static_cast<std::size_t>(soonest - ready_ms_.begin());
        if (*soonest == kNever) {
            throw std::invalid_argument("the order of the passes has a deadlock");
        }
        const std::size_t place = next_[s]++;
        is_done_[s][static_cast<std::size_t>(order_[place])] = true;
        for (std::size_t near = s > 0 ? s - 1 : 0; near < std::min(s + 2, next_.size()); ++near) {
            update(near);
        }
        return place;
    }

  private:
    void update(std::size_t s) { ready_ms_[s] = is_ready(s) ? end_ms_[next_[s]] : kNever; }

    [[nodiscard]] bool is_ready(std::size_t s) const {
        if (next_[s] == (s + 1) * n_passes_) {
            return false;
        }
        const PassCode code = order_[next_[s]];
        switch (kind_of(code)) {
            case PassKind::kForward:
                return s == 0 || is_done_[s - 1][static_cast<std::size_t>(code)];
            case PassKind::kBackward:
                return s + 1 == next_.size() || is_done_[s + 1][static_cast<std::size_t>(code)];
            case PassKind::kWeight:
                break;
        }
        return true;
    }

    std::span<const PassCode> order_;
    std::span<const double> end_ms_;
    std::size_t n_passes_;
    std::vector<std::size_t> next_;           ///< place of each stage's next pass
    std::vector<std::vector<bool>> is_done_;  ///< per stage, by code
    std::vector<double> ready_ms_;            ///< ends of the next passes whose input is there
};

}  // namespace

std::vector<std::vector<Row>> place_transfers(std::span<const PassCode> order,
                                              std::span<const double> end_ms,
                                              std::span<const std::uint32_t> peers) {
    const std::size_t n_stages = peers.size(), n_passes = order.size() / n_stages;
    const Passes passes = passes_of(order);
    const std::size_t n_microbatches = n_passes / (1 + static_cast<std::size_t>(passes));
    std::vector<Stage> stages;
    for (std::size_t s = 0; s < n_stages; ++s) {
        stages.emplace_back(s > 0 ? Peer(peers[s - 1]) : Peer(),
                            s + 1 < n_stages ? Peer(peers[s + 1]) : Peer(), passes, n_microbatches);
    }
    VisitOrder visits(order, end_ms, n_stages);
    for (std::size_t k = 0; k < order.size(); ++k) {
        const std::size_t place = visits.take();
        const std::size_t s = place / n_passes;
        const auto i = static_cast<std::uint32_t>(microbatch_of(order[place]));
        switch (kind_of(order[place])) {
            case PassKind::kForward:
                stages[s].forward(i);
                if (s + 1 < n_stages) {
                    stages[s + 1].receive(i, Payload::activation, peers[s]);
                }
                break;
            case PassKind::kBackward:
                stages[s].backward(i);
                if (s > 0) {
                    stages[s - 1].receive(i, Payload::gradient, peers[s]);
                }
                break;
            case PassKind::kWeight:
                stages[s].weight(i);
                break;
        }
    }
    std::vector<std::vector<Row>> rows;
    for (Stage& stage : stages) {
        rows.push_back(stage.finish());
    }
    return rows;
}

}  // namespace dynapipe
