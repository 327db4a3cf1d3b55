#include "dynapipe/batch/price_windows.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <memory>
#include <numeric>
#include <utility>

namespace dynapipe {
namespace {

using Numbers = std::vector<std::int64_t>;

std::size_t index(std::int64_t number) { return static_cast<std::size_t>(number); }

double needed_bytes(const PassCosts& cost) {
    return cost.stored_bytes +
           std::max(cost.forward_transient_bytes, cost.backward_transient_bytes);
}

std::int64_t padded(std::int64_t tokens, std::int64_t multiple) {
    return (tokens + multiple - 1) / multiple * multiple;
}

/// The shapes of windows, in one row per first bundle.
struct WindowShapes {
    std::vector<std::int32_t> cells;  ///< row by row: shape by number of bundles, from 1
    Shapes shapes;
};

/// Windows of bundles in one layout, by their first bundle and their number of bundles.
class Windows {
  public:
    Windows(const OrderedSamples& samples, double most_tokens)
        : samples_(samples), most_tokens_(most_tokens) {}
    Windows(const Windows&) = delete;
    Windows& operator=(const Windows&) = delete;
    virtual ~Windows() = default;

    /// Whether a row of the table begins with each bundle, as far as lengths tell; others share the
    /// row of the one before, as all their windows are alike.
    [[nodiscard]] virtual std::vector<bool> begins() const = 0;
    /// The same where windows of row r, of up to reach[r] bundles, must have as many samples, too.
    [[nodiscard]] virtual std::vector<bool> begins_within(const std::vector<bool>& begins,
                                                          const Numbers& reach) const = 0;
    /// Tokens of a window, padding included.
    [[nodiscard]] virtual double tokens(std::int64_t first, std::int64_t size) const = 0;
    [[nodiscard]] virtual MicroBatchShape shape(std::int64_t first, std::int64_t size) const = 0;
    /// Shapes of the windows of 1 to most[r] bundles from first[r] on.
    [[nodiscard]] virtual WindowShapes rows(const Numbers& first, const Numbers& most) const = 0;

    /// The most bundles from a bundle on that together have no more tokens than the limit, at least
    /// one.
    [[nodiscard]] std::int64_t most(std::int64_t first) const {
        std::int64_t most = 1, least_wrong = n_bundles() - first + 1;
        while (most + 1 < least_wrong) {
            const std::int64_t size = (most + least_wrong) / 2;
            if (tokens(first, size) <= most_tokens_) {
                most = size;
            } else {
                least_wrong = size;
            }
        }
        return most;
    }

  protected:
    [[nodiscard]] std::int64_t n_bundles() const {
        return static_cast<std::int64_t>(samples_.n_bundles());
    }
    const OrderedSamples& samples_;

  private:
    double most_tokens_;
};

/// Lengths of bundles on one side: those of their longest samples.
class Side {
  public:
    Side(std::span<const std::int64_t> tokens, const OrderedSamples& samples, std::int64_t multiple)
        : longest_(1) {
        for (std::size_t bundle = 0; bundle < samples.n_bundles(); ++bundle) {
            longest_[0].push_back(
                padded(*std::max_element(tokens.begin() + samples.begin[bundle],
                                         tokens.begin() + samples.begin[bundle + 1]),
                       multiple));
        }
        for (std::size_t half = 1; 2 * half <= longest_[0].size(); half *= 2) {
            const Numbers& of_half = longest_.back();
            Numbers of_whole(of_half.size() - half);
            for (std::size_t i = 0; i < of_whole.size(); ++i) {
                of_whole[i] = std::max(of_half[i], of_half[i + half]);
            }
            longest_.push_back(std::move(of_whole));
        }
    }

    [[nodiscard]] const Numbers& tokens() const { return longest_.front(); }

    /// Of the bundles of a window: two of the next smaller power of two cover them.
    [[nodiscard]] std::int64_t longest(std::size_t first, std::size_t size) const {
        const auto power = static_cast<std::size_t>(std::bit_width(size) - 1);
        return std::max(longest_[power][first],
                        longest_[power][first + size - (std::size_t{1} << power)]);
    }

    /// Marks bundles that are longer or shorter than the one before, or than which a later one is
    /// longer.
    void mark_changes(std::vector<bool>& changes) const {
        std::int64_t longest_later = 0;
        for (std::size_t i = tokens().size(); i-- > 1;) {
            longest_later = std::max(longest_later, tokens()[i]);
            if (tokens()[i] != tokens()[i - 1] || tokens()[i] != longest_later) {
                changes[i] = true;
            }
        }
    }

  private:
    std::vector<Numbers> longest_;  ///< of 1, 2, 4, ... bundles from each on
};

/// As many rows as samples, as long as the longest.
class PaddedWindows final : public Windows {
  public:
    PaddedWindows(const OrderedSamples& samples, std::int64_t multiple, double most_tokens)
        : Windows(samples, most_tokens),
          inputs_(samples.inputs, samples, multiple),
          targets_(samples.targets, samples, multiple) {}

    /// A bundle needs no row of its own if it is as long as the one before it and none after it is
    /// longer: then all its windows are like those of the one before.
    [[nodiscard]] std::vector<bool> begins() const override {
        std::vector<bool> begins(samples_.n_bundles(), false);
        begins[0] = true;
        inputs_.mark_changes(begins);
        targets_.mark_changes(begins);
        return begins;
    }

    [[nodiscard]] std::vector<bool> begins_within(const std::vector<bool>& begins,
                                                  const Numbers& reach) const override {
        std::vector<bool> within = begins;
        Numbers next_change(begins.size(), std::numeric_limits<std::int64_t>::max());
        for (std::size_t i = begins.size() - 1; i-- > 0;) {
            const bool changes = n_samples(i + 1) != n_samples(i);
            next_change[i] = changes ? static_cast<std::int64_t>(i + 1) : next_change[i + 1];
        }
        std::size_t row = 0, first = 0;
        for (std::size_t i = 1; i < begins.size(); ++i) {
            if (begins[i]) {
                ++row;
                first = i;
            }
            if (static_cast<std::int64_t>(i) + reach[row] > next_change[first]) {
                within[i] = true;
            }
        }
        return within;
    }

    [[nodiscard]] double tokens(std::int64_t first, std::int64_t size) const override {
        const MicroBatchShape window = shape(first, size);
        return window.n_rows * (window.row_tokens + window.target_tokens);
    }

    [[nodiscard]] MicroBatchShape shape(std::int64_t first, std::int64_t size) const override {
        const auto n_rows =
            static_cast<double>(samples_.begin[index(first + size)] - samples_.begin[index(first)]);
        return {n_rows, static_cast<double>(inputs_.longest(index(first), index(size))),
                static_cast<double>(targets_.longest(index(first), index(size))), n_rows};
    }

    /// A window shares the shape of the equally large one in the row before if the two are equal,
    /// as most are where neighbours are similar.
    [[nodiscard]] WindowShapes rows(const Numbers& first, const Numbers& most) const override {
        WindowShapes windows;
        std::size_t n_above = 0;  // cells of the row before
        for (std::size_t row = 0; row < first.size(); ++row) {
            const std::size_t above = windows.cells.size() - n_above;
            for (std::size_t k = 0; k < index(most[row]); ++k) {
                const auto size = static_cast<std::int64_t>(k + 1);
                const MicroBatchShape of_window = shape(first[row], size);
                std::int32_t cell = k < n_above ? windows.cells[above + k] : -1;
                if (cell < 0 || windows.shapes.at(static_cast<std::size_t>(cell)) != of_window) {
                    cell = static_cast<std::int32_t>(windows.shapes.size());
                    windows.shapes.push_back(of_window);
                }
                windows.cells.push_back(cell);
            }
            n_above = index(most[row]);
        }
        return windows;
    }

  private:
    [[nodiscard]] std::int64_t n_samples(std::size_t bundle) const {
        return samples_.begin[bundle + 1] - samples_.begin[bundle];
    }

    Side inputs_;
    Side targets_;
};

/// One row, or one of inputs and one of targets: tokens and pairs of a window are sums.
class PackedWindows final : public Windows {
  public:
    PackedWindows(const OrderedSamples& samples, std::int64_t multiple, double most_tokens,
                  const KnownRows& known)
        : Windows(samples, most_tokens), multiple_(multiple), known_(known) {
        SampleSums sums;
        std::size_t sample = 0;
        for (const std::int64_t end : samples.begin) {
            for (; sample < index(end); ++sample) {
                const std::int64_t both = samples.inputs[sample] + samples.targets[sample];
                sums.n_documents += samples.n_documents[sample];
                sums.inputs += samples.inputs[sample];
                sums.input_pairs += samples.pairs[sample];
                sums.targets += samples.targets[sample];
                sums.target_pairs += samples.targets[sample] * both;
            }
            before_.push_back(sums);
        }
    }

    /// Everywhere: sums differ.
    [[nodiscard]] std::vector<bool> begins() const override {
        return std::vector<bool>(samples_.n_bundles(), true);
    }

    [[nodiscard]] std::vector<bool> begins_within(const std::vector<bool>& begins,
                                                  const Numbers&) const override {
        return begins;
    }

    [[nodiscard]] double tokens(std::int64_t first, std::int64_t size) const override {
        const SampleSums& begin = before_[index(first)];
        const SampleSums& end = before_[index(first + size)];
        return static_cast<double>(end.inputs - begin.inputs + end.targets - begin.targets);
    }

    [[nodiscard]] MicroBatchShape shape(std::int64_t first, std::int64_t size) const override {
        const SampleSums& begin = before_[index(first)];
        const SampleSums& end = before_[index(first + size)];
        const SampleSums sums{end.n_documents - begin.n_documents, end.inputs - begin.inputs,
                              end.input_pairs - begin.input_pairs, end.targets - begin.targets,
                              end.target_pairs - begin.target_pairs};
        return equal_rows(padded(sums.inputs, multiple_), padded(sums.targets, multiple_), sums,
                          known_);
    }

    /// A shape per window, as hardly any two are alike.
    [[nodiscard]] WindowShapes rows(const Numbers& first, const Numbers& most) const override {
        WindowShapes windows;
        for (std::size_t row = 0; row < first.size(); ++row) {
            for (std::int64_t size = 1; size <= most[row]; ++size) {
                windows.shapes.push_back(shape(first[row], size));
            }
        }
        windows.cells.resize(windows.shapes.size());
        std::iota(windows.cells.begin(), windows.cells.end(), 0);
        return windows;
    }

  private:
    std::int64_t multiple_;
    KnownRows known_;
    std::vector<SampleSums> before_;  ///< of all samples before each bundle, and of all
};

/// Numbers of bundles of the windows of a mode, (n_rows,) each.
struct Extent {
    Numbers largest;  ///< largest of the windows of 1, 2, 4, ... that fits; 0 if none does
    Numbers most;     ///< up to which windows are looked up
};

/// Windows of one layout, looked up in every mode.
class Lookup {
  public:
    Lookup(const Windows& windows, std::size_t layout, const StageRoom& stages, std::size_t n_modes,
           const Price& price)
        : windows_(windows),
          layout_(layout),
          stages_(stages),
          n_modes_(n_modes),
          price_(price),
          rooms_(
              least_of_kinds({{}, stages.room_bytes.size(), stages.kind_of_stage, stages.n_kinds},
                             stages.room_bytes)),
          begins_(windows.begins()) {
        find_extents();
        Numbers reach(first_.size(), 0);
        for (const Extent& extent : extents_) {
            for (std::size_t row = 0; row < reach.size(); ++row) {
                reach[row] = std::max(reach[row], extent.most[row]);
            }
        }
        std::vector<bool> within = windows.begins_within(begins_, reach);
        if (within != begins_) {
            begins_ = std::move(within);
            find_extents();
        }
        for (const Extent& extent : extents_) {
            of_modes_.push_back(windows_.rows(first_, extent.most));
        }
    }

    [[nodiscard]] const std::vector<bool>& begins() const { return begins_; }

    [[nodiscard]] std::size_t n_shapes() const {
        return std::accumulate(of_modes_.begin(), of_modes_.end(), std::size_t{0},
                               [](std::size_t sum, const WindowShapes& windows) {
                                   return sum + windows.shapes.size();
                               });
    }

    /// Writes costs, (n_shapes, n_kinds), mode by mode.
    void price_all(CostBlock costs) const {
        for (std::size_t mode = 0; mode < n_modes_; ++mode) {
            price_(layout_, mode, of_modes_[mode].shapes, costs);
            costs.first += of_modes_[mode].shapes.size() * stages_.n_kinds;
        }
    }

    /// Adds the cells of a mode, and begin and end of those of every row.
    void add_cells(std::size_t mode, std::size_t first_cost, PricedWindows& table,
                   std::vector<std::pair<std::int64_t, std::int64_t>>& spans) const {
        const Extent& extent = extents_[mode];
        std::size_t place = 0;
        for (std::size_t row = 0; row < first_.size(); ++row) {
            const auto n = index(extent.most[row]);
            const auto begin = static_cast<std::int64_t>(table.cells.size());
            bool is_behind = false;  // a window beyond `largest` that does not fit
            for (std::size_t k = 0; k < n; ++k) {
                const std::size_t cost = first_cost + index(of_modes_[mode].cells[place++]);
                const bool can_run = fits(&(*table.costs)[cost * stages_.n_kinds]);
                is_behind = is_behind || (!can_run && k >= index(extent.largest[row]));
                const bool is_used = can_run && !is_behind;
                table.cells.push_back(is_used ? static_cast<std::int32_t>(cost) : -1);
            }
            spans.emplace_back(begin, begin + static_cast<std::int64_t>(n));
        }
    }

    [[nodiscard]] const Shapes& shapes(std::size_t mode) const { return of_modes_[mode].shapes; }

  private:
    /// Costs of shapes, whether each fits, and the memory that it needs on stages of every kind.
    struct Tried {
        std::vector<bool> fits;
        std::vector<double> needed_bytes;
    };

    /// Whether a micro-batch alone can run on stages of every kind, by their costs.
    [[nodiscard]] bool fits(const PassCosts* costs) const {
        for (std::size_t kind = 0; kind < rooms_.size(); ++kind) {
            const bool is_known = std::isfinite(costs[kind].forward_ms + costs[kind].backward_ms);
            if (!is_known || !(needed_bytes(costs[kind]) <= rooms_[kind])) {
                return false;
            }
        }
        return true;
    }

    [[nodiscard]] Tried tried(const Shapes& shapes, std::size_t mode) const {
        const auto table =
            std::make_shared<std::vector<PassCosts>>(shapes.size() * stages_.n_kinds);
        price_(layout_, mode, shapes, {table, 0});
        const std::vector<PassCosts>& costs = *table;
        Tried tried;
        for (std::size_t i = 0; i < shapes.size(); ++i) {
            tried.fits.push_back(fits(&costs[i * stages_.n_kinds]));
        }
        for (const PassCosts& cost : costs) {
            tried.needed_bytes.push_back(needed_bytes(cost));
        }
        return tried;
    }

    void find_extents() {
        first_.clear();
        for (std::size_t i = 0; i < begins_.size(); ++i) {
            if (begins_[i]) {
                first_.push_back(static_cast<std::int64_t>(i));
            }
        }
        const std::size_t n_rows = first_.size();
        Numbers most(n_rows);
        std::transform(first_.begin(), first_.end(), most.begin(),
                       [this](std::int64_t first) { return windows_.most(first); });
        const std::int64_t largest = *std::max_element(most.begin(), most.end());
        Numbers sizes;  // 1, 2, 4, ... of every row, or the most
        Shapes shapes;
        std::size_t n_sizes = 0;
        for (std::int64_t size = 1; n_sizes == 0 || size < 2 * largest; size *= 2, ++n_sizes) {
            for (std::size_t row = 0; row < n_rows; ++row) {
                sizes.push_back(std::min(size, most[row]));
                shapes.push_back(windows_.shape(first_[row], sizes.back()));
            }
        }
        extents_.clear();
        for (std::size_t mode = 0; mode < n_modes_; ++mode) {
            extents_.push_back(extent(sizes, tried(shapes, mode), n_sizes, mode));
        }
    }

    [[nodiscard]] Extent extent(const Numbers& sizes, const Tried& known, std::size_t n_sizes,
                                std::size_t mode) const {
        const std::size_t n_rows = first_.size();
        Extent extent{Numbers(n_rows), Numbers(n_rows)};
        std::vector<bool> reaches_end(n_rows);
        Numbers next(n_rows);
        Shapes shapes;
        for (std::size_t row = 0; row < n_rows; ++row) {
            std::size_t n_fitting = n_sizes;
            while (n_fitting > 0 && !known.fits[(n_fitting - 1) * n_rows + row]) {
                --n_fitting;
            }
            const std::size_t low = (n_fitting == 0 ? 0 : n_fitting - 1) * n_rows + row;
            const std::size_t high = std::min(n_fitting, n_sizes - 1) * n_rows + row;
            const double share = share_of_room(known.needed_bytes, low, high);
            const std::int64_t more = sizes[high] - sizes[low];
            const auto steps = static_cast<std::int64_t>(share * static_cast<double>(more));
            next[row] = std::min(sizes[low] + steps + 1, sizes[high]);
            shapes.push_back(windows_.shape(first_[row], next[row]));
            reaches_end[row] = n_fitting == n_sizes;
            extent.largest[row] = n_fitting == 0 ? 0 : sizes[low];
            extent.most[row] = n_fitting == 0 ? 0 : sizes[high];
        }
        const Tried tried = this->tried(shapes, mode);
        for (std::size_t row = 0; row < n_rows; ++row) {
            if (extent.most[row] > 0 && !reaches_end[row] && !tried.fits[row]) {
                extent.most[row] = next[row] - 1;
            }
        }
        return extent;
    }

    /// At which share of the way from one window to a larger one the memory of a stage is full, if
    /// it is on that way; else 1.
    [[nodiscard]] double share_of_room(const std::vector<double>& needed_bytes, std::size_t low,
                                       std::size_t high) const {
        double least = std::numeric_limits<double>::infinity();
        for (std::size_t kind = 0; kind < rooms_.size(); ++kind) {
            const double before = needed_bytes[low * rooms_.size() + kind];
            const double after = needed_bytes[high * rooms_.size() + kind];
            const double share = (rooms_[kind] - before) / (after - before);
            if (std::isnan(share)) {
                return 1.0;
            }
            least = std::min(least, share);
        }
        return least >= 0 && least < 1 ? least : 1.0;
    }

    const Windows& windows_;
    std::size_t layout_;
    const StageRoom& stages_;
    std::size_t n_modes_;
    const Price& price_;
    std::vector<double> rooms_;  ///< per kind of stage
    std::vector<bool> begins_;
    Numbers first_;                       ///< first bundle of every row
    std::vector<Extent> extents_;         ///< per mode
    std::vector<WindowShapes> of_modes_;  ///< all windows up to the extent
};

void append(Shapes& all, const Shapes& more) {
    for (auto column :
         {&Shapes::n_rows, &Shapes::row_tokens, &Shapes::target_tokens, &Shapes::input_rows}) {
        (all.*column).insert((all.*column).end(), (more.*column).begin(), (more.*column).end());
    }
}

}  // namespace

PricedWindows price_windows(const OrderedSamples& samples, const std::vector<bool>& is_packed,
                            double most_tokens, std::int64_t token_multiple, const KnownRows& known,
                            const StageRoom& stages, std::size_t n_modes, const Price& price) {
    std::vector<std::unique_ptr<Windows>> windows;
    std::vector<Lookup> lookups;
    std::size_t n_costs = 0;
    for (const bool packed : is_packed) {
        if (packed) {
            windows.push_back(
                std::make_unique<PackedWindows>(samples, token_multiple, most_tokens, known));
        } else {
            windows.push_back(
                std::make_unique<PaddedWindows>(samples, token_multiple, most_tokens));
        }
        lookups.emplace_back(*windows.back(), lookups.size(), stages, n_modes, price);
        n_costs += lookups.back().n_shapes();
    }
    PricedWindows table;
    table.costs = std::make_shared<std::vector<PassCosts>>(n_costs * stages.n_kinds);
    std::size_t n_priced = 0;
    for (const Lookup& lookup : lookups) {
        lookup.price_all({table.costs, n_priced * stages.n_kinds});
        n_priced += lookup.n_shapes();
    }
    // A row of the table for the bundles that share one in every layout.
    std::vector<std::vector<std::size_t>> row_of_layouts(lookups.size());
    std::vector<std::size_t> rows(lookups.size(), 0);
    for (std::size_t bundle = 0; bundle < samples.n_bundles(); ++bundle) {
        bool begins = false;
        for (std::size_t layout = 0; layout < lookups.size(); ++layout) {
            begins = begins || lookups[layout].begins()[bundle];
            rows[layout] += bundle > 0 && lookups[layout].begins()[bundle] ? 1 : 0;
        }
        if (begins) {
            for (std::size_t layout = 0; layout < lookups.size(); ++layout) {
                row_of_layouts[layout].push_back(rows[layout]);
            }
        }
        table.row_of_bundle.push_back(static_cast<std::int32_t>(row_of_layouts[0].size()) - 1);
    }
    std::size_t first_cost = 0;
    for (std::size_t layout = 0; layout < lookups.size(); ++layout) {
        for (std::size_t mode = 0; mode < n_modes; ++mode) {
            std::vector<std::pair<std::int64_t, std::int64_t>> spans;
            lookups[layout].add_cells(mode, first_cost, table, spans);
            for (const std::size_t row : row_of_layouts[layout]) {
                table.spans.push_back(spans[row].first);
                table.spans.push_back(spans[row].second);
            }
            append(table.shapes, lookups[layout].shapes(mode));
            first_cost += lookups[layout].shapes(mode).size();
        }
    }
    return table;
}

}  // namespace dynapipe
