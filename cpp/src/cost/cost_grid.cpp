#include "dynapipe/cost/cost_grid.hpp"

#include <algorithm>
#include <limits>
#include <vector>

namespace dynapipe {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// Where on an axis a value lies: between a point and the next one, and how far from the first.
struct Place {
    std::size_t left;
    double weight;
    bool is_beyond;
};

Place locate(std::span<const std::int64_t> axis, double value) {
    if (value <= static_cast<double>(axis.front())) {
        return {0, 0.0, false};
    }
    const auto is_below = [](double left, std::int64_t point) {
        return left < static_cast<double>(point);
    };
    const auto right = static_cast<std::size_t>(
        std::upper_bound(axis.begin(), axis.end(), value, is_below) - axis.begin());
    const std::size_t left = right - 1;
    if (right == axis.size()) {
        return {left, 0.0, value > static_cast<double>(axis.back())};
    }
    const auto width = static_cast<double>(axis[right] - axis[left]);
    return {left, (value - static_cast<double>(axis[left])) / width, false};
}

// Stands for infinity, of which a difference or a weight of zero would make no number.
constexpr double kInfeasible = 1e300;
constexpr double kFeasibleLimit = 1e200;

/// The costs of all kinds of stages as functions of the number of rows, which are straight
/// between two points of the grid.
class Line {
  public:
    explicit Line(const CostGrid& grid)
        : grid_(grid),
          start_(grid.n_kinds * kCosts),
          step_(start_),
          left_(start_),
          right_(start_) {}

    /// Moves to other lengths or to other points of the axis of rows, if they are others.
    void move(std::size_t left_row, double row_tokens, double target_tokens) {
        if (left_row == left_row_ && row_tokens == row_tokens_ && target_tokens == target_tokens_) {
            return;
        }
        left_row_ = left_row;
        row_tokens_ = row_tokens;
        target_tokens_ = target_tokens;
        const Place row = locate(grid_.row_tokens, row_tokens);
        const Place target = locate(grid_.target_tokens, target_tokens);
        at_lengths(left_row, row, target, start_);
        at_lengths(std::min(left_row + 1, grid_.rows.size() - 1), row, target, step_);
        for (std::size_t i = 0; i < start_.size(); ++i) {
            step_[i] -= start_[i];
        }
    }

    /// The costs at a number of rows, in the order of kinds.
    void at(const Place& rows, std::vector<double>& costs) const {
        for (std::size_t i = 0; i < costs.size(); ++i) {
            const double cost = start_[i] + rows.weight * step_[i];
            costs[i] = cost > kFeasibleLimit ? kInfinity : cost;
        }
        if (rows.is_beyond) {
            std::fill(costs.begin(), costs.end(), kInfinity);
        }
    }

  private:
    /// Costs of a row of the grid between its lengths.
    void at_lengths(std::size_t row, const Place& tokens, const Place& target,
                    std::vector<double>& costs) {
        if (tokens.is_beyond || target.is_beyond) {
            std::fill(costs.begin(), costs.end(), kInfeasible);
            return;
        }
        at_target(row, tokens.left, target, left_);
        if (tokens.weight > 0.0) {
            at_target(row, tokens.left + 1, target, right_);
        }
        blend(left_.data(), tokens.weight > 0.0 ? right_.data() : left_.data(), tokens.weight,
              costs);
    }

    void at_target(std::size_t row, std::size_t tokens, const Place& target,
                   std::vector<double>& costs) const {
        const std::size_t point =
            (row * grid_.row_tokens.size() + tokens) * grid_.target_tokens.size() + target.left;
        const auto* left = reinterpret_cast<const double*>(&grid_.points[point * grid_.n_kinds]);
        blend(left, target.weight > 0.0 ? left + costs.size() : left, target.weight, costs);
    }

    static void blend(const double* left, const double* right, double weight,
                      std::vector<double>& costs) {
        for (std::size_t i = 0; i < costs.size(); ++i) {
            const double low = std::min(left[i], kInfeasible);
            costs[i] = low + weight * (std::min(right[i], kInfeasible) - low);
        }
    }

    const CostGrid& grid_;
    std::vector<double> start_;
    std::vector<double> step_;
    std::vector<double> left_;
    std::vector<double> right_;
    std::size_t left_row_ = std::numeric_limits<std::size_t>::max();
    double row_tokens_ = -1;
    double target_tokens_ = -1;
};

}  // namespace

void interpolate_costs(const CostGrid& grid, std::span<const Boundary> boundaries,
                       const ShapeList& shapes, std::span<PassCosts> costs) {
    Line line(grid);
    std::vector<double> of_kinds(grid.n_kinds * kCosts);
    const auto* kinds = reinterpret_cast<const PassCosts*>(of_kinds.data());
    PassCosts* cost = costs.data();
    for (std::size_t i = 0; i < shapes.n_rows.size(); ++i) {
        const Place rows = locate(grid.rows, shapes.n_rows[i]);
        line.move(rows.left, shapes.row_tokens[i], shapes.target_tokens[i]);
        line.at(rows, of_kinds);
        const double row_tokens = shapes.n_rows[i] * shapes.row_tokens[i];
        const double target_tokens = shapes.n_rows[i] * shapes.target_tokens[i];
        for (std::size_t kind = 0; kind < grid.n_kinds; ++kind, ++cost) {
            const Boundary& boundary = boundaries[kind];
            *cost = kinds[kind];
            cost->boundary_bytes = row_tokens * boundary.bytes_per_row_token +
                                   target_tokens * boundary.bytes_per_target_token;
        }
    }
}

}  // namespace dynapipe
