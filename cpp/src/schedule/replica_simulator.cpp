#include "dynapipe/schedule/replica_simulator.hpp"

#include <algorithm>
#include <limits>

namespace dynapipe {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();

}  // namespace

ReplicaSimulator::ReplicaSimulator(const WindowCosts& windows, std::span<const double> limit_bytes,
                                   const Link& link, bool split_backward)
    : windows_(windows),
      limit_bytes_(limit_bytes),
      link_(link),
      split_backward_(split_backward),
      scheduler_(windows.costs, limit_bytes, link, split_backward) {}

double ReplicaSimulator::makespan_ms(std::span<const Window> replica, double give_up_ms,
                                     bool alternates) {
    list_.clear();
    for (const Window& window : replica) {
        list_.push_back(windows_.microbatch(window));
    }
    list_.push_back(alternates ? 1 : 0);
    const auto known = known_ms_.find(list_);
    if (known != known_ms_.end() && known->second >= 0.0) {
        return known->second <= give_up_ms ? known->second : kNever;
    }
    if (known != known_ms_.end() && give_up_ms <= -known->second) {
        return kNever;
    }
    const double ms =
        scheduler_.run(std::span(list_).first(replica.size()), give_up_ms, alternates);
    known_ms_[list_] = ms < kNever || give_up_ms == kNever ? ms : -give_up_ms;
    return ms;
}

double ReplicaSimulator::best_makespan_ms(std::span<const Window> replica, double give_up_ms) {
    const double ms = makespan_ms(replica, give_up_ms);
    return std::min(ms, makespan_ms(replica, std::min(ms, give_up_ms), true));
}

double ReplicaSimulator::slowest_ms(const Assignment& plan, std::span<const double> slowness,
                                    double give_up_ms) {
    double slowest_ms = 0.0;
    for (std::size_t r = 0; r < plan.size(); ++r) {
        const double ms = best_makespan_ms(plan[r], give_up_ms / slowness[r]) * slowness[r];
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
