#include "check.hpp"
#include "dynapipe/plan/place_transfers.hpp"

using dynapipe::PassCode;
using dynapipe::Row;
using enum dynapipe::Kind;
using enum dynapipe::Payload;
using Rows = std::vector<Row>;

namespace {

constexpr PassCode F0 = 0, B0 = 1, W0 = 2;

}  // namespace

int main() {
    const std::vector<std::uint32_t> peers{6, 7};

    const auto whole = dynapipe::place_transfers(std::vector{F0, B0, F0, B0},
                                                 std::vector{1.0, 4.0, 2.0, 3.0}, peers);
    CHECK((whole[0] == Rows{{load, 0},
                            {forward, 0},
                            {start_send, 0, activation, 7},
                            {start_receive, 0, gradient, 7, 0},
                            {wait_receive, 0, gradient},
                            {wait_send, 0, activation},
                            {backward, 0},
                            {reduce_gradients},
                            {step_optimizer}}));
    CHECK((whole[1] == Rows{{start_receive, 0, activation, 6, 0},
                            {load, 0},
                            {wait_receive, 0, activation},
                            {forward, 0},
                            {backward, 0},
                            {start_send, 0, gradient, 6},
                            {wait_send, 0, gradient},
                            {reduce_gradients},
                            {step_optimizer}}));

    const auto split = dynapipe::place_transfers(std::vector{F0, B0, W0, F0, B0, W0},
                                                 std::vector{1.0, 4.0, 5.0, 2.0, 3.0, 4.0}, peers);
    CHECK((split[1] == Rows{{start_receive, 0, activation, 6, 0},
                            {load, 0},
                            {wait_receive, 0, activation},
                            {forward, 0},
                            {backward_input, 0},
                            {start_send, 0, gradient, 6},
                            {backward_weight, 0},
                            {wait_send, 0, gradient},
                            {reduce_gradients},
                            {step_optimizer}}));
    return check::finish();
}
