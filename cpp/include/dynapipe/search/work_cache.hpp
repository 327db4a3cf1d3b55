#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "dynapipe/cost/link.hpp"
#include "dynapipe/cost/stage_costs.hpp"

namespace dynapipe {

/// Costs of a micro-batch on a stage, as the list scheduler needs them; times by PassKind.
struct StageWork {
    std::array<double, 3> pass_ms;
    std::array<double, 2> send_ms;  ///< transfer to the next and to the previous stage
    double stored_bytes;
    double forward_transient_bytes;
    double backward_transient_bytes;
};

/// Looks up micro-batches by number. Each is computed once, when a list first names it.
class WorkCache {
  public:
    /// @param split_backward  whether gradients of weights are separate passes.
    WorkCache(const StageCosts& costs, const Link& link, bool split_backward);

    /// The micro-batches of a list, each (n_kinds,); valid until the next look-up.
    std::span<const StageWork* const> look_up(std::span<const std::uint32_t> list);

    /// Kind of a stage: stages of one kind have the same work, and so have those before them.
    [[nodiscard]] std::size_t kind_of_stage(std::size_t stage) const {
        return kind_of_stage_[stage];
    }

  private:
    void add(std::uint32_t microbatch);

    StageCosts costs_;
    Link link_;
    bool split_backward_;
    std::vector<std::size_t> kind_of_stage_;  ///< (n_stages,)
    std::vector<std::size_t> first_of_kind_;  ///< (n_kinds,): a stage of the kind
    std::vector<std::int32_t> known_at_;      ///< per micro-batch, its index in known_, or -1
    std::vector<StageWork> known_;            ///< micro-batches seen so far, (n, n_kinds)
    std::vector<const StageWork*> found_;
};

}  // namespace dynapipe
