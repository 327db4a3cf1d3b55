/// Cuts at a price cost as little as the cheapest of all cuts that there are.
#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <utility>
#include <vector>

#include "check.hpp"
#include "dynapipe/pipeline_ends.hpp"
#include "dynapipe/priced_cut.hpp"
#include "dynapipe/random.hpp"
#include "dynapipe/window_shapes.hpp"

namespace {

using dynapipe::Cut;
using dynapipe::kMostOfAnEnd;
using dynapipe::PassCosts;
using dynapipe::Window;

constexpr double kNever = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr dynapipe::Link kLink{0.25, 40.0, true};

/// Sorted samples, of two lengths each if there is a decoder, and what their windows cost.
struct Problem {
    std::size_t n_modes = 3;
    double launch_ms;
    std::vector<double> limit_bytes;
    std::vector<PassCosts> costs;
    std::vector<std::int32_t> cells;
    std::vector<std::int32_t> row_of_sample;
    std::vector<std::int64_t> spans;

    Problem(std::size_t n_samples, std::size_t n_stages, bool has_decoder, double limit,
            dynapipe::Random& random)
        : launch_ms(n_samples < 10 ? 1 : 40) {  // so that long windows pay where they fit
        std::vector<std::pair<std::int64_t, std::int64_t>> samples(n_samples);
        for (auto& [input, target] : samples) {
            input = static_cast<std::int64_t>(8 * (1 + random.below(6)));
            target = has_decoder ? static_cast<std::int64_t>(8 * (1 + random.below(3))) : 0;
        }
        std::sort(samples.rbegin(), samples.rend());
        limit_bytes.assign(n_stages, limit);
        limit_bytes.back() *= 0.8;
        look_up(samples, random);
    }

    /// Sorted samples of one length begin the same windows, unless targets grow later.
    void look_up(const std::vector<std::pair<std::int64_t, std::int64_t>>& samples,
                 dynapipe::Random& random) {
        std::vector<std::int64_t> input, target, begin{0}, first, most;
        for (std::size_t i = 0; i < samples.size(); ++i) {
            input.push_back(samples[i].first);
            target.push_back(samples[i].second);
            begin.push_back(static_cast<std::int64_t>(i + 1));
            if (i == 0 || samples[i] != samples[i - 1] || samples[i].second > 0) {
                first.push_back(static_cast<std::int64_t>(i));
                most.push_back(static_cast<std::int64_t>(samples.size() - i));
            }
            row_of_sample.push_back(static_cast<std::int32_t>(first.size()) - 1);
        }
        const auto found = dynapipe::window_shapes(input, target, begin, first, most);
        const std::size_t n_shapes = found.shapes.n_rows.size();
        for (std::size_t mode = 0; mode < n_modes; ++mode) {
            auto end = static_cast<std::int64_t>(cells.size());
            for (const std::int64_t n_cells : most) {
                spans.push_back(end);
                spans.push_back(end += n_cells);
            }
            for (const std::int32_t shape : found.cells) {
                const auto cell = static_cast<std::int32_t>(mode * n_shapes) + shape;
                cells.push_back(random.below(16) == 0 ? -1 : cell);
            }
            for (std::size_t i = 0; i < n_shapes; ++i) {
                add_costs(found.shapes, i, static_cast<double>(mode), random);
            }
        }
        std::replace_if(cells.begin(), cells.end(), [&](std::int32_t c) { return !fits(c); }, -1);
    }

    /// Every mode takes longer and keeps less than the one before, but for noise.
    void add_costs(const dynapipe::Shapes& shapes, std::size_t i, double mode,
                   dynapipe::Random& random) {
        const auto rows = static_cast<double>(shapes.n_rows[i]);
        const double tokens =
            rows * static_cast<double>(shapes.row_tokens[i] + shapes.target_tokens[i]);
        for (std::size_t stage = 0; stage < limit_bytes.size(); ++stage) {
            const double ms = launch_ms + tokens * (0.5 + random.share()) / 16;
            const double stored = mode == 2 ? 0 : tokens * (0.5 + random.share()) / (1 + 3 * mode);
            costs.push_back({ms, (2 + mode / 2) * ms, ms, tokens, stored, tokens / 8, tokens / 4});
        }
    }

    [[nodiscard]] bool fits(std::int32_t cell) const {
        for (std::size_t stage = 0; cell >= 0 && stage < limit_bytes.size(); ++stage) {
            const PassCosts& cost =
                costs[static_cast<std::size_t>(cell) * limit_bytes.size() + stage];
            if (cost.stored_bytes + cost.backward_transient_bytes > limit_bytes[stage]) {
                return false;
            }
        }
        return true;
    }

    [[nodiscard]] dynapipe::WindowCosts windows() const {
        return {{costs, limit_bytes.size()}, cells, spans, row_of_sample, n_modes};
    }
};

/// What the header says of windows and cuts.
struct Prices {
    const Problem& problem;
    double price;
    double longest_ms;

    /// At the price; infinite if the window may not be used.
    [[nodiscard]] double body_ms(const Window& window) const {
        const std::int32_t cell = problem.windows().cell(window.first, window.size, window.mode);
        if (cell < 0 || (window.size > 1 && work_ms(cell) > longest_ms)) {
            return kNever;
        }
        double share = 0;
        for (std::size_t s = 0; s < problem.limit_bytes.size(); ++s) {
            share = std::max(share, at(cell, s).stored_bytes / problem.limit_bytes[s]);
        }
        return work_ms(cell) * (1 + price * share);
    }

    /// With half of the fill, in the mode that is best at the price.
    [[nodiscard]] double end_ms(const Window& window) const {
        if (window.size > kMostOfAnEnd || body_ms(window) != body_ms(best_mode(window)) ||
            body_ms(window) == kNever) {
            return kNever;
        }
        const std::int32_t cell = problem.windows().cell(window.first, window.size, window.mode);
        double way_ms = 0;
        for (std::size_t s = 0; s < problem.limit_bytes.size(); ++s) {
            way_ms += at(cell, s).forward_ms + at(cell, s).backward_ms;
            if (s + 1 < problem.limit_bytes.size()) {
                way_ms += 2 * (kLink.latency_ms + at(cell, s).boundary_bytes / kLink.bytes_per_ms);
            }
        }
        return work_ms(cell) + (way_ms - work_ms(cell)) / 2;
    }

    [[nodiscard]] Window best_mode(Window window) const {
        Window best = window;
        for (window.mode = 0; window.mode < problem.n_modes; ++window.mode) {
            best = body_ms(window) < body_ms(best) ? window : best;
        }
        return best;
    }

    [[nodiscard]] double work_ms(std::int32_t cell) const {
        double slowest_ms = 0;
        for (std::size_t s = 0; s < problem.limit_bytes.size(); ++s) {
            slowest_ms = std::max(slowest_ms, at(cell, s).forward_ms + at(cell, s).backward_ms);
        }
        return slowest_ms;
    }

    [[nodiscard]] const PassCosts& at(std::int32_t cell, std::size_t stage) const {
        return problem.costs[static_cast<std::size_t>(cell) * problem.limit_bytes.size() + stage];
    }

    [[nodiscard]] double cut_ms(const Cut& cut) const {
        double sum_ms = 0;
        for (const Window& window : cut.body) {
            sum_ms += body_ms(window);
        }
        for (const Window& window : cut.ends) {
            sum_ms += end_ms(window);
        }
        return sum_ms;
    }
};

/// The windows between the samples behind which a bit of `borders` is set.
Cut every_window_best(const Prices& prices, std::size_t n_samples, unsigned borders,
                      std::size_t n_ends) {
    std::vector<Window> windows;
    for (std::uint32_t first = 0, i = 0; i < n_samples; ++i) {
        if (i + 1 == n_samples || (borders >> i & 1U) != 0) {
            windows.push_back(prices.best_mode({first, i + 1 - first, 0}));
            first = i + 1;
        }
    }
    const std::size_t n_body = windows.size() - std::min(n_ends, windows.size());
    const auto border = windows.begin() + static_cast<std::ptrdiff_t>(n_body);
    return {{windows.begin(), border}, {border, windows.end()}};
}

double least_of_every_cut(const Prices& prices, std::size_t n_samples, std::size_t n_ends) {
    double least_ms = kNever;
    for (unsigned borders = 0; borders < 1U << (n_samples - 1); ++borders) {
        const Cut cut = every_window_best(prices, n_samples, borders, n_ends);
        if (cut.ends.size() == n_ends) {
            least_ms = std::min(least_ms, prices.cut_ms(cut));
        }
    }
    return least_ms;
}

/// The same with every mode of every window: all cuts that there are, window by window.
double least_of_every_cut_and_mode(const Prices& prices, std::uint32_t first, std::size_t n_samples,
                                   std::size_t n_ends, Cut& windows) {
    if (first == n_samples) {
        return windows.ends.size() == n_ends ? prices.cut_ms(windows) : kNever;
    }
    double least_ms = kNever;
    for (std::uint32_t size = 1; first + size <= n_samples; ++size) {
        for (std::uint32_t mode = 0; mode < prices.problem.n_modes; ++mode) {
            for (std::vector<Window>* part : {&windows.body, &windows.ends}) {
                if (part == &windows.body && !windows.ends.empty()) {
                    continue;
                }
                part->push_back({first, size, mode});
                least_ms = std::min(
                    least_ms,
                    least_of_every_cut_and_mode(prices, first + size, n_samples, n_ends, windows));
                part->pop_back();
            }
        }
    }
    return least_ms;
}

/// What the samples from one on cost, given what those behind its window cost.
template <typename WindowMs>
double least_of_windows(const Prices& prices, std::uint32_t first,
                        const std::vector<double>& rest_ms, const WindowMs& window_ms) {
    double least_ms = kNever;
    for (std::uint32_t size = 1; first + size < rest_ms.size(); ++size) {
        const Window window = prices.best_mode({first, size, 0});
        least_ms = std::min(least_ms, window_ms(window) + rest_ms[first + size]);
    }
    return least_ms;
}

/// The same, sample by sample from the last: for more samples than one can enumerate.
double least_by_recurrence(const Prices& prices, std::size_t n_samples, std::size_t n_ends) {
    std::vector<double> rest_ms(n_samples + 1, kNever);
    rest_ms.back() = 0;
    for (std::size_t end = 0; end < n_ends; ++end) {
        for (std::uint32_t i = 0; i <= n_samples; ++i) {
            rest_ms[i] = least_of_windows(prices, i, rest_ms,
                                          [&](const Window& w) { return prices.end_ms(w); });
        }
    }
    for (auto i = static_cast<std::uint32_t>(n_samples); i-- > 0;) {
        const double ms = least_of_windows(prices, i, rest_ms,
                                           [&](const Window& w) { return prices.body_ms(w); });
        rest_ms[i] = std::min(rest_ms[i], ms);
    }
    return rest_ms.front();
}

bool holds_samples_in_order(const Cut& cut, std::size_t n_samples) {
    std::size_t next = 0;
    for (const auto& windows : {cut.body, cut.ends}) {
        for (const Window& window : windows) {
            if (window.first != next || window.size == 0) {
                return false;
            }
            next += window.size;
        }
    }
    return next == n_samples;
}

/// Returns whether there is a cut.
bool check_cut(dynapipe::PricedCutter& cutter, const Prices& prices, std::size_t n_ends) {
    const std::size_t n_samples = prices.problem.row_of_sample.size();
    const double least_ms = least_by_recurrence(prices, n_samples, n_ends);
    if (n_samples < 10) {
        const double found_ms = least_of_every_cut(prices, n_samples, n_ends);
        CHECK(found_ms == least_ms || std::abs(found_ms - least_ms) <= 1e-12 * least_ms);
    }
    if (n_samples < 6) {
        Cut none;
        const double found_ms = least_of_every_cut_and_mode(prices, 0, n_samples, n_ends, none);
        CHECK(found_ms == least_ms || std::abs(found_ms - least_ms) <= 1e-12 * least_ms);
    }
    const Cut found = cutter.cut(prices.price, prices.longest_ms, n_ends);
    if (least_ms == kNever) {
        CHECK(found.body.empty() && found.ends.empty());
        return false;
    }
    CHECK(holds_samples_in_order(found, n_samples));
    CHECK(found.ends.size() == n_ends);
    CHECK(std::abs(prices.cut_ms(found) - least_ms) <= 1e-12 * least_ms);
    for (Window window : found.body) {
        const double cost_ms = prices.body_ms(window);
        cutter.choose_mode(window, prices.price);
        CHECK(prices.body_ms(window) == cost_ms || prices.longest_ms < kNever);
    }
    return true;
}

/// One cutter for all questions, as where it is used: no cut changes a later one.
void cuts_cost_least() {
    dynapipe::Random random(1);
    std::size_t n_found = 0;
    std::size_t n_checked = 0;
    for (int i = 0; i < 60; ++i) {
        const double limit = std::vector{60.0, 150.0, 1000.0, kNever}[random.below(4)];
        const std::size_t n_samples = i % 6 < 2 ? 30 + random.below(40) : 1 + random.below(9);
        const Problem problem(n_samples, 1 + random.below(3), i % 2 == 1, limit, random);
        dynapipe::PricedCutter cutter(problem.windows(), problem.limit_bytes, kLink);
        for (const double price : {0.0, 0.3, 1.0, 3.0, 100.0, 0.0}) {
            for (const double longest_ms : {kNever, 40 * problem.launch_ms}) {
                for (const std::size_t n_ends : {0U, 2U, 4U}) {
                    ++n_checked;
                    n_found += check_cut(cutter, {problem, price, longest_ms}, n_ends) ? 1 : 0;
                }
            }
        }
    }
    CHECK(n_found > n_checked / 2 && n_found < n_checked);
}

/// What is no number makes windows unusable, or is refused; it never makes a cut hang.
void costs_may_be_no_numbers() {
    dynapipe::Random random(2);
    for (int i = 0; i < 200; ++i) {
        Problem problem(10 + random.below(20), 1 + random.below(3), i % 2 == 1, 1000.0, random);
        for (std::size_t n = random.below(20); n > 0; --n) {
            PassCosts& cost = problem.costs[random.below(problem.costs.size())];
            const double wrong = random.below(2) == 0 ? kNever : kNaN;
            (random.below(2) == 0 ? cost.forward_ms : cost.stored_bytes) = wrong;
        }
        problem.limit_bytes[0] = std::vector{0.0, kNever, kNaN, 1000.0}[random.below(4)];
        const dynapipe::Link link{random.below(4) == 0 ? kNaN : 0.25, 40.0, true};
        dynapipe::PricedCutter cutter(problem.windows(), problem.limit_bytes, link);
        try {
            const Cut found = cutter.cut(std::vector{0.0, 1.0, kNever, kNaN}[random.below(4)],
                                         random.below(2) == 0 ? kNever : kNaN, random.below(5));
            CHECK((found.body.empty() && found.ends.empty()) ||
                  holds_samples_in_order(found, problem.row_of_sample.size()));
        } catch (const std::invalid_argument&) {
        }
    }
}

/// Windows that all cost the same: the fewest are best, if an end could hold them.
void an_end_is_short() {
    constexpr std::uint32_t n = 30;
    const std::vector<PassCosts> costs{{1, 1, 0, 0, 0, 0, 0}};
    const std::vector<double> limits{kNever};
    std::vector<std::int32_t> row_of_sample(n), cells(n, 0);
    const std::vector<std::int64_t> spans{0, n};
    dynapipe::PricedCutter cutter({{costs, 1}, cells, spans, row_of_sample, 1}, limits, kLink);
    const Cut found = cutter.cut(0.0, kNever, 1);
    CHECK(found.body.size() == 1 && found.ends.size() == 1);
    CHECK(found.ends.front().size <= kMostOfAnEnd);
}

}  // namespace

int main() {
    cuts_cost_least();
    costs_may_be_no_numbers();
    an_end_is_short();
    return check::finish();
}
