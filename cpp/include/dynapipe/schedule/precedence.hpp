#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "dynapipe/cost/stage_costs.hpp"

namespace dynapipe {

/// Rule by which one of the passes that have arrived goes first on a stage.
enum class Precedence : std::uint8_t {
    kBackward,     ///< the next backward pass, see ListScheduler
    kAlternating,  ///< after a backward pass the next forward pass, see ListScheduler
    kLightest,     ///< the backward pass that needs the least memory, see LightestFirst
};

/// The transient memory of a backward pass from which a micro-batch is heavy, as a share of the
/// memory of a stage: its backward pass only fits while others keep little.
inline constexpr double kHeavyShare = 0.125;

/// Whether a micro-batch is heavy on some stage. Where none is, overtaking changes little.
///
/// @param limit_bytes  (n_stages,): memory for activations.
inline bool is_heavy(const StageCosts& costs, std::size_t microbatch,
                     std::span<const double> limit_bytes) {
    for (std::size_t s = 0; s < costs.n_stages; ++s) {
        if (costs.at(microbatch, s).backward_transient_bytes > kHeavyShare * limit_bytes[s]) {
            return true;
        }
    }
    return false;
}

/// Whether a list has a heavy micro-batch.
inline bool is_any_heavy(const StageCosts& costs, std::span<const std::uint32_t> list,
                         std::span<const double> limit_bytes) {
    return std::any_of(list.begin(), list.end(), [&](std::uint32_t microbatch) {
        return is_heavy(costs, microbatch, limit_bytes);
    });
}

inline constexpr std::array kEachPrecedence = {Precedence::kBackward, Precedence::kAlternating,
                                               Precedence::kLightest};
inline constexpr std::span<const Precedence> kPrecedences = kEachPrecedence;
/// Those in which passes go first in, first out.
inline constexpr std::span<const Precedence> kFirstInFirstOut = kPrecedences.first(2);
/// The one in which micro-batches overtake others.
inline constexpr std::span<const Precedence> kOvertaking = kPrecedences.last(1);

}  // namespace dynapipe
