#include <limits>
#include <stdexcept>
#include <string>

#include "check.hpp"
#include "dynapipe/schedule/cyclic_schedule.hpp"

using dynapipe::PassCode;
using dynapipe::PassCosts;

namespace {

constexpr double kNoLimit = std::numeric_limits<double>::infinity();

/// One line per stage, as "F0 B0 F1 B1 ".
std::string picture(const std::vector<PassCode>& order, std::size_t n_stages) {
    std::string text;
    for (std::size_t i = 0; i < order.size(); ++i) {
        text += "FBW"[static_cast<int>(dynapipe::kind_of(order[i]))];
        text += std::to_string(dynapipe::microbatch_of(order[i])) + ' ';
        text += (i + 1) % (order.size() / n_stages) == 0 ? "\n" : "";
    }
    return text;
}

/// Micro-batches that store the same on both of two stages.
std::string order_on_two_stages(const std::vector<double>& stored, double backward_transient,
                                double limit) {
    std::vector<PassCosts> both;
    for (const double bytes : stored) {
        both.insert(
            both.end(), 2,
            PassCosts{.stored_bytes = bytes, .backward_transient_bytes = backward_transient});
    }
    const std::vector<double> limits(2, limit);
    return picture(dynapipe::cyclic_schedule({both, 2}, limits), 2);
}

bool refuses(const std::vector<double>& stored, double backward_transient, double limit) {
    try {
        order_on_two_stages(stored, backward_transient, limit);
    } catch (const std::invalid_argument&) {
        return true;
    }
    return false;
}

}  // namespace

int main() {
    CHECK(order_on_two_stages({1, 1, 1, 1}, 0, kNoLimit) ==
          "F0 F1 F2 B0 F3 B1 B2 B3 \n"
          "F0 B0 F1 B1 F2 B2 F3 B3 \n");
    CHECK(order_on_two_stages({1, 1, 1, 1}, 0, 2) ==
          "F0 F1 B0 F2 B1 F3 B2 B3 \n"
          "F0 B0 F1 B1 F2 B2 F3 B3 \n");
    CHECK(order_on_two_stages({1, 1, 1, 1}, 1, 2) ==
          "F0 B0 F1 B1 F2 B2 F3 B3 \n"
          "F0 B0 F1 B1 F2 B2 F3 B3 \n");
    CHECK(order_on_two_stages({1, 1, 3}, 0, 3) ==
          "F0 F1 B0 B1 F2 B2 \n"
          "F0 B0 F1 B1 F2 B2 \n");
    // In binary, 0.1 + 0.3 - 0.1 - 0.3 is more than nothing.
    CHECK(order_on_two_stages({0.1, 0.3, 0.4}, 0, 0.4) ==
          "F0 F1 B0 B1 F2 B2 \n"
          "F0 B0 F1 B1 F2 B2 \n");
    CHECK(order_on_two_stages({}, 0, 1).empty());
    CHECK(refuses({4, 1}, 0, 3));
    CHECK(refuses({3, 1}, 1, 3));
    return check::finish();
}
