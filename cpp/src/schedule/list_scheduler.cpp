#include "dynapipe/schedule/list_scheduler.hpp"

#include <algorithm>

namespace dynapipe {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();
/// Relative error that sums of times may have.
constexpr double kRounding = 1e-12;
constexpr std::size_t kForward = 0;
constexpr std::size_t kBackward = 1;
constexpr std::size_t kWeight = 2;

}  // namespace

ListScheduler::ListScheduler(const StageCosts& costs, std::span<const double> limit_bytes,
                             const Link& link, bool split_backward,
                             std::span<const double> reduce_ms,
                             std::span<const std::uint32_t> later_slices)
    : cache_(costs, link, split_backward),
      limit_bytes_(limit_bytes),
      full_duplex_(link.full_duplex),
      n_stages_(costs.n_stages),
      split_backward_(split_backward),
      later_slices_(later_slices),
      stages_(n_stages_),
      starts_ms_(n_stages_),
      news_take_ms_(n_stages_),
      due_(n_stages_ + 1) {
    for (std::size_t s = 0; s < reduce_ms.size(); ++s) {
        stages_[s].reduce_ms = reduce_ms[s];
    }
}

double ListScheduler::run(std::span<const std::uint32_t> list, double give_up_ms, bool alternates) {
    take(list, alternates);
    begin();
    is_recorded_ = false;
    return run_on(give_up_ms);
}

double ListScheduler::run(std::span<const std::uint32_t> list, double give_up_ms, bool alternates,
                          ListRecording& recording) {
    take(list, alternates);
    is_recorded_ = true;
    const std::size_t n_shared = recording.n_shared(list, alternates);
    // The states before the list differs from the recorded one are those of both runs.
    if (n_shared == 0) {
        begin();
    } else {
        resume(recording, n_shared);
    }
    const double makespan_ms = run_on(give_up_ms);
    // A run that gave up has no states behind the place where it did.
    if (makespan_ms < kNever) {
        recording.replace(
            {list, alternates, n_stages_, states_, arrivals_ms_, n_microbatches() + 1}, n_shared);
    }
    return makespan_ms;
}

/// Points to the costs of the list's micro-batches. Tables have rows as long as this list, and not
/// as the longest so far, so that those of a short list stay in the processor's cache.
void ListScheduler::take(std::span<const std::uint32_t> list, bool alternates) {
    alternates_ = alternates;
    works_.fill(cache_.look_up(list));
    find_turns(list);
    const auto grow = [](auto& table, std::size_t size) {
        if (table.size() < size) {
            table.resize(size);
        }
    };
    grow(arrivals_ms_, 2 * n_stages_ * (n_microbatches() + 1));
    grow(passes_, 3 * n_stages_ * n_microbatches());
    grow(states_, n_microbatches() / ListRecording::kEvery * n_stages_);
    double* arrivals_ms = arrivals_ms_.data();
    for (std::size_t s = 0; s < n_stages_; ++s) {
        for (double*& of_kind : stages_[s].arrivals_ms) {
            of_kind = arrivals_ms;
            arrivals_ms += n_microbatches() + 1;
        }
    }
}

/// The turns at which micro-batches go back: those of the list, but for a sample's slices.
void ListScheduler::find_turns(std::span<const std::uint32_t> list) {
    if (!may_slice()) {
        return;
    }
    n_later_.clear();
    place_of_return_.clear();
    returning_.clear();
    for (std::uint32_t end = 0; end < list.size();) {
        const std::uint32_t begin = end;
        end += later_slices_[list[begin]] + 1;
        for (std::uint32_t place = end; place-- > begin;) {
            n_later_.push_back(place - begin);
            place_of_return_.push_back(place);
            returning_.push_back(works_[kForward][place]);
        }
    }
    works_[kBackward] = works_[kWeight] = returning_;
}

/// Runs to the end from the states of the stages: new ones, or those of a recording.
double ListScheduler::run_on(double give_up_ms) {
    give_up_ms *= 1.0 + kRounding;
    effort_ += n_microbatches();
    for (std::size_t s = 0; s < n_stages_; ++s) {
        look_ahead(s);
    }
    if (!may_end_by(give_up_ms)) {
        return kNever;
    }
    // A stride runs passes out of their order in time. It ends in the same schedule, but between
    // its steps the states of the stages are not of one moment, which a recording would need.
    if (!is_recorded_) {
        return split_backward_ ? run_in_strides<true>(give_up_ms)
                               : run_in_strides<false>(give_up_ms);
    }
    return split_backward_ ? run_to_end<true>(give_up_ms) : run_to_end<false>(give_up_ms);
}

template <bool kSplit>
double ListScheduler::run_to_end(double give_up_ms) {
    for (std::size_t s = 0; s < n_stages_; ++s) {
        choose<kSplit, true>(s);
    }
    for (std::size_t n = n_steps_left<kSplit>(); n > 0; --n, ++effort_) {
        if (!step<kSplit, true>(soonest(), give_up_ms)) {
            return kNever;
        }
    }
    return last_end_ms();
}

/// Runs the same passes at the same times as `run_to_end`, but not sorted by time: in every stride
/// a pass runs on each stage whose choice no pass of another stage can change any more.
template <bool kSplit>
double ListScheduler::run_in_strides(double give_up_ms) {
    for (std::size_t s = 0; s < n_stages_; ++s) {
        choose<kSplit, false>(s);
    }
    for (std::size_t n = n_steps_left<kSplit>(); n > 0;) {
        const std::size_t n_due = find_due();
        for (std::size_t i = 0; i < n_due; ++i) {
            if (!step<kSplit, false>(due_[i], give_up_ms)) {
                return kNever;
            }
        }
        n -= n_due;
        effort_ += n_due;
    }
    return last_end_ms();
}

/// Runs the next pass of a stage; false if the makespan is then certain to exceed a limit.
template <bool kSplit, bool kInOrder>
bool ListScheduler::step(std::size_t s, double give_up_ms) {
    const Stage& next = stages_[s];
    // Its gradients of weights may run while the last micro-batch returns to the first stage.
    const double left_ms =
        next.path_left_ms + std::max(next.weight_left_ms + next.reduce_ms, next.tail_ms);
    const double next_ms = starts_ms_[s];
    // Infinite if nothing may run, which a micro-batch that does not fit alone would cause.
    if (next_ms + left_ms > give_up_ms || next_ms == kNever) {
        return false;
    }
    // On the last stage a backward pass may begin when its forward pass ends, and nothing goes
    // before it, unless gradients of weights have to free memory for it.
    if (!kSplit && s + 1 == n_stages_ && !may_slice()) {
        execute_both<kInOrder>(s);
    } else {
        execute<kSplit, kInOrder>(s);
    }
    return true;
}

/// Finds the stages whose choice is final: their next pass begins before the result of any pass
/// that is not yet run can arrive. At least the stage with the soonest pass is one of them.
std::size_t ListScheduler::find_due() {
    const double now_ms = *std::min_element(starts_ms_.begin(), starts_ms_.end());
    std::size_t n_due = 0;
    for (std::uint32_t stage = 0; stage < n_stages_; ++stage) {
        due_[n_due] = stage;
        n_due += starts_ms_[stage] < now_ms + news_take_ms_[stage] ? 1 : 0;
    }
    if (n_due == 0) {  // passes that take no time, or nothing may run
        due_[0] = static_cast<std::uint32_t>(soonest());
        n_due = 1;
    }
    return n_due;
}

/// Least time of a pass, not yet begun, whose result could change what the stage runs next;
/// infinite if none can.
double ListScheduler::news_take_ms(std::size_t s) const {
    const Stage& stage = stages_[s];
    double takes_ms = kNever;
    const std::uint32_t forward = stage.n_done[kForward];
    const std::uint32_t backward = stage.n_done[kBackward];
    if (forward < n_microbatches() && stage.next_arrival_ms(kForward) == kNever) {
        takes_ms = work(kForward, forward, s - 1).pass_ms[kForward];
    }
    if (s + 1 < n_stages_ && backward < n_microbatches() &&
        stage.next_arrival_ms(kBackward) == kNever) {
        takes_ms = std::min(takes_ms, work(kBackward, backward, s + 1).pass_ms[kBackward]);
    }
    return takes_ms;
}

/// The stage whose next pass begins first.
std::size_t ListScheduler::soonest() const {
    const auto first = std::min_element(starts_ms_.begin(), starts_ms_.end());
    return static_cast<std::size_t>(first - starts_ms_.begin());
}

double ListScheduler::last_end_ms() const {
    double end_ms = 0.0;
    for (const Stage& stage : stages_) {
        end_ms = std::max(end_ms, stage.free_ms + stage.reduce_ms);
    }
    return end_ms;
}

/// Without split backward passes and slices, the last stage takes both passes of a micro-batch in
/// one step.
template <bool kSplit>
std::size_t ListScheduler::n_steps_left() const {
    std::size_t n_left = (kSplit ? 3 : 2) * n_stages_ * n_microbatches();
    for (const Stage& stage : stages_) {
        n_left -= stage.n_passes;
    }
    const bool runs_both = !kSplit && !may_slice();
    return n_left - (runs_both ? n_microbatches() - stages_.back().n_done[kForward] : 0);
}

std::vector<PassCode> ListScheduler::order() const {
    const std::size_t n_passes = (split_backward_ ? 3 : 2) * n_microbatches();
    std::vector<PassCode> order;
    order.reserve(n_stages_ * n_passes);
    for (std::size_t stage = 0; stage < n_stages_; ++stage) {
        const auto first =
            passes_.begin() + static_cast<std::ptrdiff_t>(3 * stage * n_microbatches());
        order.insert(order.end(), first, first + static_cast<std::ptrdiff_t>(n_passes));
    }
    return order;
}

void ListScheduler::begin() {
    for (Stage& stage : stages_) {
        static_cast<StageState&>(stage) = StageState{};
        for (double* arrivals_ms : stage.arrivals_ms) {
            std::fill_n(arrivals_ms, n_microbatches() + 1, kNever);
        }
    }
    std::fill_n(arrivals_ms_.begin(), n_microbatches(), 0.0);
}

/// Goes back to a recorded state. The recording knows the arrivals that a stage had not acted on
/// yet; those of later places are unknown.
void ListScheduler::resume(const ListRecording& recording, std::size_t n_states) {
    const std::span<const StageState> states = recording.states(n_states);
    for (std::size_t s = 0; s < n_stages_; ++s) {
        static_cast<StageState&>(stages_[s]) = states[s];
        for (const std::size_t k : {kForward, kBackward}) {
            const std::span<const double> pending_ms = recording.pending_ms(n_states, s, k);
            double* arrivals_ms = stages_[s].arrivals_ms[k];
            double* unknown_ms =
                std::copy(pending_ms.begin(), pending_ms.end(), arrivals_ms + states[s].n_done[k]);
            std::fill(unknown_ms, arrivals_ms + n_microbatches() + 1, kNever);
        }
    }
    // The last stage itself turns micro-batches round.
    const Stage& last = stages_.back();
    for (std::uint32_t turn = last.n_done[kBackward]; turn < n_microbatches(); ++turn) {
        if (place_of_return(turn) < last.n_done[kForward]) {
            last.arrivals_ms[kBackward][turn] = 0.0;
        }
    }
    const std::size_t n_entered = states[0].n_done[kForward];
    std::fill_n(&arrivals_ms_[n_entered], n_microbatches() - n_entered, 0.0);
}

/// Adds up the work that is left on a stage, and tells whether memory may bind meanwhile: only if
/// all that is in flight or to come would not fit at once. Where it may not, no pass looks at
/// memory.
void ListScheduler::look_ahead(std::size_t s) {
    Stage& stage = stages_[s];
    std::array<double, 3> left_ms{};
    double kept_bytes = stage.kept_bytes;
    double greatest_transient_bytes = 0.0;
    const auto n = static_cast<std::uint32_t>(n_microbatches());
    for (std::uint32_t turn = stage.n_done[kForward]; turn < n; ++turn) {
        const StageWork& each = work(kForward, turn, s);
        left_ms[kForward] += each.pass_ms[kForward];
        kept_bytes += each.stored_bytes;
    }
    for (std::uint32_t turn = stage.n_done[kBackward]; turn < n; ++turn) {
        left_ms[kBackward] += work(kBackward, turn, s).pass_ms[kBackward];
    }
    for (std::uint32_t turn = stage.n_done[split_backward_ ? kWeight : kBackward]; turn < n;
         ++turn) {
        const StageWork& each = work(kWeight, turn, s);
        left_ms[kWeight] += each.pass_ms[kWeight];
        greatest_transient_bytes =
            std::max(greatest_transient_bytes,
                     std::max(each.forward_transient_bytes, each.backward_transient_bytes));
    }
    stage.path_left_ms = left_ms[kForward] + left_ms[kBackward];
    stage.weight_left_ms = left_ms[kWeight];
    stage.greatest_transient_bytes = greatest_transient_bytes;
    stage.memory_may_bind = kept_bytes + stage.greatest_transient_bytes > limit_bytes_[s];
}

/// False if the makespan is certain to exceed a limit: a stage waits for the first micro-batch,
/// has its work to do, and the last one still has to go back from it, through stages that then
/// reduce their gradients.
bool ListScheduler::may_end_by(double give_up_ms) {
    double head_ms = 0.0;
    double tail_ms = 0.0;
    const auto last = static_cast<std::uint32_t>(n_microbatches() - 1);
    for (std::size_t s = 0; s < n_stages_; ++s) {
        Stage& stage = stages_[s];
        tail_ms += work(kBackward, last, s).send_ms[kBackward];
        tail_ms = std::max(tail_ms, stage.reduce_ms);
        stage.tail_ms = tail_ms;
        const double begin_ms = std::max(head_ms, stage.free_ms);
        const double weight_ms = stage.weight_left_ms + stage.reduce_ms;
        if (begin_ms + stage.path_left_ms + std::max(weight_ms, tail_ms) > give_up_ms) {
            return false;
        }
        head_ms += work(kForward, 0, s).pass_ms[kForward] + work(kForward, 0, s).send_ms[kForward];
        tail_ms += work(kBackward, last, s).pass_ms[kBackward];
    }
    return true;
}

/// Chooses the next pass of a stage, as far as is known, and its time.
///
/// The rule: the backward pass that has arrived, else the forward pass that has arrived and that
/// `may_enter`, else gradients of weights. First in, first out, so only the next turn of each kind
/// is looked at. If a list alternates, a forward pass that waits goes first after a backward pass.
template <bool kSplit, bool kInOrder>
void ListScheduler::choose(std::size_t s) {
    Stage& stage = stages_[s];
    double backward_ms = std::max(stage.free_ms, stage.next_arrival_ms(kBackward));
    const double forward_ms = std::max(stage.free_ms, stage.next_arrival_ms(kForward));
    // A backward pass that does not fit waits: gradients of weights below free memory for it.
    if (kSplit && stage.memory_may_bind && backward_ms < kNever && !may_return(s)) {
        backward_ms = kNever;
    }
    // Only a forward pass that waits already: a stage is never idle to alternate.
    const bool is_first = alternates_ && stage.last_is_backward && forward_ms == stage.free_ms;
    const bool enters =
        (forward_ms < backward_ms || is_first) && (!stage.memory_may_bind || may_enter<kSplit>(s));
    stage.next = enters ? PassKind::kForward : PassKind::kBackward;
    double next_ms = enters ? forward_ms : backward_ms;
    // Gradients of weights fill gaps. Nothing waits for them but memory.
    if (kSplit && next_ms > stage.free_ms && stage.n_done[kWeight] < stage.n_done[kBackward]) {
        stage.next = PassKind::kWeight;
        next_ms = stage.free_ms;
    }
    starts_ms_[s] = next_ms;
    if constexpr (!kInOrder) {
        news_take_ms_[s] = news_take_ms(s);
    }
}

/// Whether the next forward pass fits, now and while each micro-batch in flight goes back.
///
/// What enters stays until all before it have left, so it must fit beside each of their backward
/// passes. They leave in the order in which they entered, each taking its stored memory with it. If
/// they all fit one after the other, the first of them can always proceed: no list runs into a
/// deadlock.
template <bool kSplit>
bool ListScheduler::may_enter(std::size_t s) const {
    const Stage& stage = stages_[s];
    const double limit_bytes = limit_bytes_[s];
    const std::uint32_t entered = stage.n_done[kForward];
    if (may_slice() && entered > 0 && n_later_[entered - 1] > 0) {
        return true;  // room was left for it when the first slice of its sample entered
    }
    const std::uint32_t last = entered + (may_slice() ? n_later_[entered] : 0);
    double kept = stage.kept_bytes;
    for (std::uint32_t turn = entered; turn <= last; ++turn) {
        kept += work(kForward, turn, s).stored_bytes;
    }
    if (kept + stage.greatest_transient_bytes <= limit_bytes) {
        return true;  // whichever pass runs, without a walk over all in flight
    }
    if (kept + work(kForward, entered, s).forward_transient_bytes > limit_bytes) {
        return false;
    }
    for (std::uint32_t turn = stage.n_done[kSplit ? kWeight : kBackward]; turn <= last; ++turn) {
        const StageWork& returning = work(kBackward, turn, s);
        if (kept + returning.backward_transient_bytes > limit_bytes) {
            return false;
        }
        kept -= returning.stored_bytes;
    }
    return true;
}

/// Whether the next backward pass fits before gradients of weights have freed memory. With none to
/// come it does: `may_enter` has seen to that.
bool ListScheduler::may_return(std::size_t s) const {
    const Stage& stage = stages_[s];
    const StageWork& returning = work(kBackward, stage.n_done[kBackward], s);
    return stage.n_done[kWeight] == stage.n_done[kBackward] ||
           stage.kept_bytes + returning.backward_transient_bytes <= limit_bytes_[s];
}

template <bool kSplit, bool kInOrder>
void ListScheduler::execute(std::size_t s) {
    Stage& stage = stages_[s];
    const auto k = static_cast<std::size_t>(stage.next);
    const std::uint32_t turn = stage.n_done[k]++;
    const std::uint32_t place = k == kForward ? turn : place_of_return(turn);
    passes_[3 * s * n_microbatches() + stage.n_passes++] = pass_code(place, stage.next);
    const StageWork& done = work(k, turn, s);
    stage.free_ms = starts_ms_[s] + done.pass_ms[k];
    (k == kWeight ? stage.weight_left_ms : stage.path_left_ms) -= done.pass_ms[k];
    stage.last_is_backward = k == kForward ? false : k == kBackward || stage.last_is_backward;
    if (k == kForward) {
        stage.kept_bytes += done.stored_bytes;
    } else if (k == (kSplit ? kWeight : kBackward)) {
        // Fractions of bytes leave a rounding error behind.
        stage.kept_bytes =
            stage.n_done[k] == stage.n_done[kForward] ? 0.0 : stage.kept_bytes - done.stored_bytes;
    }
    if (k == kForward && s + 1 == n_stages_) {
        stage.arrivals_ms[kBackward][place_of_return(place)] = stage.free_ms;
    } else if (k == kForward || (k == kBackward && s > 0)) {
        send<kSplit, kInOrder>(s, k, turn);
    }
    if (kSplit && stage.n_done[kBackward] == n_microbatches()) {
        stage.tail_ms = 0.0;  // under way, whatever this stage has left
    }
    // Between two passes that are run in order, the states of all stages are of one moment.
    if (kInOrder && s == 0 && k == kForward &&
        stage.n_done[kForward] % ListRecording::kEvery == 0) {
        const std::size_t n_states = stage.n_done[kForward] / ListRecording::kEvery;
        std::copy(stages_.begin(), stages_.end(), &states_[(n_states - 1) * n_stages_]);
    }
    choose<kSplit, kInOrder>(s);
}

/// A forward pass of the last stage and its backward pass, which is always next.
template <bool kInOrder>
void ListScheduler::execute_both(std::size_t s) {
    Stage& stage = stages_[s];
    const std::uint32_t place = stage.n_done[kForward]++;
    ++stage.n_done[kBackward];
    stage.last_is_backward = true;
    passes_[3 * s * n_microbatches() + stage.n_passes++] = pass_code(place, PassKind::kForward);
    passes_[3 * s * n_microbatches() + stage.n_passes++] = pass_code(place, PassKind::kBackward);
    const StageWork& done = work(kForward, place, s);
    stage.free_ms = starts_ms_[s] + done.pass_ms[kForward] + done.pass_ms[kBackward];
    stage.path_left_ms -= done.pass_ms[kForward] + done.pass_ms[kBackward];
    if (s > 0) {
        send<false, kInOrder>(s, kBackward, place);
    }
    choose<false, kInOrder>(s);
}

template <bool kSplit, bool kInOrder>
void ListScheduler::send(std::size_t from, std::size_t k, std::uint32_t turn) {
    const std::size_t to = k == kForward ? from + 1 : from - 1;
    Stage& stage = stages_[from];
    // A link carries one transfer at a time: per direction, or in all if it is half duplex.
    double& link_free_ms = stage.link_free_ms[full_duplex_ ? k : 0];
    link_free_ms = std::max(stage.free_ms, link_free_ms) + work(k, turn, from).send_ms[k];
    Stage& receiver = stages_[to];
    receiver.arrivals_ms[k][turn] = link_free_ms;
    if (receiver.n_done[k] == turn) {  // next in line there
        choose<kSplit, kInOrder>(to);
    }
}

}  // namespace dynapipe
