#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace dynapipe {

/// State of a stage after the passes that it has run so far; arrays by PassKind.
struct StageState {
    double free_ms;
    double kept_bytes;
    std::array<double, 2> link_free_ms;  ///< transfers to the next and the previous stage
    std::array<std::uint32_t, 3> n_done;
    std::uint32_t n_passes;
    bool last_is_backward;  ///< whether the last forward or backward pass was a backward
};

/// A run of the list scheduler to the end of a list.
struct ListRun {
    std::span<const std::uint32_t> list;
    bool alternates;
    std::size_t n_stages;
    std::span<const StageState> states;   ///< (n, n_stages), see ListRecording
    std::span<const double> arrivals_ms;  ///< (n_stages, 2, stride): by stage, kind and place
    std::size_t stride;                   ///< at least the length of the list
};

/// A recorded run, from which runs of similar lists can start.
///
/// The part of a list from a place on has no influence until the first stage decides about that
/// place. A list that begins like the recorded one therefore comes to the same states of the
/// stages. They are recorded whenever kEvery more micro-batches have entered the first stage.
/// Initially the recording is empty.
class ListRecording {
  public:
    static constexpr std::size_t kEvery = 4;

    /// Number of recorded states that a run of a list comes to as well.
    [[nodiscard]] std::size_t n_shared(std::span<const std::uint32_t> list, bool alternates) const;

    /// States of all stages after n * kEvery micro-batches had entered, n >= 1.
    [[nodiscard]] std::span<const StageState> states(std::size_t n) const {
        return {&states_[(n - 1) * n_stages_], n_stages_};
    }

    /// Arrivals in the n-th states that a stage had not acted on, from its next place on; at the
    /// first stage, of micro-batches that had entered.
    [[nodiscard]] std::span<const double> pending_ms(std::size_t n, std::size_t stage,
                                                     std::size_t kind) const;

    /// Records another run, which came to the first n_shared recorded states, too.
    void replace(const ListRun& run, std::size_t n_shared);

  private:
    [[nodiscard]] std::size_t n_arrived(std::size_t n, std::size_t stage, std::size_t kind) const;

    std::vector<std::uint32_t> list_;
    bool alternates_ = false;
    std::size_t n_stages_ = 0;
    std::vector<StageState> states_;                ///< (n, n_stages)
    std::vector<std::vector<double>> arrivals_ms_;  ///< (n_stages x 2), each as long as the list
};

}  // namespace dynapipe
