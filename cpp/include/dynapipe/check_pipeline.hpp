#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "dynapipe/plan_rows.hpp"

namespace dynapipe {

/// The plan of one stage, as far as it is checked. Numbers of bytes are not negative.
struct StagePlan {
    Rows rows;
    std::uint32_t rank;
    std::int64_t limit_bytes;
    std::int64_t static_bytes;
    std::span<const std::int64_t> stored_bytes;              ///< (n_microbatches,)
    std::span<const std::int64_t> forward_transient_bytes;   ///< (n_microbatches,)
    std::span<const std::int64_t> backward_transient_bytes;  ///< (n_microbatches,)
};

/// What a micro-batch goes through on a stage, each step once. The order is that of the numbers
/// which faults name; of several missing steps they name the first.
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
    ending,          ///< the last two rows are ReduceGradients and StepOptimizer
    place,           ///< no other row on this stage is of this kind
    microbatch,      ///< a row names an existing micro-batch
    once,            ///< no step comes twice
    needs,           ///< a step comes after what it needs, and all steps come before the end
    peer,            ///< transfers go to the stage before or behind
    split,           ///< a stage splits all of its backward passes or none
    slot,            ///< a receive slot has one user at a time
    memory,          ///< the peak is within the limit
    pair_order,      ///< two ranks start their transfers in the same order
    no_endless_wait  ///< every wait ends
};

/// A rule that is broken, and where.
struct Fault {
    Rule rule;
    std::size_t stage = 0;         ///< for pair_order, the one before the other
    std::size_t position = 0;      ///< row; for pair_order, place among the transfers of the pair
    std::uint32_t microbatch = 0;  ///< needs, slot: the micro-batch meant
    std::int64_t detail = 0;  ///< needs: the missing Step; peer: the right one; memory: the peak
};

/// Checks that the plans of the stages of one replica, executed together, end and do their work.
///
/// Each stage by itself: every micro-batch takes every step once, in an order that respects what
/// each step needs; transfers go to the neighbours; a receive slot has one user until the
/// micro-batch's last pass on the stage; memory stays within its limit; a reduction and an
/// optimizer step come last. And neighbours start the transfers between them in the same order.
///
/// That is enough under NCCL's rules, by which the operations between two ranks, in both
/// directions, form one queue: they match in the order in which each side starts them, and none
/// completes before those ahead of it; a wait blocks its rank until its operation is complete.
///   1. Both sides of a pair start equally many operations, and in the same order, so each
///      operation meets its own counterpart.
///   2. No rank waits for ever. Say some do, and look at where all of them stand. A rank that has
///      ended has started all of its operations, so whoever still waits, waits for an operation
///      that a waiting neighbour has yet to start. Going from rank to the one it waits for must
///      come back to a rank seen before; as the ranks form a line, two neighbours wait for each
///      other. Of these, one has started m operations with the other and waits for one of them,
///      which is not among the first n, the number that the other has started: n < m. Likewise m <
///      n.
///
/// Rows may hold any numbers.
///
/// @return  the first fault in the order of stages and then of `Rule`; nothing if there is none.
///
/// Time O(n) for n rows of all stages.
std::optional<Fault> check_pipeline(std::span<const StagePlan> stages, std::size_t n_microbatches);

/// Largest memory at any moment of a plan: what is stored counts from the start of a micro-batch's
/// forward pass to the end of its last backward pass, transient bytes while a pass runs. Rows on
/// micro-batches that do not exist are left out. Sums end at the largest number.
std::int64_t peak_bytes(const StagePlan& plan);

}  // namespace dynapipe
