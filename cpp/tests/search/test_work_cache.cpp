/// Micro-batches are looked up in the order of a list, however often and whenever.
#include <limits>
#include <vector>

#include "check.hpp"
#include "dynapipe/search/work_cache.hpp"

namespace {

using dynapipe::PassCosts;
using List = std::vector<std::uint32_t>;

constexpr double kNever = std::numeric_limits<double>::infinity();
constexpr std::size_t kStages = 2;
constexpr dynapipe::Link kLink{0.5, 10.0, true};

/// Two micro-batches that run, and one that does not.
const std::vector<PassCosts> kCosts{
    {1, 2, 0.5, 0.25, 10, 7, 8, 9},
    {2, 4, 1, 0.25, 0, 17, 18, 19},
    {3, 6, 1.5, 0.25, 20, 27, 28, 29},
    {4, 8, 2, 0.25, 0, 37, 38, 39},
    {kNever, kNever, kNever, kNever, 0, kNever, kNever, kNever},
    {kNever, kNever, kNever, kNever, 0, kNever, kNever, kNever},
};

void a_list_is_found_in_its_order() {
    dynapipe::WorkCache cache({kCosts, kStages}, kLink, false);
    CHECK(cache.look_up(List{1})[0][1].pass_ms[0] == 4);
    const auto found = cache.look_up(List{0, 1, 0});
    CHECK(found.size() == 3);
    CHECK(found[0] == found[2]);
    CHECK(found[0][0].stored_bytes == 7 && found[1][1].stored_bytes == 37);
    CHECK(found[1][0].forward_transient_bytes == 28 && found[1][0].backward_transient_bytes == 29);
}

void backward_is_whole_or_split() {
    dynapipe::WorkCache whole({kCosts, kStages}, kLink, false);
    dynapipe::WorkCache split({kCosts, kStages}, kLink, true);
    const auto backward = whole.look_up(List{1})[0][0].pass_ms;
    CHECK(backward[1] == 6 && backward[2] == 0);
    const auto parts = split.look_up(List{1})[0][0].pass_ms;
    CHECK(parts[1] == 4.75 && parts[2] == 1.5);
    const auto never = split.look_up(List{2})[0][0].pass_ms;
    CHECK(never[1] == kNever);
}

/// A gradient is as large as the activation that came from the previous stage.
void transfers_take_latency_and_bytes() {
    dynapipe::WorkCache cache({kCosts, kStages}, kLink, false);
    const auto found = cache.look_up(List{1});
    CHECK(found[0][0].send_ms[0] == 0.5 + 20 / 10.0);
    CHECK(found[0][1].send_ms[1] == 0.5 + 20 / 10.0);
}

/// The first of three like stages receives from none, so it sends no gradient back.
void stages_of_one_kind_share_their_work() {
    const std::vector<PassCosts> costs{kCosts[0], kCosts[1], kCosts[2], kCosts[3]};
    const std::vector<std::int32_t> kinds{1, 0, 0, 0, 1};
    const dynapipe::StageCosts of_kinds{costs, kinds.size(), kinds, kStages};
    std::vector<PassCosts> on_stages;
    for (std::size_t i = 0; i < of_kinds.n_microbatches(); ++i) {
        for (std::size_t s = 0; s < kinds.size(); ++s) {
            on_stages.push_back(of_kinds.at(i, s));
        }
    }
    dynapipe::WorkCache shared(of_kinds, kLink, true);
    dynapipe::WorkCache apart({on_stages, kinds.size()}, kLink, true);
    CHECK(shared.kind_of_stage(2) == shared.kind_of_stage(3));
    CHECK(shared.kind_of_stage(1) != shared.kind_of_stage(2));
    CHECK(shared.kind_of_stage(0) != shared.kind_of_stage(4));
    const auto found = shared.look_up(List{1, 0});
    const auto expected = apart.look_up(List{1, 0});
    for (std::size_t i = 0; i < found.size(); ++i) {
        for (std::size_t s = 0; s < kinds.size(); ++s) {
            const dynapipe::StageWork& one = found[i][shared.kind_of_stage(s)];
            const dynapipe::StageWork& other = expected[i][apart.kind_of_stage(s)];
            CHECK(one.pass_ms == other.pass_ms && one.send_ms == other.send_ms);
            CHECK(one.stored_bytes == other.stored_bytes);
        }
    }
}

}  // namespace

int main() {
    a_list_is_found_in_its_order();
    backward_is_whole_or_split();
    stages_of_one_kind_share_their_work();
    transfers_take_latency_and_bytes();
    return check::finish();
}
