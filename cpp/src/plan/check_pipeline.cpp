#include "dynapipe/plan/check_pipeline.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <limits>
#include <numeric>
#include <unordered_map>
#include <vector>

namespace dynapipe {
namespace {

using Steps = std::uint32_t;  ///< a set of steps, one bit each
constexpr std::size_t kSteps = 13;

constexpr Steps bit(Step step) { return Steps{1} << static_cast<unsigned>(step); }

template <typename... S>
constexpr Steps set_of(S... steps) {
    return (Steps{0} | ... | bit(steps));
}

constexpr Steps kWithStageBefore =
    set_of(Step::start_receive_activation, Step::wait_receive_activation, Step::start_send_gradient,
           Step::wait_send_gradient);
constexpr Steps kWithStageBehind =
    set_of(Step::start_send_activation, Step::wait_send_activation, Step::start_receive_gradient,
           Step::wait_receive_gradient);
constexpr Steps kAll = (Steps{1} << kSteps) - 1;
constexpr Steps kSplit = set_of(Step::backward_input, Step::backward_weight);
constexpr Steps kOfGradients = set_of(Step::start_receive_gradient, Step::wait_receive_gradient,
                                      Step::backward, Step::backward_input, Step::backward_weight,
                                      Step::start_send_gradient, Step::wait_send_gradient);

/// Steps that must come before a step, where none is absent; by number of the step.
constexpr std::array<Steps, kSteps> kNeeds{
    0,
    0,
    set_of(Step::start_receive_activation),
    set_of(Step::load, Step::wait_receive_activation),
    set_of(Step::forward),
    set_of(Step::start_send_activation),
    0,
    set_of(Step::start_receive_gradient),
    set_of(Step::forward, Step::wait_receive_gradient),
    set_of(Step::forward, Step::wait_receive_gradient),
    set_of(Step::backward_input),
    set_of(Step::backward, Step::backward_input),
    set_of(Step::start_send_gradient),
};

std::optional<Step> of_payload(Payload payload, Step activation, Step gradient) {
    switch (payload) {
        case Payload::activation:
            return activation;
        case Payload::gradient:
            return gradient;
    }
    return {};
}

/// The step that a row is; nothing for the ends of a plan, and for numbers that mean nothing.
std::optional<Step> step_of(const Row& row) {
    switch (row.kind) {
        case Kind::load:
            return Step::load;
        case Kind::forward:
            return Step::forward;
        case Kind::backward:
            return Step::backward;
        case Kind::backward_input:
            return Step::backward_input;
        case Kind::backward_weight:
            return Step::backward_weight;
        case Kind::start_send:
            return of_payload(row.payload, Step::start_send_activation, Step::start_send_gradient);
        case Kind::wait_send:
            return of_payload(row.payload, Step::wait_send_activation, Step::wait_send_gradient);
        case Kind::start_receive:
            return of_payload(row.payload, Step::start_receive_activation,
                              Step::start_receive_gradient);
        case Kind::wait_receive:
            return of_payload(row.payload, Step::wait_receive_activation,
                              Step::wait_receive_gradient);
        case Kind::reduce_gradients:
        case Kind::step_optimizer:
            break;
    }
    return {};
}

bool is_start(const Row& row) {
    return row.kind == Kind::start_send || row.kind == Kind::start_receive;
}

/// Whether a transfer is between a stage and the one behind it.
bool is_with_stage_behind(const Row& row) {
    const bool is_send = row.kind == Kind::start_send || row.kind == Kind::wait_send;
    return is_send == (row.payload == Payload::activation);
}

std::int64_t first_of(Steps steps) { return std::countr_zero(steps); }

/// Whether a stage has forward passes, but none of the rows that only training has.
bool is_forward_only(const StagePlan& plan) {
    bool has_forward = false;
    for (std::size_t k = 0; k < plan.rows.size(); ++k) {
        switch (plan.rows[k].kind) {
            case Kind::backward:
            case Kind::backward_input:
            case Kind::backward_weight:
            case Kind::reduce_gradients:
            case Kind::step_optimizer:
                return false;
            case Kind::forward:
                has_forward = true;
                break;
            default:
                break;
        }
    }
    return has_forward;
}

/// Neighbours of each micro-batch among the slices of its sample; itself where it has none.
struct SliceOrder {
    std::span<const std::uint32_t> earlier;
    std::vector<std::uint32_t> later;

    explicit SliceOrder(std::span<const std::uint32_t> earlier_slice)
        : earlier(earlier_slice), later(earlier_slice.size()) {
        std::iota(later.begin(), later.end(), 0U);
        for (std::uint32_t i = 0; i < earlier.size(); ++i) {
            if (earlier[i] != i) {
                later[earlier[i]] = i;
            }
        }
    }
};

/// Checks what can be seen without the plans of other stages.
class StageCheck {
  public:
    StageCheck(std::span<const StagePlan> stages, std::size_t stage, const SliceOrder& slices,
               bool forward_only)
        : stages_(stages),
          stage_(stage),
          rows_(stages[stage].rows),
          slices_(slices),
          forward_only_(forward_only),
          done_(slices.earlier.size(), 0) {
        const Steps absent = (stage == 0 ? kWithStageBefore : 0) |
                             (stage + 1 == stages.size() ? kWithStageBehind : 0) |
                             (splits() ? set_of(Step::backward) : kSplit) |
                             (forward_only ? kOfGradients : 0);
        steps_ = kAll & ~absent;
    }

    std::optional<Fault> run() {
        auto fault = check_steps();
        if (!fault) {
            fault = check_slots();
        }
        if (!fault) {
            fault = check_memory();
        }
        return fault;
    }

  private:
    [[nodiscard]] bool splits() const {
        for (std::size_t k = 0; k < rows_.size(); ++k) {
            const Kind kind = rows_[k].kind;
            if (kind == Kind::backward_input || kind == Kind::backward_weight) {
                return true;
            }
        }
        return false;
    }

    [[nodiscard]] Fault fault(Rule rule, std::size_t position, std::uint32_t microbatch = 0,
                              std::int64_t detail = 0) const {
        return {rule, stage_, position, microbatch, detail};
    }

    std::optional<Fault> check_steps() {
        std::size_t n = rows_.size();
        if (!forward_only_) {
            if (n < 2 || rows_[n - 2] != Row{Kind::reduce_gradients} ||
                rows_[n - 1] != Row{Kind::step_optimizer}) {
                return fault(Rule::ending, n);
            }
            n -= 2;
        }
        for (std::size_t k = 0; k < n; ++k) {
            if (auto fault = check_row(k)) {
                return fault;
            }
        }
        for (std::size_t i = 0; i < done_.size(); ++i) {
            if (const Steps missing = steps_ & ~done_[i]) {
                return fault(Rule::needs, n, static_cast<std::uint32_t>(i), first_of(missing));
            }
        }
        return {};
    }

    std::optional<Fault> check_row(std::size_t position) {
        const Row row = rows_[position];
        const auto step = step_of(row);
        if (step == Step::backward && !(steps_ & bit(Step::backward))) {
            return fault(Rule::split, position);
        }
        if (!step || !(steps_ & bit(*step))) {
            return fault(Rule::place, position);
        }
        if (row.microbatch >= done_.size()) {
            return fault(Rule::microbatch, position);
        }
        Steps& done = done_[row.microbatch];
        if (done & bit(*step)) {
            return fault(Rule::once, position);
        }
        if (const Steps missing = kNeeds[static_cast<std::size_t>(*step)] & steps_ & ~done) {
            return fault(Rule::needs, position, row.microbatch, first_of(missing));
        }
        if (auto slice_fault = check_slices(position, *step)) {
            return slice_fault;
        }
        if (is_start(row)) {
            const std::uint32_t peer =
                stages_[is_with_stage_behind(row) ? stage_ + 1 : stage_ - 1].rank;
            if (row.peer != peer) {
                return fault(Rule::peer, position, row.microbatch, peer);
            }
        }
        done |= bit(*step);
        return {};
    }

    /// Passes of a sample's slices: forward in ascending order, backward in descending order.
    [[nodiscard]] std::optional<Fault> check_slices(std::size_t position, Step step) const {
        const std::uint32_t microbatch = rows_[position].microbatch;
        std::uint32_t needed = microbatch;
        if (step == Step::forward) {
            needed = slices_.earlier[microbatch];
        } else if (step == Step::backward || step == Step::backward_input) {
            needed = slices_.later[microbatch];
        }
        if (needed != microbatch && !(done_[needed] & bit(step))) {
            return fault(Rule::needs, position, needed, static_cast<std::int64_t>(step));
        }
        return {};
    }

    std::optional<Fault> check_slots() {
        std::unordered_map<std::uint32_t, std::uint32_t> user;
        std::vector<bool> finished(done_.size(), false);
        const Kind last = forward_only_ ? Kind::forward
                          : splits()    ? Kind::backward_weight
                                        : Kind::backward;
        for (std::size_t k = 0; k < rows_.size(); ++k) {
            const Row row = rows_[k];
            if (row.kind == Kind::start_receive) {
                const auto [entry, is_new] = user.try_emplace(row.slot, row.microbatch);
                if (!is_new && !finished[entry->second]) {
                    return fault(Rule::slot, k, entry->second);
                }
                entry->second = row.microbatch;
            } else if (row.kind == last) {
                finished[row.microbatch] = true;
            }
        }
        return {};
    }

    [[nodiscard]] std::optional<Fault> check_memory() const {
        const std::int64_t peak = peak_bytes(stages_[stage_]);
        if (peak > stages_[stage_].limit_bytes) {
            return fault(Rule::memory, rows_.size(), 0, peak);
        }
        return {};
    }

    std::span<const StagePlan> stages_;
    std::size_t stage_;
    Rows rows_;
    const SliceOrder& slices_;
    bool forward_only_;
    std::vector<Steps> done_;  ///< per micro-batch
    Steps steps_;              ///< that every micro-batch takes on this stage
};

/// The transfers that a stage starts with the one behind it, or before it.
std::vector<Row> starts(const Rows& rows, bool with_stage_behind) {
    std::vector<Row> start_rows;
    for (std::size_t k = 0; k < rows.size(); ++k) {
        const Row row = rows[k];
        if (is_start(row) && is_with_stage_behind(row) == with_stage_behind) {
            start_rows.push_back(row);
        }
    }
    return start_rows;
}

/// Compares the two sides of a pair that keep the rules of `StageCheck`: equally many transfers.
std::optional<Fault> check_pair(std::span<const StagePlan> stages, std::size_t s) {
    const std::vector<Row> one = starts(stages[s].rows, true);
    const std::vector<Row> other = starts(stages[s + 1].rows, false);
    for (std::size_t k = 0; k < one.size(); ++k) {
        if (one[k].microbatch != other[k].microbatch || one[k].payload != other[k].payload) {
            return Fault{Rule::pair_order, s, k};
        }
    }
    return {};
}

/// Sums of sizes that never wrap around.
std::int64_t sum(std::int64_t a, std::int64_t b) {
    constexpr std::int64_t most = std::numeric_limits<std::int64_t>::max();
    return a > most - b ? most : a + b;
}

}  // namespace

std::optional<Fault> check_pipeline(std::span<const StagePlan> stages,
                                    std::span<const std::uint32_t> earlier_slice) {
    const SliceOrder slices(earlier_slice);
    const bool forward_only = std::all_of(stages.begin(), stages.end(), is_forward_only);
    for (std::size_t s = 0; s < stages.size(); ++s) {
        if (auto fault = StageCheck(stages, s, slices, forward_only).run()) {
            return fault;
        }
    }
    for (std::size_t s = 0; s + 1 < stages.size(); ++s) {
        if (auto fault = check_pair(stages, s)) {
            return fault;
        }
    }
    return {};
}

std::int64_t peak_bytes(const StagePlan& plan) {
    std::int64_t held = plan.static_bytes, peak = held;
    for (std::size_t k = 0; k < plan.rows.size(); ++k) {
        const Row row = plan.rows[k];
        const std::size_t i = row.microbatch;
        if (i >= plan.stored_bytes.size()) {
            continue;
        }
        switch (row.kind) {
            case Kind::forward:
                held = sum(held, plan.stored_bytes[i]);
                peak = std::max(peak, sum(held, plan.forward_transient_bytes[i]));
                break;
            case Kind::backward:
            case Kind::backward_weight:
                peak = std::max(peak, sum(held, plan.backward_transient_bytes[i]));
                held -= std::min(plan.stored_bytes[i], held - plan.static_bytes);
                break;
            case Kind::backward_input:
                peak = std::max(peak, sum(held, plan.backward_transient_bytes[i]));
                break;
            default:
                break;
        }
    }
    return peak;
}

}  // namespace dynapipe
