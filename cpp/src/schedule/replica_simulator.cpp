#include "dynapipe/schedule/replica_simulator.hpp"

#include <algorithm>
#include <limits>

namespace dynapipe {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();

}  // namespace

ReplicaSimulator::ReplicaSimulator(const WindowCosts& windows, std::span<const double> limit_bytes,
                                   const Link& link, bool split_backward,
                                   std::span<const double> reduce_ms)
    : windows_(windows),
      limit_bytes_(limit_bytes),
      link_(link),
      scheduler_(windows.costs, limit_bytes, link, split_backward, reduce_ms),
      lightest_first_(windows.costs, limit_bytes, link, split_backward, windows.later_slices,
                      reduce_ms) {}

double ReplicaSimulator::makespan_ms(std::span<const Window> replica, double give_up_ms,
                                     Precedence precedence) {
    list_.clear();
    for (const Window& window : replica) {
        const std::uint32_t microbatch = windows_.microbatch(window);
        list_.push_back(microbatch);
        if (windows_.has_slices(microbatch)) {
            precedence = Precedence::kLightest;
        }
    }
    list_.push_back(static_cast<std::uint32_t>(precedence));
    const auto known = known_ms_.find(list_);
    if (known != known_ms_.end() && known->second >= 0.0) {
        return known->second <= give_up_ms ? known->second : kNever;
    }
    if (known != known_ms_.end() && give_up_ms <= -known->second) {
        return kNever;
    }
    const auto list = std::span<const std::uint32_t>(list_).first(replica.size());
    const double ms =
        precedence == Precedence::kLightest
            ? lightest_first_.run(with_slices(list), give_up_ms)
            : scheduler_.run(list, give_up_ms, precedence == Precedence::kAlternating);
    if (ms < kNever || give_up_ms == kNever) {
        known_ms_[list_] = ms;
    } else if (give_up_ms > 0.0) {  // any makespan exceeds other limits
        known_ms_[list_] = -give_up_ms;
    }
    return ms;
}

double ReplicaSimulator::best_makespan_ms(std::span<const Window> replica, double give_up_ms,
                                          std::span<const Precedence> precedences) {
    double best_ms = kNever;
    for (const Precedence precedence : precedences) {
        best_ms =
            std::min(best_ms, makespan_ms(replica, std::min(best_ms, give_up_ms), precedence));
    }
    return best_ms;
}

std::span<const Precedence> ReplicaSimulator::precedences_of(
    std::span<const Window> replica) const {
    if (std::any_of(replica.begin(), replica.end(),
                    [&](const Window& window) { return has_slices(window); })) {
        return kOvertaking;
    }
    const bool is_any_heavy = std::any_of(replica.begin(), replica.end(),
                                          [&](const Window& window) { return is_heavy(window); });
    return is_any_heavy ? kPrecedences : kFirstInFirstOut;
}

double ReplicaSimulator::run(std::span<const std::uint32_t> list, double give_up_ms,
                             Precedence precedence, ListRecording& recording) {
    const auto has_slices = [&](std::uint32_t each) { return windows_.has_slices(each); };
    if (std::any_of(list.begin(), list.end(), has_slices)) {
        return lightest_first_.run(with_slices(list), give_up_ms);
    }
    if (precedence == Precedence::kLightest && is_any_heavy(windows_.costs, list, limit_bytes_)) {
        return lightest_first_.run(list, give_up_ms);
    }
    return scheduler_.run(list, give_up_ms, precedence == Precedence::kAlternating, recording);
}

/// The list with slices in place of the micro-batches that have some; valid until the next call.
std::span<const std::uint32_t> ReplicaSimulator::with_slices(std::span<const std::uint32_t> list) {
    if (windows_.first_slice.empty()) {
        return list;
    }
    expanded_.clear();
    for (const std::uint32_t microbatch : list) {
        const auto [first, n] = windows_.parts(microbatch);
        for (std::size_t slice = first; slice < first + n; ++slice) {
            expanded_.push_back(static_cast<std::uint32_t>(slice));
        }
    }
    return expanded_;
}

double ReplicaSimulator::slowest_ms(const Assignment& plan, std::span<const double> slowness,
                                    double give_up_ms) {
    double slowest_ms = 0.0;
    for (std::size_t r = 0; r < plan.size(); ++r) {
        const double ms =
            best_makespan_ms(plan[r], give_up_ms / slowness[r], precedences_of(plan[r])) *
            slowness[r];
        slowest_ms = std::max(slowest_ms, ms);
        if (slowest_ms == kNever) {
            break;
        }
    }
    return slowest_ms;
}

std::size_t ReplicaSimulator::HashOfList::operator()(const List& list) const {
    constexpr std::uint64_t kPrime = 0x9E3779B97F4A7C15;
    std::uint64_t hash = list.size();
    for (const std::uint32_t number : list) {
        hash = (hash ^ number) * kPrime;
        hash ^= hash >> 32;
    }
    return static_cast<std::size_t>(hash);
}

}  // namespace dynapipe
