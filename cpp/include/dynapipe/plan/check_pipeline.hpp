#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "dynapipe/plan/plan_rows.hpp"

namespace dynapipe {

/// The parts of a stage's plan that are checked. Numbers of bytes are not negative.
struct StagePlan {
    Rows rows;
    std::uint32_t rank;
    std::int64_t limit_bytes;
    std::int64_t static_bytes;
    std::span<const std::int64_t> stored_bytes;              ///< (n_microbatches,)
    std::span<const std::int64_t> forward_transient_bytes;   ///< (n_microbatches,)
    std::span<const std::int64_t> backward_transient_bytes;  ///< (n_microbatches,)
};

/// Steps of a micro-batch on a stage, each taken once. If several steps are missing, faults name
/// the one that comes first in this enumeration.
enum class Step : std::uint8_t {
    load,
    start_receive_activation,
    wait_receive_activation,
    forward,
    start_send_activation,
    wait_send_activation,
    start_receive_gradient,
    wait_receive_gradient,
    backward,
    backward_input,
    backward_weight,
    start_send_gradient,
    wait_send_gradient,
};

enum class Rule : std::uint8_t {
    ending,      ///< the last two rows of plans that train are ReduceGradients and StepOptimizer
    place,       ///< no other row on this stage is of this kind
    microbatch,  ///< a row names an existing micro-batch
    once,        ///< no step comes twice
    needs,       ///< a step comes after what it needs, and all steps come before the end
    peer,        ///< transfers go to the previous or the next stage
    split,       ///< a stage splits all of its backward passes or none
    slot,        ///< a receive slot has one user at a time
    memory,      ///< the peak is within the limit
    pair_order   ///< two ranks start their transfers in the same order
};

/// A violated rule, and where it is violated.
struct Fault {
    Rule rule;
    std::size_t stage = 0;         ///< for pair_order, the earlier of the two
    std::size_t position = 0;      ///< row; for pair_order, place among the transfers of the pair
    std::uint32_t microbatch = 0;  ///< needs, slot: the micro-batch concerned
    std::int64_t detail = 0;       ///< needs: missing Step; peer: expected one; memory: peak
};

/// Checks that the stages of one replica, executing their plans together, finish and do their work.
///
/// On each stage, every micro-batch takes every step once, in an order that respects what each step
/// needs; transfers go to the neighbouring stages; a receive slot has one user until the
/// micro-batch's last pass on the stage; memory stays within its limit; a gradient reduction and an
/// optimizer step come last. In addition, neighbours start the transfers between them in the same
/// order.
///
/// If all stages have forward passes, but none a backward pass, a gradient reduction or an
/// optimizer step, the plans are forward only: these steps are missing, as are transfers of
/// gradients.
///
/// Micro-batches may hold slices of a sample. On every stage the forward pass of a slice comes
/// after that of the slice before it, whose keys and values it reads, and the backward pass of a
/// slice after that of the slice behind it, which adds to the gradients of its keys and values.
/// These rules are local to a stage, so what follows holds with them, too.
///
/// This is sufficient under NCCL's rules: the operations between two ranks, in both directions,
/// form one queue. They match in the order in which each side starts them, none completes before
/// those ahead of it in the queue, and a wait blocks its rank until its operation is complete. It
/// is sufficient even if every start blocks, too, until the peer starts its side: some do where a
/// connection is made at its first use, and all do where every launch is waited for.
///   1. Both sides of a pair start equally many operations, in the same order, so each operation
///      meets its counterpart.
///   2. No rank waits forever, neither in a wait nor in a start. Suppose some do. A rank that has
///      finished has started all of its operations, so each of the waiting ranks waits for an
///      operation that a waiting neighbour has not started yet. Following these dependencies from
///      rank to rank must eventually return to a rank seen before. Because the ranks form a line,
///      there are then two neighbours that wait for each other. Let one of them have started m
///      operations of the pair, and the other n; a start that blocks counts as started. The first
///      waits for one of its m operations that is not among the first n, so n < m. By the same
///      argument m < n, a contradiction.
///
/// Rows may hold arbitrary numbers.
///
/// @param earlier_slice  (n_microbatches,): the micro-batch with the slice before that of each; the
///                       micro-batch itself if it has no slice or the first. No two have the same.
/// @return  the first fault, ordered by stage and then by `Rule`; nothing if there is none.
///
/// Time O(n) for a total of n rows on all stages.
std::optional<Fault> check_pipeline(std::span<const StagePlan> stages,
                                    std::span<const std::uint32_t> earlier_slice);

/// Peak memory of a plan. Stored bytes count from the start of a micro-batch's forward pass to the
/// end of its last backward pass, transient bytes while a pass runs. Rows that name a micro-batch
/// that does not exist are ignored. Sums saturate at the largest number.
std::int64_t peak_bytes(const StagePlan& plan);

}  // namespace dynapipe
