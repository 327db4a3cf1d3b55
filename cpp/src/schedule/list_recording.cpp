#include "dynapipe/schedule/list_recording.hpp"

#include <algorithm>

namespace dynapipe {
namespace {

constexpr std::size_t kForward = 0;
constexpr std::size_t kBackward = 1;

}  // namespace

std::size_t ListRecording::n_shared(std::span<const std::uint32_t> list, bool alternates) const {
    if (alternates != alternates_) {
        return 0;
    }
    const auto [parting, unused] =
        std::mismatch(list.begin(), list.end(), list_.begin(), list_.end());
    return static_cast<std::size_t>(parting - list.begin()) / kEvery;
}

std::span<const double> ListRecording::pending_ms(std::size_t n, std::size_t stage,
                                                  std::size_t kind) const {
    const std::size_t n_done = states(n)[stage].n_done[kind];
    const std::size_t n_pending = n_arrived(n, stage, kind) - n_done;
    return std::span(arrivals_ms_[2 * stage + kind]).subspan(n_done, n_pending);
}

/// Number of micro-batches that had reached a stage, on their way there or back.
std::size_t ListRecording::n_arrived(std::size_t n, std::size_t stage, std::size_t kind) const {
    const std::span<const StageState> known = states(n);
    if (kind == kForward) {
        return known[stage > 0 ? stage - 1 : 0].n_done[kForward];
    }
    return known[std::min(stage + 1, n_stages_ - 1)].n_done[kBackward];
}

void ListRecording::replace(const ListRun& run, std::size_t n_shared) {
    list_.assign(run.list.begin(), run.list.end());
    alternates_ = run.alternates;
    n_stages_ = run.n_stages;
    const std::size_t n_known = n_shared * n_stages_;
    const std::size_t n_now = list_.size() / kEvery * n_stages_;
    states_.resize(n_now);
    std::copy(run.states.data() + n_known, run.states.data() + n_now, states_.data() + n_known);
    arrivals_ms_.resize(2 * n_stages_);
    for (std::size_t i = 0; i < arrivals_ms_.size(); ++i) {
        const std::size_t n_done = n_shared > 0 ? states(n_shared)[i / 2].n_done[i % 2] : 0;
        const double* now_ms = run.arrivals_ms.data() + i * run.stride;
        arrivals_ms_[i].resize(list_.size());
        std::copy(now_ms + n_done, now_ms + list_.size(), arrivals_ms_[i].data() + n_done);
    }
}

}  // namespace dynapipe
