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
      scheduler_(windows.costs, limit_bytes, link, split_backward, reduce_ms,
                 windows.later_slices) {}

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
    const auto list = std::span<const std::uint32_t>(list_).first(replica.size());
    const double ms = scheduler_.run(with_slices(list), give_up_ms, alternates);
    if (ms < kNever || give_up_ms == kNever) {
        known_ms_[list_] = ms;
    } else if (give_up_ms > 0.0) {  // any makespan exceeds other limits
        known_ms_[list_] = -give_up_ms;
    }
    return ms;
}

double ReplicaSimulator::best_makespan_ms(std::span<const Window> replica, double give_up_ms) {
    const double ms = makespan_ms(replica, give_up_ms, false);
    return std::min(ms, makespan_ms(replica, std::min(ms, give_up_ms), true));
}

double ReplicaSimulator::run(std::span<const std::uint32_t> list, double give_up_ms,
                             bool alternates, ListRecording& recording) {
    return scheduler_.run(with_slices(list), give_up_ms, alternates, recording);
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
