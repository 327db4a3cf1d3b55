#include "dynapipe/schedule/lightest_first.hpp"

#include <algorithm>
#include <utility>

namespace dynapipe {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();
/// Relative error that sums of times may have.
constexpr double kRounding = 1e-12;

constexpr std::size_t index_of(PassKind kind) { return static_cast<std::size_t>(kind); }

template <typename Some>
auto at_place(Some& some, std::uint32_t place) {
    return std::find_if(some.begin(), some.end(),
                        [&](const auto& other) { return other.place == place; });
}

}  // namespace

LightestFirst::LightestFirst(const StageCosts& costs, std::span<const double> limit_bytes,
                             const Link& link, bool split_backward,
                             std::span<const std::uint32_t> later_slices,
                             std::span<const double> reduce_ms)
    : cache_(costs, link, split_backward),
      limit_bytes_(limit_bytes),
      full_duplex_(link.full_duplex),
      split_backward_(split_backward),
      later_slices_(later_slices),
      stages_(costs.n_stages),
      next_ms_(costs.n_stages) {
    for (std::size_t s = 0; s < reduce_ms.size(); ++s) {
        stages_[s].reduce_ms = reduce_ms[s];
    }
}

double LightestFirst::run(std::span<const std::uint32_t> list, double give_up_ms) {
    give_up_ms *= 1.0 + kRounding;
    list_ = list;
    works_ = cache_.look_up(list);
    effort_ += works_.size();
    begin();
    const std::size_t n_passes = (split_backward_ ? 3 : 2) * stages_.size() * works_.size();
    for (std::size_t n = 0; n < n_passes; ++n, ++effort_) {
        const std::size_t s = next_ms_.stage();
        const double left_ms = stages_[s].left_ms + stages_[s].reduce_ms;
        if (next_ms_[s] + left_ms > give_up_ms || next_ms_[s] == kNever) {
            return kNever;
        }
        execute(s);
    }
    double end_ms = 0.0;
    for (const Stage& stage : stages_) {
        end_ms = std::max(end_ms, stage.free_ms + stage.reduce_ms);
    }
    return end_ms;
}

std::vector<PassCode> LightestFirst::order() const {
    std::vector<PassCode> order;
    for (const Stage& stage : stages_) {
        order.insert(order.end(), stage.passes.begin(), stage.passes.end());
    }
    return order;
}

void LightestFirst::begin() {
    for (std::size_t s = 0; s < stages_.size(); ++s) {
        Stage& stage = stages_[s];
        stage.free_ms = stage.left_ms = 0.0;
        stage.link_free_ms = {};
        stage.n_entered = 0;
        stage.in_flight.clear();
        stage.arrived.clear();
        stage.returned.clear();
        stage.has_returned.assign(works_.size(), false);
        stage.passes.clear();
        stage.arrivals_ms.assign(works_.size(), s == 0 ? 0.0 : kNever);
        for (std::uint32_t place = 0; place < works_.size(); ++place) {
            for (const double ms : work(place, s).pass_ms) {
                stage.left_ms += ms;
            }
        }
    }
    for (std::size_t s = 0; s < stages_.size(); ++s) {
        choose(s);
    }
}

/// The first in flight that is heavier.
auto LightestFirst::Stage::first_heavier(double transient_bytes) const {
    return std::find_if(in_flight.begin(), in_flight.end(), [&](const InFlight& other) {
        return other.transient_bytes > transient_bytes;
    });
}

/// Adds up the memory kept by the first n and all heavier ones, whose sums are right already.
void LightestFirst::Stage::add_up(std::size_t n) {
    double kept_bytes = n < in_flight.size() ? in_flight[n].kept_bytes : 0.0;
    for (std::size_t i = n; i-- > 0;) {
        kept_bytes += in_flight[i].stored_bytes;
        in_flight[i].kept_bytes = kept_bytes;
    }
}

/// Chooses the next pass of a stage, as far as is known, and its time.
///
/// The rule: of the backward passes that have arrived, the lightest that fits; else the forward
/// pass that has arrived and that `may_enter`; else the lightest gradients of weights.
void LightestFirst::choose(std::size_t s) {
    Stage& stage = stages_[s];
    const double kept_bytes = stage.kept_bytes();
    double next_ms = kNever;
    for (const Waiting& each : stage.arrived) {
        // Nor do heavier ones fit; nor could any begin sooner.
        if (kept_bytes + each.transient_bytes > limit_bytes_[s] || next_ms <= stage.free_ms) {
            break;
        }
        const double ms = std::max(stage.free_ms, each.since_ms);
        // Slices of a sample return in descending order.
        const bool may_return = n_later(each.place) == 0 || stage.has_returned[each.place + 1];
        if (ms < next_ms && may_return) {
            next_ms = ms;
            stage.next = PassKind::kBackward;
            stage.next_place = each.place;
        }
    }
    if (stage.n_entered < works_.size()) {
        const double forward_ms = std::max(stage.free_ms, stage.arrivals_ms[stage.n_entered]);
        if (forward_ms < next_ms && may_enter(s)) {
            next_ms = forward_ms;
            stage.next = PassKind::kForward;
            stage.next_place = stage.n_entered;
        }
    }
    if (next_ms > stage.free_ms && !stage.returned.empty() &&
        kept_bytes + stage.returned.front().transient_bytes <= limit_bytes_[s]) {
        next_ms = stage.free_ms;
        stage.next = PassKind::kWeight;
        stage.next_place = stage.returned.front().place;
    }
    next_ms_.set(s, next_ms);
}

/// Whether the next forward pass fits, and whether all in flight could then run their last passes.
///
/// The banker's check, with one order: if any order of leaving works, the lightest first does, as
/// each that leaves only frees memory for the heavier ones. Heavier ones leave after the entering
/// micro-batch and can still do so: only this one and the lighter ones are looked at.
bool LightestFirst::may_enter(std::size_t s) const {
    const Stage& stage = stages_[s];
    const std::uint32_t entered = stage.n_entered;
    if (entered > 0 && n_later(entered - 1) > 0) {
        return true;  // room was left for it when the first slice of its sample entered
    }
    const StageWork& entering = work(entered, s);
    const auto heavier = stage.first_heavier(entering.backward_transient_bytes);
    const auto place = static_cast<std::size_t>(heavier - stage.in_flight.begin());
    double kept_bytes = heavier != stage.in_flight.end() ? heavier->kept_bytes : 0.0;
    for (std::uint32_t slice = 0; slice <= n_later(entered); ++slice) {
        kept_bytes += work(entered + slice, s).stored_bytes;
    }
    bool fits = kept_bytes + entering.backward_transient_bytes <= limit_bytes_[s];
    // From the entering one down to the lightest: each beside all that leave after it.
    for (std::size_t i = place; fits && i-- > 0;) {
        kept_bytes += stage.in_flight[i].stored_bytes;
        fits = kept_bytes + stage.in_flight[i].transient_bytes <= limit_bytes_[s];
    }
    return fits && kept_bytes + entering.forward_transient_bytes <= limit_bytes_[s];
}

void LightestFirst::execute(std::size_t s) {
    Stage& stage = stages_[s];
    const PassKind kind = stage.next;
    const std::uint32_t place = stage.next_place;
    const StageWork& done = work(place, s);
    stage.passes.push_back(pass_code(place, kind));
    stage.free_ms = next_ms_[s] + done.pass_ms[index_of(kind)];
    stage.left_ms -= done.pass_ms[index_of(kind)];
    if (kind == PassKind::kForward) {
        enter(s);
    } else if (kind == PassKind::kBackward) {
        stage.arrived.erase(at_place(stage.arrived, place));
        stage.has_returned[place] = true;
        if (split_backward_) {
            wait(stage.returned, s, place, stage.free_ms);
        } else {
            leave(s, place);
        }
    } else {
        stage.returned.erase(stage.returned.begin());
        leave(s, place);
    }
    if ((kind == PassKind::kForward && s + 1 < stages_.size()) ||
        (kind == PassKind::kBackward && s > 0)) {
        send(s, kind, place);
    }
    choose(s);
}

/// The next micro-batch is in flight from now on, after those that are as light.
void LightestFirst::enter(std::size_t s) {
    Stage& stage = stages_[s];
    const std::uint32_t place = stage.n_entered++;
    const StageWork& entered = work(place, s);
    const double transient_bytes = entered.backward_transient_bytes;
    const auto heavier = stage.in_flight.insert(
        stage.first_heavier(transient_bytes), {transient_bytes, entered.stored_bytes, 0.0, place});
    stage.add_up(static_cast<std::size_t>(heavier - stage.in_flight.begin()) + 1);
    if (s + 1 == stages_.size()) {
        wait(stage.arrived, s, place, stage.free_ms);
    }
}

/// A pass waits from now on, after those as light that entered before it.
void LightestFirst::wait(std::vector<Waiting>& passes, std::size_t s, std::uint32_t place,
                         double since_ms) {
    const Waiting pass{work(place, s).backward_transient_bytes, since_ms, place};
    const auto behind = [](const Waiting& a, const Waiting& b) {
        return std::pair(a.transient_bytes, a.place) < std::pair(b.transient_bytes, b.place);
    };
    passes.insert(std::upper_bound(passes.begin(), passes.end(), pass, behind), pass);
}

/// A micro-batch's last pass on a stage frees its memory.
void LightestFirst::leave(std::size_t s, std::uint32_t place) {
    Stage& stage = stages_[s];
    const auto behind = stage.in_flight.erase(at_place(stage.in_flight, place));
    stage.add_up(static_cast<std::size_t>(behind - stage.in_flight.begin()));
}

void LightestFirst::send(std::size_t from, PassKind kind, std::uint32_t place) {
    const bool goes_back = kind == PassKind::kBackward;
    Stage& sender = stages_[from];
    double& link_free_ms = sender.link_free_ms[full_duplex_ && goes_back ? 1 : 0];
    link_free_ms = std::max(sender.free_ms, link_free_ms) + work(place, from).send_ms[goes_back];
    const std::size_t to = goes_back ? from - 1 : from + 1;
    Stage& receiver = stages_[to];
    if (goes_back) {
        wait(receiver.arrived, to, place, link_free_ms);
    } else {
        receiver.arrivals_ms[place] = link_free_ms;
    }
    if (link_free_ms <= next_ms_[to]) {  // otherwise it changes nothing yet
        choose(to);
    }
}

}  // namespace dynapipe
