#include "dynapipe/cost/cost_grid.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <limits>
#include <vector>

namespace dynapipe {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// Place of a value on an axis: between a point and the next one, so far from the first.
struct Place {
    std::size_t left;
    double weight;
    bool is_beyond;
};

/// An axis of the grid, which looks where the last value was first: successive shapes are alike.
class Axis {
  public:
    explicit Axis(std::span<const std::int64_t> points) : points_(points.begin(), points.end()) {}

    Place locate(double value) {
        if (value <= points_.front()) {
            return {0, 0.0, false};
        }
        if (value >= points_.back()) {
            return {points_.size() - 1, 0.0, value > points_.back()};
        }
        if (!(points_[left_] <= value && value < points_[left_ + 1])) {
            left_ = static_cast<std::size_t>(
                std::upper_bound(points_.begin(), points_.end(), value) - points_.begin() - 1);
        }
        return {left_, (value - points_[left_]) / (points_[left_ + 1] - points_[left_]), false};
    }

  private:
    std::vector<double> points_;
    std::size_t left_ = 0;
};

// Stands for infinity, of which a difference or a weight of zero would make no number.
constexpr double kInfeasible = 1e300;
constexpr double kFeasibleLimit = 1e200;

// Rows that are no whole numbers are tokens over a length.
constexpr double kRounding = 1 + 1e-9;

/// Costs of one kind of stage as numbers alone, of a count that compilers know.
using Costs = std::array<double, kCosts>;

Costs finite(const PassCosts& costs) {
    auto numbers = std::bit_cast<Costs>(costs);
    for (double& number : numbers) {
        number = std::min(number, kInfeasible);
    }
    return numbers;
}

Costs between(const Costs& left, const Costs& right, double weight) {
    Costs costs;
    for (std::size_t i = 0; i < kCosts; ++i) {
        costs[i] = left[i] + weight * (right[i] - left[i]);
    }
    return costs;
}

/// The costs of all kinds of stages as functions of the number of rows, which are straight
/// between two points of the grid.
class Line {
  public:
    explicit Line(const CostGrid& grid)
        : grid_(grid),
          row_axis_(grid.row_tokens),
          target_axis_(grid.target_tokens),
          start_(grid.n_kinds),
          step_(grid.n_kinds) {
        points_.reserve(grid.points.size());
        for (const PassCosts& point : grid.points) {
            points_.push_back(finite(point));
        }
    }

    /// Moves to other lengths or to other points of the axis of rows, if they are others.
    void move(std::size_t left_row, double row_tokens, double target_tokens) {
        if (left_row == left_row_ && row_tokens == row_tokens_ && target_tokens == target_tokens_) {
            return;
        }
        left_row_ = left_row;
        row_tokens_ = row_tokens;
        target_tokens_ = target_tokens;
        const Place row = row_axis_.locate(row_tokens);
        const Place target = target_axis_.locate(target_tokens);
        is_beyond_ = row.is_beyond || target.is_beyond;
        if (is_beyond_) {
            return;
        }
        const std::size_t right_row = std::min(left_row + 1, grid_.rows.size() - 1);
        for (std::size_t kind = 0; kind < grid_.n_kinds; ++kind) {
            start_[kind] = at_lengths(left_row, row, target, kind);
            step_[kind] = at_lengths(right_row, row, target, kind);
            for (std::size_t i = 0; i < kCosts; ++i) {
                step_[kind][i] -= start_[kind][i];
            }
        }
    }

    /// The costs of a kind at a number of rows, with so many tokens in all.
    [[nodiscard]] PassCosts at(const Place& rows, double tokens, std::size_t kind) const {
        if (is_beyond_ || rows.is_beyond || tokens > kRounding * grid_.most_tokens[kind]) {
            Costs never;
            never.fill(kInfinity);
            return std::bit_cast<PassCosts>(never);
        }
        Costs costs;
        for (std::size_t i = 0; i < kCosts; ++i) {
            const double cost = start_[kind][i] + rows.weight * step_[kind][i];
            costs[i] = cost > kFeasibleLimit ? kInfinity : cost;
        }
        return std::bit_cast<PassCosts>(costs);
    }

  private:
    /// Costs of a row of the grid between its lengths.
    [[nodiscard]] Costs at_lengths(std::size_t row, const Place& tokens, const Place& target,
                                   std::size_t kind) const {
        const Costs left = at_target(row, tokens.left, target, kind);
        return tokens.weight > 0.0
                   ? between(left, at_target(row, tokens.left + 1, target, kind), tokens.weight)
                   : left;
    }

    [[nodiscard]] Costs at_target(std::size_t row, std::size_t tokens, const Place& target,
                                  std::size_t kind) const {
        const std::size_t point =
            (row * grid_.row_tokens.size() + tokens) * grid_.target_tokens.size() + target.left;
        const Costs* entry = &points_[point * grid_.n_kinds + kind];
        return target.weight > 0.0 ? between(*entry, entry[grid_.n_kinds], target.weight) : *entry;
    }

    const CostGrid& grid_;
    std::vector<Costs> points_;
    Axis row_axis_;
    Axis target_axis_;
    std::vector<Costs> start_;
    std::vector<Costs> step_;
    std::size_t left_row_ = std::numeric_limits<std::size_t>::max();
    double row_tokens_ = -1;
    double target_tokens_ = -1;
    bool is_beyond_ = false;
};

}  // namespace

void interpolate_costs(const CostGrid& grid, std::span<const Boundary> boundaries,
                       const ShapeList& shapes, std::span<PassCosts> costs) {
    Line line(grid);
    Axis row_axis(grid.rows);
    PassCosts* cost = costs.data();
    for (std::size_t i = 0; i < shapes.n_rows.size(); ++i) {
        const Place rows = row_axis.locate(shapes.n_rows[i]);
        line.move(rows.left, shapes.row_tokens[i], shapes.target_tokens[i]);
        const double row_tokens = shapes.n_rows[i] * shapes.row_tokens[i];
        const double target_tokens = shapes.n_rows[i] * shapes.target_tokens[i];
        for (std::size_t kind = 0; kind < grid.n_kinds; ++kind, ++cost) {
            const Boundary& boundary = boundaries[kind];
            *cost = line.at(rows, row_tokens + target_tokens, kind);
            cost->boundary_bytes = row_tokens * boundary.bytes_per_row_token +
                                   target_tokens * boundary.bytes_per_target_token;
        }
    }
}

void add_costs(std::span<PassCosts> costs, std::span<const PassCosts> others) {
    for (std::size_t i = 0; i < costs.size(); ++i) {
        PassCosts& one = costs[i];
        const PassCosts& other = others[i];
        one.forward_ms += other.forward_ms;
        one.backward_ms += other.backward_ms;
        one.weight_ms += other.weight_ms;
        one.splitting_ms += other.splitting_ms;
        one.boundary_bytes += other.boundary_bytes;
        one.stored_bytes += other.stored_bytes;
        one.forward_transient_bytes =
            std::max(one.forward_transient_bytes, other.forward_transient_bytes);
        one.backward_transient_bytes =
            std::max(one.backward_transient_bytes, other.backward_transient_bytes);
    }
}

}  // namespace dynapipe
