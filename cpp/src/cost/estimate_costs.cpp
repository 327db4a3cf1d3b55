#include "dynapipe/cost/estimate_costs.hpp"

#include <algorithm>
#include <vector>

namespace dynapipe {
namespace {

double square(double x) { return x * x; }

/// One layer, and where its needs are not zero.
class Layer {
  public:
    explicit Layer(const LayerNeeds& layer)
        : layer_(layer), values_(layer.needs.size() / kTokenCounts) {
        for (std::size_t count = 0; count < kTokenCounts; ++count) {
            const auto row = layer.needs.subspan(count * values_.size(), values_.size());
            if (std::any_of(row.begin(), row.end(), [](double need) { return need != 0; })) {
                counts_.push_back(count);
            }
            defers_ = defers_ || row[deferred_flops] != 0;
        }
    }

    /// Costs of a micro-batch; `sum` is what it holds on top of the largest backward pass.
    PassCosts costs(const MicroBatchShape& shape, const Rates& rates, double& sum) {
        const TokenCounts tokens = token_counts(layer_.side, layer_.window, shape);
        std::fill(values_.begin(), values_.end(), 0.0);
        for (const std::size_t count : counts_) {
            const double* needs = &layer_.needs[count * values_.size()];
            for (std::size_t i = 0; i < values_.size(); ++i) {
                values_[i] += tokens[count] * needs[i];
            }
        }
        const auto& value = values_;
        const LayerBytes& bytes = layer_.bytes;
        const double twice = rates.backward_work;
        const double computed_ms =
            value[linear_flops] / rates.flops_per_ms + value[attention_flops] / rates.flops_per_ms;
        const double moved_ms = (bytes.read + value[moved_bytes]) / rates.memory_bytes_per_ms;
        const double summed_ms = value[summed_bytes] / rates.reduction_bytes_per_ms;
        PassCosts costs;
        costs.forward_ms =
            std::max(rates.begun_ms + std::max(computed_ms, moved_ms), rates.launch_ms) + summed_ms;
        // Where nothing is spared, exactly twice the forward pass.
        const double spared_ms = value[spared_flops] / rates.flops_per_ms;
        const double back_ms = std::max(twice * computed_ms - spared_ms, twice * moved_ms);
        costs.backward_ms = std::max(twice * rates.begun_ms + back_ms, twice * rates.launch_ms) +
                            twice * summed_ms + value[repeated_flops] / rates.flops_per_ms;
        if (defers_) {
            const double written_ms =
                (bytes.deferred + value[moved_bytes]) / rates.memory_bytes_per_ms;
            costs.weight_ms = std::max(
                rates.begun_ms + std::max(value[deferred_flops] / rates.flops_per_ms, written_ms),
                rates.launch_ms);
        }
        costs.stored_bytes = value[stored_bytes];
        const double transient = std::min(value[transient_bytes], bytes.most_transient);
        const double masks = std::min(value[mask_bytes], bytes.most_mask);
        double passing = 0.0;
        for (std::size_t block = passing_bytes; block < value.size(); ++block) {
            passing = std::max(passing, value[block]);
        }
        costs.forward_transient_bytes = transient + passing + masks;
        costs.backward_transient_bytes =
            twice * transient + masks + value[repeated_bytes] + value[term_bytes] + bytes.gradient;
        sum = value[sum_bytes];
        return costs;
    }

  private:
    LayerNeeds layer_;
    std::vector<double> values_;       ///< of the needs, for a micro-batch
    std::vector<std::size_t> counts_;  ///< that any need depends on
    bool defers_ = false;
};

}  // namespace

TokenCounts token_counts(TokenSide side, double window, const MicroBatchShape& shape) {
    switch (side) {
        case TokenSide::inputs: {
            const double length = shape.row_tokens * (shape.n_rows / shape.input_rows);
            const double pairs = shape.input_rows * square(length);
            // A slice is less than one row, whose length is that of all before it and up to it.
            const bool is_slice = shape.input_rows < 1;
            const double before = is_slice ? length * (1 - shape.input_rows) / 2 : 0.0;
            const double far_pairs = (is_slice ? 1.0 : shape.input_rows) *
                                     (square(std::max(length - before - window, 0.0)) -
                                      square(std::max(before - window, 0.0)));
            const bool is_masked = length > window && !is_slice;
            return {shape.n_rows * shape.row_tokens, 0.0, pairs, pairs, square(length), far_pairs,
                    is_masked ? square(length) : 0.0};
        }
        case TokenSide::targets: {
            const double own = shape.n_rows * shape.target_tokens;
            return {own,
                    shape.n_rows * shape.row_tokens,
                    own * (shape.target_tokens + shape.row_tokens),
                    shape.n_rows * square(shape.target_tokens),
                    square(shape.target_tokens),
                    0.0,
                    0.0};
        }
        case TokenSide::longer:
            break;
    }
    return {shape.n_rows * std::max(shape.row_tokens, shape.target_tokens)};
}

void estimate_costs(std::span<const LayerNeeds> layers, const Rates& rates,
                    const LayersOfStages& stages, std::span<const MicroBatchShape> shapes,
                    std::span<PassCosts> costs) {
    std::vector<Layer> kinds(layers.begin(), layers.end());
    const std::size_t n_kinds = stages.boundaries.size();
    PassCosts* stage = costs.data();
    std::vector<double> sums(n_kinds);
    for (const MicroBatchShape& shape : shapes) {
        std::fill(stage, stage + n_kinds, PassCosts{});
        std::fill(sums.begin(), sums.end(), 0.0);
        const double* count = stages.counts.data();
        for (Layer& layer : kinds) {
            double sum = 0.0;
            const PassCosts one = layer.costs(shape, rates, sum);
            for (std::size_t kind = 0; kind < n_kinds; ++kind, ++count) {
                PassCosts& all = stage[kind];
                all.forward_ms += *count * one.forward_ms;
                all.backward_ms += *count * one.backward_ms;
                all.weight_ms += *count * one.weight_ms;
                all.stored_bytes += *count * one.stored_bytes;
                sums[kind] += *count * sum;
                if (*count > 0) {
                    all.forward_transient_bytes =
                        std::max(all.forward_transient_bytes, one.forward_transient_bytes);
                    all.backward_transient_bytes =
                        std::max(all.backward_transient_bytes, one.backward_transient_bytes);
                }
            }
        }
        for (std::size_t kind = 0; kind < n_kinds; ++kind, ++stage) {
            const Boundary& boundary = stages.boundaries[kind];
            stage->backward_transient_bytes += sums[kind];
            stage->boundary_bytes =
                shape.n_rows * shape.row_tokens * boundary.bytes_per_row_token +
                shape.n_rows * shape.target_tokens * boundary.bytes_per_target_token;
        }
    }
}

}  // namespace dynapipe
