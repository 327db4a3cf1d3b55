#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "dynapipe/batch/equal_rows.hpp"
#include "dynapipe/cost/stage_costs.hpp"

namespace dynapipe {

/// Samples in the order to be cut, (n_samples,) each, and their bundles: neighbours that stay
/// together, in small batches one sample each.
struct OrderedSamples {
    std::span<const std::int64_t> inputs;   ///< positions; in a decoder-only model, of both sides
    std::span<const std::int64_t> targets;  ///< positions on the decoder side; 0 if it has none
    std::span<const std::int64_t> n_documents;  ///< see SampleSums
    std::span<const std::int64_t> pairs;        ///< see SampleSums
    std::span<const std::int64_t> begin;        ///< (n_bundles + 1,): ascending from 0 to n_samples

    [[nodiscard]] std::size_t n_bundles() const { return begin.size() - 1; }
};

/// The ranks of a replica that windows have to fit on.
struct StageRoom {
    std::span<const double> room_bytes;  ///< (n_stages,): device memory less that of the model
    std::span<const std::int32_t> kind_of_stage = {};  ///< see StageCosts
    std::size_t n_kinds = room_bytes.size();
};

/// Costs of some micro-batches in a table that stays as long as anybody looks at it.
struct CostBlock {
    std::shared_ptr<std::vector<PassCosts>> table;
    std::size_t first;

    [[nodiscard]] PassCosts* data() const { return table->data() + first; }
};

/// Writes what micro-batches of a layout cost in a mode of recomputation, (n_shapes, n_kinds).
using Price = std::function<void(std::size_t layout, std::size_t mode, const Shapes& shapes,
                                 const CostBlock& costs)>;

/// Costs of every window of neighbouring bundles. See `WindowCosts`, which points to these.
struct PricedWindows {
    std::shared_ptr<std::vector<PassCosts>> costs;  ///< (n_costs, n_kinds)
    Shapes shapes;                                  ///< (n_costs,) each
    std::vector<std::int32_t> cells;                ///< as in WindowCosts
    std::vector<std::int64_t> spans;                ///< (n_layouts * n_modes, n_rows, 2)
    std::vector<std::int32_t> row_of_bundle;        ///< (n_bundles,)
};

/// Looks up all windows that can run, once for all uses, in every layout: end to end in one row, or
/// a row each, padded to the longest.
///
/// Windows are looked up by their number of bundles: those of 1 to 8, of up to 16, of up to 32, and
/// so on, as long as the largest so far of the same first bundle fits. More samples never need less
/// memory, except for noise.
///
/// Bundles whose windows are all alike in all layouts, such as those of one length in a sorted list
/// if rows are padded, share a row of the tables.
///
/// @param is_packed       per layout
/// @param most_tokens     limit on windows of several bundles; padding of rows of their own counts
/// @param token_multiple  multiple that rows are filled up to
/// @param n_modes         modes of recomputation
PricedWindows price_windows(const OrderedSamples& samples, const std::vector<bool>& is_packed,
                            double most_tokens, std::int64_t token_multiple, const KnownRows& known,
                            const StageRoom& stages, std::size_t n_modes, const Price& price);

}  // namespace dynapipe
