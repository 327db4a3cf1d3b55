/// Numpy arrays at the border of the kernels: checked, never copied on the way in.
#pragma once

#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <cstdint>
#include <limits>
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

/// The entries of an array that has a shape, all of them between two numbers: kernels compare them,
/// and use some as indices.
template <typename T>
std::span<const T> checked(const py::array_t<T, py::array::c_style>& array, const char* name,
                           const Shape& shape, T least, T most) {
    check_shape(array, name, shape);
    const std::span<const T> entries = entries_of(array);
    // What is not a number is wrong, too.
    const auto is_wrong = [=](T entry) { return !(entry >= least && entry <= most); };
    // Counted first: a loop without an exit is vectorised, and tables are large.
    if (std::count_if(entries.begin(), entries.end(), is_wrong) > 0) {
        throw py::value_error(
            std::string(name) + " must hold " + std::to_string(least) + " to " +
            std::to_string(most) + ", got " +
            std::to_string(*std::find_if(entries.begin(), entries.end(), is_wrong)));
    }
    return entries;
}

constexpr double kInfinite = std::numeric_limits<double>::infinity();
constexpr double kFinite = std::numeric_limits<double>::max();

/// Numbers of rows or tokens, which kernels multiply and subtract.
template <typename T>
std::span<const T> counts_of(const py::array_t<T, py::array::c_style>& counts, const char* name,
                             py::ssize_t n) {
    return checked(counts, name, {n}, T{0}, static_cast<T>(std::int64_t{1} << 31));
}

/// Costs of shape (n_microbatches, n_stages, kCosts), n_stages >= 1.
inline dynapipe::StageCosts costs_of(const Doubles& costs) {
    if (costs.ndim() != 3 || costs.shape(1) == 0 || costs.shape(2) != kCosts) {
        throw py::value_error("costs must have shape (n_microbatches, n_stages, " +
                              std::to_string(kCosts) + "), n_stages >= 1, got " +
                              text_of(shape_of(costs)));
    }
    checked(costs, "costs", shape_of(costs), 0.0, kInfinite);
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
    const auto n_kinds = static_cast<std::int32_t>(stage_costs.n_kinds);
    stage_costs.kind_of_stage =
        checked(*kind_of_stage, "kind_of_stage", {kind_of_stage->size()}, 0, n_kinds - 1);
    stage_costs.n_stages = stage_costs.kind_of_stage.size();
    const auto& kinds = stage_costs.kind_of_stage;
    for (std::int32_t kind = 0; kind < n_kinds; ++kind) {
        if (std::find(kinds.begin(), kinds.end(), kind) == kinds.end()) {
            throw py::value_error("kind_of_stage must name each of " + std::to_string(n_kinds) +
                                  " kinds");
        }
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
    return checked(limit_bytes, "limit_bytes", {static_cast<py::ssize_t>(n_stages)}, -kInfinite,
                   kInfinite);
}

/// What each stage takes to reduce its gradients, one entry per stage; empty if not given.
inline std::span<const double> reduce_of(const std::optional<Doubles>& reduce_ms,
                                         std::size_t n_stages) {
    if (!reduce_ms) {
        return {};
    }
    return checked(*reduce_ms, "reduce_ms", {static_cast<py::ssize_t>(n_stages)}, 0.0, kFinite);
}

/// Kernels rely on orders that hold each pass exactly once on every stage: (n_stages, n_passes),
/// with a third kind of passes if backward passes are split, or of forward passes alone.
inline void check_orders(const Codes& orders, py::ssize_t n_stages, std::size_t n_microbatches) {
    const py::ssize_t n_given = orders.ndim() == 2 ? orders.shape(1) : 0;
    const auto n = static_cast<py::ssize_t>(n_microbatches);
    const bool is_forward = n_given == n, is_split = n_given == 3 * n;
    check_shape(orders, "order", {n_stages, is_forward || is_split ? n_given : 2 * n});
    const auto n_passes = static_cast<std::size_t>(orders.shape(1));
    std::vector<bool> is_seen(dynapipe::kKinds * n_microbatches);
    const auto codes = entries_of(orders);
    for (std::size_t place = 0; place < codes.size(); ++place) {
        if (place % n_passes == 0) {
            is_seen.assign(is_seen.size(), false);
        }
        const auto code = static_cast<std::size_t>(codes[place]);  // a negative one becomes large
        const dynapipe::PassKind kind = dynapipe::kind_of(codes[place]);
        const bool known = code < is_seen.size() &&
                           (is_split || kind != dynapipe::PassKind::kWeight) &&
                           (!is_forward || kind == dynapipe::PassKind::kForward);
        if (!known || is_seen[code]) {
            throw py::value_error("row " + std::to_string(place / n_passes) + " of " +
                                  "the order must hold each of the " + std::to_string(n_passes) +
                                  " passes once, but has code " + std::to_string(codes[place]) +
                                  (known ? " twice" : ", which is none of them"));
        }
        is_seen[code] = true;
    }
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
