#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "dynapipe/simulate.hpp"
#include "dynapipe/window_costs.hpp"

namespace dynapipe {

/// A plan that was built from rules, and by which.
struct ConstructedPlan {
    Assignment replicas;
    double makespan_ms;   ///< of the slowest replica, as the list scheduler runs it
    double memory_price;  ///< at which the samples were cut, see PricedCutter
    double longest_ms;    ///< most work of a micro-batch of several samples; may be infinite
    bool balances_fill;   ///< whether replicas were at first charged with the fill of their longest
    std::size_t n_rebalanced;  ///< times that replicas were balanced anew after a simulation
};

/// Builds plans from rules and keeps the best.
///
/// Samples are cut at several prices of memory, and into windows of equally many. Micro-batches,
/// the longest first, go to the replica that has least to do: by work, by work and the fill of its
/// longest, or by work and what the simulation of the last try showed on top. Each replica begins
/// and ends with a small one, and between them those of least work come first and last, the longest
/// in the middle, so that neighbours are alike. Every plan is simulated. The best are refined: each
/// replica gets the price for its modes, the mode of its longest micro-batch and the shape of its
/// order that suit it best, and the slowest hands micro-batches to the fastest.
///
/// @param n_replicas      >= 1 and at most as many as samples.
/// @param split_backward  whether gradients of weights are passes of their own.
/// @param n_kept          most plans to return, >= 1.
/// @param n_refined       of these, how many are refined once they are found.
/// @return                the best plans, at least one, best first; no replica is empty.
/// @throws std::invalid_argument  if a sample alone has no cell, or does not fit.
std::vector<ConstructedPlan> construct_plans(const WindowCosts& windows,
                                             std::span<const double> limit_bytes, const Link& link,
                                             std::size_t n_replicas, bool split_backward,
                                             std::size_t n_kept, std::size_t n_refined);

}  // namespace dynapipe
