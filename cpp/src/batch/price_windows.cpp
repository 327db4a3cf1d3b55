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
    std::vector<std::int32_t> cells;  ///< row by row: shape by number of bundles
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

    /// Whether a row of the table begins with each bundle; others share the row of the one before,
    /// as all their windows are alike.
    [[nodiscard]] virtual std::vector<bool> begins() const = 0;
    /// Tokens of a window, padding included.
    [[nodiscard]] virtual double tokens(std::int64_t first, std::int64_t size) const = 0;
    [[nodiscard]] virtual MicroBatchShape shape(std::int64_t first, std::int64_t size) const = 0;
    /// Shapes of the windows of more than `least` to most[r] bundles from first[r] on.
    [[nodiscard]] virtual WindowShapes rows(const Numbers& first, std::int64_t least,
                                            const Numbers& most) const = 0;

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
    /// longer, and if all bundles of its windows have as many samples: then all its windows are
    /// like those of the one before.
    [[nodiscard]] std::vector<bool> begins() const override {
        std::vector<bool> begins(samples_.n_bundles(), false);
        begins[0] = true;
        inputs_.mark_changes(begins);
        targets_.mark_changes(begins);
        Numbers next_change(begins.size(), std::numeric_limits<std::int64_t>::max());
        for (std::int64_t i = n_bundles() - 1; i > 0; --i) {
            const bool changes = n_samples(i) != n_samples(i - 1);
            next_change[index(i - 1)] = changes ? i : next_change[index(i)];
        }
        std::int64_t largest = most(0);  // of the row
        for (std::int64_t i = 1; i < n_bundles(); ++i) {
            if (begins[index(i)] || n_samples(i) != n_samples(i - 1) ||
                i + std::max(largest, most(i)) > next_change[index(i)]) {
                begins[index(i)] = true;
                largest = most(i);
            }
        }
        return begins;
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
    [[nodiscard]] WindowShapes rows(const Numbers& first, std::int64_t least,
                                    const Numbers& most) const override {
        WindowShapes windows;
        std::int64_t n_above = 0;  // cells of the row before
        for (std::size_t row = 0; row < first.size(); ++row) {
            const std::size_t above = windows.cells.size() - index(n_above);
            for (std::int64_t size = least + 1; size <= most[row]; ++size) {
                const std::int64_t k = size - least - 1;
                const MicroBatchShape of_window = shape(first[row], size);
                std::int32_t cell = k < n_above ? windows.cells[above + index(k)] : -1;
                if (cell < 0 || windows.shapes.at(static_cast<std::size_t>(cell)) != of_window) {
                    cell = static_cast<std::int32_t>(windows.shapes.size());
                    windows.shapes.push_back(of_window);
                }
                windows.cells.push_back(cell);
            }
            n_above = std::max<std::int64_t>(most[row] - least, 0);
        }
        return windows;
    }

  private:
    [[nodiscard]] std::int64_t n_samples(std::int64_t bundle) const {
        return samples_.begin[index(bundle + 1)] - samples_.begin[index(bundle)];
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
    [[nodiscard]] WindowShapes rows(const Numbers& first, std::int64_t least,
                                    const Numbers& most) const override {
        WindowShapes windows;
        for (std::size_t row = 0; row < first.size(); ++row) {
            for (std::int64_t size = least + 1; size <= most[row]; ++size) {
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

void append(Shapes& all, const Shapes& more) {
    for (auto column :
         {&Shapes::n_rows, &Shapes::row_tokens, &Shapes::target_tokens, &Shapes::input_rows}) {
        (all.*column).insert((all.*column).end(), (more.*column).begin(), (more.*column).end());
    }
}

/// Costs of a large batch in both layouts; memory that is not used costs nothing.
constexpr std::size_t kReserved = 1 << 18;

/// Makes room for more costs in a table that never moves: whoever prices may keep a part of it.
void grow(std::shared_ptr<std::vector<PassCosts>>& table, std::size_t size) {
    if (size > table->capacity()) {
        auto larger = std::make_shared<std::vector<PassCosts>>();
        larger->reserve(std::max(size, 2 * table->capacity()));
        larger->assign(table->begin(), table->end());
        table = std::move(larger);
    }
    table->resize(size);
}

using Span = std::pair<std::int64_t, std::int64_t>;

/// Windows of one layout, looked up in every mode.
class Lookup {
  public:
    Lookup(const Windows& windows, std::size_t layout, const StageRoom& stages, const Price& price)
        : windows_(windows),
          layout_(layout),
          price_(price),
          rooms_(
              least_of_kinds({{}, stages.room_bytes.size(), stages.kind_of_stage, stages.n_kinds},
                             stages.room_bytes)),
          begins_(windows.begins()) {
        for (std::size_t i = 0; i < begins_.size(); ++i) {
            if (begins_[i]) {
                first_.push_back(static_cast<std::int64_t>(i));
                most_.push_back(windows.most(first_.back()));
            }
        }
    }

    [[nodiscard]] const std::vector<bool>& begins() const { return begins_; }

    /// Adds shapes, costs and cells of a mode; returns begin and end of the cells of every row.
    std::vector<Span> add(std::size_t mode, PricedWindows& table) const {
        std::vector<std::vector<std::int32_t>> rows(first_.size());
        Numbers last(first_.size());
        for (std::int64_t least = 0, most = kFirst; find_last(rows, least, most, last);
             least = most, most *= 2) {
            add_sizes(mode, least, last, table, rows);
        }
        std::vector<Span> spans;
        for (const std::vector<std::int32_t>& row : rows) {
            const auto begin = static_cast<std::int64_t>(table.cells.size());
            table.cells.insert(table.cells.end(), row.begin(), row.end());
            spans.emplace_back(begin, static_cast<std::int64_t>(table.cells.size()));
        }
        return spans;
    }

  private:
    /// Bundles of the largest windows that are looked up whether smaller ones fit or not.
    static constexpr std::int64_t kFirst = 8;

    /// Finds the largest window of every row, of at most so many bundles, that is looked up next; 0
    /// if the largest known does not fit. False if that holds for all.
    bool find_last(const std::vector<std::vector<std::int32_t>>& rows, std::int64_t n_known,
                   std::int64_t most, Numbers& last) const {
        for (std::size_t row = 0; row < rows.size(); ++row) {
            const bool goes_on = n_known < most_[row] && rows[row].size() == index(n_known) &&
                                 (n_known == 0 || rows[row].back() >= 0);
            last[row] = goes_on ? std::min(most, most_[row]) : 0;
        }
        return *std::max_element(last.begin(), last.end()) > 0;
    }

    /// Adds the windows of more than `least` to last[r] bundles of every row.
    void add_sizes(std::size_t mode, std::int64_t least, const Numbers& last, PricedWindows& table,
                   std::vector<std::vector<std::int32_t>>& rows) const {
        const WindowShapes windows = windows_.rows(first_, least, last);
        const std::size_t first_cost = table.shapes.size(), n_kinds = rooms_.size();
        grow(table.costs, (first_cost + windows.shapes.size()) * n_kinds);
        price_(layout_, mode, windows.shapes, {table.costs, first_cost * n_kinds});
        append(table.shapes, windows.shapes);
        auto cell = windows.cells.begin();
        for (std::size_t row = 0; row < last.size(); ++row) {
            for (std::int64_t size = least + 1; size <= last[row]; ++size) {
                const std::size_t cost = first_cost + index(*cell++);
                const bool can_run = fits(table.costs->data() + cost * n_kinds);
                rows[row].push_back(can_run ? static_cast<std::int32_t>(cost) : -1);
            }
        }
    }

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

    const Windows& windows_;
    std::size_t layout_;
    const Price& price_;
    std::vector<double> rooms_;  ///< per kind of stage
    std::vector<bool> begins_;
    Numbers first_;  ///< first bundle of every row
    Numbers most_;   ///< bundles of its largest window
};

}  // namespace

PricedWindows price_windows(const OrderedSamples& samples, const std::vector<bool>& is_packed,
                            double most_tokens, std::int64_t token_multiple, const KnownRows& known,
                            const StageRoom& stages, std::size_t n_modes, const Price& price) {
    std::vector<std::unique_ptr<Windows>> windows;
    std::vector<Lookup> lookups;
    for (const bool packed : is_packed) {
        if (packed) {
            windows.push_back(
                std::make_unique<PackedWindows>(samples, token_multiple, most_tokens, known));
        } else {
            windows.push_back(
                std::make_unique<PaddedWindows>(samples, token_multiple, most_tokens));
        }
        lookups.emplace_back(*windows.back(), lookups.size(), stages, price);
    }
    PricedWindows table;
    table.costs = std::make_shared<std::vector<PassCosts>>();
    table.costs->reserve(kReserved);
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
    for (std::size_t layout = 0; layout < lookups.size(); ++layout) {
        for (std::size_t mode = 0; mode < n_modes; ++mode) {
            const std::vector<Span> spans = lookups[layout].add(mode, table);
            for (const std::size_t row : row_of_layouts[layout]) {
                table.spans.push_back(spans[row].first);
                table.spans.push_back(spans[row].second);
            }
        }
    }
    return table;
}

}  // namespace dynapipe
