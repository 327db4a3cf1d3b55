/// Numpy arrays at the border of the kernels: checked, never copied on the way in.
#pragma once

#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "dynapipe/cost/stage_costs.hpp"

namespace pybind11::detail {

/// Arguments are never converted: a silent copy would hide that the caller passed the wrong type or
/// layout.
template <typename T>
struct pyobject_caster<array_t<T, array::c_style>> {
    using type = array_t<T, array::c_style>;

    bool load(handle source, bool /*convert*/) {
        if (!type::check_(source)) {
            return false;
        }
        value = reinterpret_borrow<type>(source);
        return true;
    }

    static handle cast(const handle& source, return_value_policy /*policy*/, handle /*parent*/) {
        return source.inc_ref();
    }

    PYBIND11_TYPE_CASTER(type, handle_type_name<type>::name);
};

}  // namespace pybind11::detail

namespace arrays {

namespace py = pybind11;

using Doubles = py::array_t<double, py::array::c_style>;
using Bytes = py::array_t<std::int64_t, py::array::c_style>;
using Numbers = py::array_t<std::uint32_t, py::array::c_style>;
using Codes = py::array_t<dynapipe::PassCode, py::array::c_style>;

template <typename T>
std::span<const T> entries_of(const py::array_t<T, py::array::c_style>& array) {
    return {array.data(), static_cast<std::size_t>(array.size())};
}

using Shape = std::vector<py::ssize_t>;

constexpr auto kCosts = static_cast<py::ssize_t>(dynapipe::kCosts);

/// Makes an array read-only.
inline void freeze(const py::array& array) { array.attr("setflags")(py::arg("write") = false); }

inline Shape shape_of(const py::array& array) {
    return {array.shape(), array.shape() + array.ndim()};
}

inline std::string text_of(const Shape& shape) { return py::str(py::tuple(py::cast(shape))); }

inline void check_shape(const py::array& array, const char* name, const Shape& shape) {
    if (shape_of(array) != shape) {
        throw py::value_error(std::string(name) + " must have shape " + text_of(shape) + ", got " +
                              text_of(shape_of(array)));
    }
}

/// Costs of shape (n_microbatches, n_stages, kCosts), n_stages >= 1.
inline dynapipe::StageCosts costs_of(const Doubles& costs) {
    if (costs.ndim() != 3 || costs.shape(1) == 0 || costs.shape(2) != kCosts) {
        throw py::value_error("costs must have shape (n_microbatches, n_stages, " +
                              std::to_string(kCosts) + "), n_stages >= 1, got " +
                              text_of(shape_of(costs)));
    }
    const std::span numbers = entries_of(costs);
    // Counted, not looked for: a loop without an exit is vectorised, and tables are large.
    if (std::count_if(numbers.begin(), numbers.end(), [](double cost) { return !(cost >= 0); }) >
        0) {
        throw py::value_error("costs must hold no NaN and nothing negative");
    }
    const auto* entries = reinterpret_cast<const dynapipe::PassCosts*>(costs.data());
    const std::span passes(entries, static_cast<std::size_t>(costs.shape(0) * costs.shape(1)));
    if (std::count_if(passes.begin(), passes.end(),
                      [](const auto& pass) { return pass.weight_ms > pass.backward_ms; }) > 0) {
        throw py::value_error(
            "weight_ms of costs must not exceed backward_ms, of which it is part");
    }
    return {passes, static_cast<std::size_t>(costs.shape(1))};
}

using Kinds = std::optional<py::array_t<std::int32_t, py::array::c_style>>;

/// The same of shape (n_microbatches, n_kinds, kCosts), with the kind of every stage.
inline dynapipe::StageCosts costs_of(const Doubles& costs, const Kinds& kind_of_stage) {
    dynapipe::StageCosts stage_costs = costs_of(costs);
    if (!kind_of_stage) {
        return stage_costs;
    }
    stage_costs.kind_of_stage = entries_of(*kind_of_stage);
    stage_costs.n_stages = stage_costs.kind_of_stage.size();
    if (kind_of_stage->ndim() != 1 || stage_costs.n_stages == 0) {
        throw py::value_error("kind_of_stage must have shape (n_stages,), n_stages >= 1, got " +
                              text_of(shape_of(*kind_of_stage)));
    }
    std::vector<bool> has_stage(stage_costs.n_kinds);
    for (const std::int32_t kind : stage_costs.kind_of_stage) {
        if (kind < 0 || static_cast<std::size_t>(kind) >= stage_costs.n_kinds) {
            throw py::value_error("kind_of_stage must name kinds 0 to " +
                                  std::to_string(stage_costs.n_kinds - 1) + ", got " +
                                  std::to_string(kind));
        }
        has_stage[static_cast<std::size_t>(kind)] = true;
    }
    if (std::find(has_stage.begin(), has_stage.end(), false) != has_stage.end()) {
        throw py::value_error("kind_of_stage must name kinds 0 to " +
                              std::to_string(stage_costs.n_kinds - 1) + ", each of them");
    }
    return stage_costs;
}

/// Costs together with the arrays that hold them, for many calls: checked once, as large tables
/// take time, and read-only, because kernels rely on what was checked.
class HeldTable {
  public:
    HeldTable(Doubles table, Kinds kind_of_stage)
        : table_(std::move(table)),
          kind_of_stage_(std::move(kind_of_stage)),
          costs_(costs_of(table_, kind_of_stage_)) {
        freeze(table_);
        if (kind_of_stage_) {
            freeze(*kind_of_stage_);
        }
    }

    [[nodiscard]] const dynapipe::StageCosts& costs() const { return costs_; }
    [[nodiscard]] py::ssize_t n_entries() const { return table_.shape(0); }

  private:
    Doubles table_;
    Kinds kind_of_stage_;
    dynapipe::StageCosts costs_;
};

/// Memory left for activations, one entry per stage; may be negative.
inline std::span<const double> limits_of(const Doubles& limit_bytes, std::size_t n_stages) {
    check_shape(limit_bytes, "limit_bytes", {static_cast<py::ssize_t>(n_stages)});
    const std::span limits = entries_of(limit_bytes);
    if (std::any_of(limits.begin(), limits.end(), [](double limit) { return std::isnan(limit); })) {
        throw py::value_error("limit_bytes must hold no NaN");
    }
    return limits;
}

/// What each stage takes to reduce its gradients, one entry per stage; empty if not given.
inline std::span<const double> reduce_of(const std::optional<Doubles>& reduce_ms,
                                         std::size_t n_stages) {
    if (!reduce_ms) {
        return {};
    }
    check_shape(*reduce_ms, "reduce_ms", {static_cast<py::ssize_t>(n_stages)});
    const std::span times = entries_of(*reduce_ms);
    for (const double ms : times) {
        if (!(ms >= 0.0 && std::isfinite(ms))) {  // refuses what is not a number, too
            throw py::value_error("reduce_ms must hold finite times from 0, got " +
                                  std::to_string(ms));
        }
    }
    return times;
}

/// Numbers of rows or tokens, which kernels multiply and subtract.
template <class Number>
void check_counts(const py::array_t<Number, py::array::c_style>& counts, const char* name) {
    constexpr auto kMaxCount = static_cast<Number>(std::int64_t{1} << 31);
    for (const Number count : entries_of(counts)) {
        if (!(count >= 0 && count <= kMaxCount)) {  // refuses what is not a number, too
            throw py::value_error(std::string(name) + " must hold 0 to 2^31, got " +
                                  std::to_string(count));
        }
    }
}

/// Kernels rely on orders that hold each pass exactly once on every stage.
inline void check_rows(const Codes& orders, std::size_t n_passes, std::size_t n_microbatches) {
    const bool splits_backward = n_passes > 2 * n_microbatches;
    std::vector<bool> is_seen(dynapipe::kKinds * n_microbatches);
    const auto codes = entries_of(orders);
    for (std::size_t place = 0; place < codes.size(); ++place) {
        if (place % n_passes == 0) {
            is_seen.assign(is_seen.size(), false);
        }
        const auto code = static_cast<std::size_t>(codes[place]);  // a negative one becomes large
        const bool known =
            code < is_seen.size() &&
            (splits_backward || dynapipe::kind_of(codes[place]) != dynapipe::PassKind::kWeight) &&
            (n_passes != n_microbatches ||
             dynapipe::kind_of(codes[place]) == dynapipe::PassKind::kForward);
        if (!known || is_seen[code]) {
            throw py::value_error("row " + std::to_string(place / n_passes) + " of " +
                                  "the order must hold each of the " + std::to_string(n_passes) +
                                  " passes once, but has code " + std::to_string(codes[place]) +
                                  (known ? " twice" : ", which is none of them"));
        }
        is_seen[code] = true;
    }
}

/// Orders of shape (leading..., n_passes), of forward passes only where these may be alone. Returns
/// n_passes.
inline std::size_t check_orders(const Codes& orders, std::vector<py::ssize_t> leading,
                                std::size_t n_microbatches, bool may_be_forward = false) {
    const py::ssize_t n_passes = orders.ndim() == 0 ? 0 : orders.shape(orders.ndim() - 1);
    const auto n = static_cast<py::ssize_t>(n_microbatches);
    leading.push_back(n_passes == 3 * n || (may_be_forward && n_passes == n) ? n_passes : 2 * n);
    check_shape(orders, "order", leading);
    check_rows(orders, static_cast<std::size_t>(n_passes), n_microbatches);
    return static_cast<std::size_t>(n_passes);
}

/// A result of a kernel as an array, without a copy.
template <typename T>
py::array_t<T> owned(std::vector<T> entries, const Shape& shape) {
    auto* held = new std::vector<T>(std::move(entries));
    const py::capsule owner(held, [](void* array) { delete static_cast<std::vector<T>*>(array); });
    return py::array_t<T>(shape, held->data(), owner);
}

template <typename T>
py::array_t<T> owned(std::vector<T> entries) {
    const auto size = static_cast<py::ssize_t>(entries.size());
    return owned(std::move(entries), {size});
}

/// The same as rows of equal length.
template <typename T>
py::array_t<T> matrix(std::vector<T> entries, std::size_t n_rows) {
    const std::size_t n_columns = entries.size() / n_rows;
    return owned(std::move(entries),
                 {static_cast<py::ssize_t>(n_rows), static_cast<py::ssize_t>(n_columns)});
}

/// A property that shows a vector of a bound struct as an array, without a copy.
template <typename Struct, typename T>
auto shown(std::vector<T> Struct::* member) {
    return [member](const py::object& self) {
        const std::vector<T>& entries = self.cast<const Struct&>().*member;
        return py::array_t<T>(entries.size(), entries.data(), self);
    };
}

}  // namespace arrays
