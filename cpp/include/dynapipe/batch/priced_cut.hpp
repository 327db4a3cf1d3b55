#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <vector>

#include "dynapipe/batch/rating.hpp"
#include "dynapipe/batch/window_costs.hpp"
#include "dynapipe/cost/link.hpp"

namespace dynapipe {

/// Prices of memory that are tried, see PricedCutter.
inline constexpr std::array kMemoryPrices = {0.0, 0.25, 0.5, 0.8, 1.5, 4.0, 16.0};

/// Largest number of samples in an end, a window that should pass through the pipeline quickly.
inline constexpr std::size_t kMaxEndSize = 24;

/// Limits by which samples are cut into windows.
struct CutRule {
    double memory_price = 0.0;  ///< see PricedCutter
    /// Greatest work of a window of several samples.
    double longest_ms = std::numeric_limits<double>::infinity();
    /// Greatest fraction of a stage's memory that a window of several samples keeps.
    double most_kept_share = std::numeric_limits<double>::infinity();
    std::optional<std::uint32_t> mode = {};  ///< the only one
};

/// Windows that hold every sample once.
struct Cut {
    std::vector<Window> body;  ///< in the order of the samples; empty if there is no such cut
    std::vector<Window> ends;  ///< small windows of the last samples, to begin and end pipelines
};

/// Cuts samples into the micro-batches that cost least in total at a given memory price.
///
/// The in-flight micro-batches share the memory, so what one of them stores, and for how long, is
/// not available to the others. A price per fraction of a stage's memory (a Lagrange multiplier)
/// turns the limit on all of them together into a cost of each micro-batch alone:
///
///     work_ms * (1 + price * kept_share)
///
/// where work_ms is forward and backward time on the micro-batch's slowest stage. The higher the
/// price, the smaller the micro-batches, or the more they recompute. Only simulation tells which
/// price suits a batch.
class PricedCutter {
  public:
    PricedCutter(const WindowCosts& windows, std::span<const double> limit_bytes, const Link& link);

    /// The same with given ratings.
    ///
    /// @param ratings  per entry of the costs; windows whose work is infinite are not used.
    PricedCutter(const WindowCosts& windows, std::vector<Rating> ratings);

    /// The cheapest cut within the limits of a rule, exactly: dynamic programming over the samples.
    ///
    /// @param n_ends  number of ends: windows of the last samples, each of equally many, at most
    ///                kMaxEndSize. Each enters a pipeline first or last, where all but the slowest
    ///                stage wait for the first micro-batch to arrive and the last one to leave. An
    ///                end costs work_ms + fill_ms / 2 in the mode that is cheapest at the price.
    ///
    /// Time O(n_windows + n_samples * m) for windows of up to m samples.
    Cut cut(const CutRule& rule, std::size_t n_ends);

    /// The cheapest of the windows of the last cut's rule, in the modes that were best for it,
    /// whose fill is less than a limit; there are no ends. Limits since the last `cut` fall.
    Cut cut_below(double fill_ms);

    /// Sets the mode of a window to the one that costs least at a price.
    void choose_mode(Window& window, double price) const;

    [[nodiscard]] std::uint32_t microbatch(const Window& window) const {
        return windows_.microbatch(window);
    }
    /// Forward and backward time on the slowest stage.
    [[nodiscard]] double work_ms(const Window& window) const { return of(window).work_ms; }
    /// Forward and backward time on all other stages, plus transfers between stages.
    [[nodiscard]] double fill_ms(const Window& window) const { return of(window).fill_ms; }

    /// Greatest fraction that it keeps of the memory of a stage.
    [[nodiscard]] double kept_share(const Window& window) const { return of(window).kept_share; }

  private:
    /// A usable micro-batch, and its place in the tables.
    struct Use {
        std::uint32_t place;
        std::uint32_t microbatch;
        std::uint32_t mode;
        bool is_alone;   ///< the only sample of its window
        double work_ms;  ///< of its rating, as are these: side by side, since all are read often
        double kept_share;
    };

    [[nodiscard]] const Rating& of(const Window& window) const {
        return ratings_[microbatch(window)];
    }
    [[nodiscard]] const Rating& of(const Use& use) const { return ratings_[use.microbatch]; }
    void collect_uses();
    void add_uses(std::size_t first);
    [[nodiscard]] std::size_t place(std::size_t first, std::size_t size) const {
        return begin_[static_cast<std::size_t>(windows_.row_of_sample[first])] + size - 1;
    }
    [[nodiscard]] double end_ms(std::size_t first, std::size_t size) const;
    [[nodiscard]] std::size_t best_end_size(std::size_t n_ends) const;
    [[nodiscard]] Window window(std::size_t first, std::size_t size) const;
    [[nodiscard]] std::size_t longest_window(std::size_t first) const;
    void price_windows(const CutRule& rule);
    void find_longest();
    Cut cheapest(std::size_t n_ends);
    void cut_from_front();
    [[nodiscard]] std::vector<Window> body_up_to(std::size_t end) const;

    WindowCosts windows_;
    std::vector<Rating> ratings_;  ///< rating of every micro-batch
    std::vector<Use> uses_;
    std::vector<std::size_t> begin_;    ///< per row, its first place in the tables
    std::vector<double> cost_;          ///< per window by row and size, in the cheapest mode
    std::vector<std::size_t> use_;      ///< for each of these, the index of that use
    std::vector<std::size_t> longest_;  ///< per row, largest number of samples in a window
    std::vector<double> front_;         ///< (n_samples + 1,): least cost of all samples before
};

}  // namespace dynapipe
