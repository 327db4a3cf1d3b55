#include "dynapipe/schedule/replica_simulator.hpp"

#include <algorithm>

namespace dynapipe {

ReplicaSimulator::ReplicaSimulator(const WindowCosts& windows, std::span<const double> limit_bytes,
                                   const Link& link, bool split_backward)
    : windows_(windows),
      scheduler_(windows.costs, limit_bytes, link, windows.n_samples(), split_backward) {}

double ReplicaSimulator::makespan_ms(std::span<const Window> replica, double give_up_ms,
                                     bool alternates) {
    list_.clear();
    for (const Window& window : replica) {
        list_.push_back(windows_.microbatch(window));
    }
    return scheduler_.run(list_, give_up_ms, alternates);
}

double ReplicaSimulator::best_makespan_ms(std::span<const Window> replica, double give_up_ms) {
    const double ms = makespan_ms(replica, give_up_ms);
    return std::min(ms, makespan_ms(replica, std::min(ms, give_up_ms), true));
}

}  // namespace dynapipe
