/// A recording knows how far a list is the recorded one, and what was under way there.
#include <algorithm>
#include <limits>
#include <vector>

#include "check.hpp"
#include "dynapipe/schedule/list_recording.hpp"

namespace {

using dynapipe::ListRecording;
using dynapipe::StageState;

constexpr std::size_t kStages = 2;
constexpr std::size_t kLength = 9;
constexpr std::size_t kStride = kLength + 3;

using List = std::vector<std::uint32_t>;

/// Ten times the place, and one more per stage and kind.
double arrival_ms(std::size_t lane, std::size_t place) {
    return static_cast<double>(10 * place + lane);
}

std::vector<double> arrivals() {
    std::vector<double> ms(2 * kStages * kStride, -1.0);
    for (std::size_t lane = 0; lane < 2 * kStages; ++lane) {
        for (std::size_t place = 0; place < kLength; ++place) {
            ms[lane * kStride + place] = arrival_ms(lane, place);
        }
    }
    return ms;
}

/// When four and eight micro-batches had entered the first stage, two fewer had left it.
std::vector<StageState> states() {
    std::vector<StageState> found;
    for (const std::uint32_t n : {4U, 8U}) {
        found.push_back({1.0 * n, 0, {}, {n, n - 3, 0}, 0, false});
        found.push_back({2.0 * n, 0, {}, {n - 1, n - 2, 0}, 0, false});
    }
    return found;
}

ListRecording recorded(const List& list) {
    ListRecording recording;
    recording.replace({list, true, kStages, states(), arrivals(), kStride}, 0);
    return recording;
}

void nothing_is_like_an_empty_recording() {
    const ListRecording recording;
    CHECK(recording.n_shared(List{0, 1, 2, 3, 4}, false) == 0);
}

void states_are_shared_up_to_where_lists_part() {
    const List list{0, 1, 2, 3, 4, 5, 6, 7, 8};
    const ListRecording recording = recorded(list);
    CHECK(recording.n_shared(list, true) == 2);
    CHECK(recording.n_shared(list, false) == 0);
    CHECK(recording.n_shared(List{0, 1, 2, 9, 4, 5, 6, 7, 8}, true) == 0);
    CHECK(recording.n_shared(List{0, 1, 2, 3, 9, 5, 6, 7, 8}, true) == 1);
    CHECK(recording.n_shared(List{0, 1, 2, 3}, true) == 1);
    CHECK(recording.n_shared(List{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}, true) == 2);
}

/// On the way there what the stage before has done, and back what the stage behind has done.
void what_has_arrived_and_is_not_done_is_pending() {
    const ListRecording recording = recorded({0, 1, 2, 3, 4, 5, 6, 7, 8});
    const auto is_from_to = [&](std::size_t stage, std::size_t kind, std::size_t from,
                                std::size_t to) {
        std::vector<double> expected;
        for (std::size_t place = from; place < to; ++place) {
            expected.push_back(arrival_ms(2 * stage + kind, place));
        }
        const auto found = recording.pending_ms(2, stage, kind);
        return std::equal(found.begin(), found.end(), expected.begin(), expected.end());
    };
    CHECK(recording.states(2)[0].free_ms == 8 && recording.states(2)[1].free_ms == 16);
    CHECK(is_from_to(0, 0, 8, 8));
    CHECK(is_from_to(0, 1, 5, 6));
    CHECK(is_from_to(1, 0, 7, 8));
    CHECK(is_from_to(1, 1, 6, 7));
}

void a_run_that_shares_states_replaces_what_comes_after() {
    ListRecording recording = recorded({0, 1, 2, 3, 4, 5, 6, 7, 8});
    std::vector<StageState> now = states();
    now[0].free_ms = now[2].free_ms = 99;
    std::vector<double> later = arrivals();
    std::transform(later.begin(), later.end(), later.begin(), [](double ms) { return ms + 0.5; });
    recording.replace({List{0, 1, 2, 3, 9, 5, 6, 7, 8}, true, kStages, now, later, kStride}, 1);
    CHECK(recording.states(1)[0].free_ms == 4);
    CHECK(recording.states(2)[0].free_ms == 99);
    CHECK(recording.n_shared(List{0, 1, 2, 3, 9, 5, 6, 7}, true) == 2);
    CHECK(recording.pending_ms(2, 1, 0).front() == arrival_ms(2, 7) + 0.5);
}

}  // namespace

int main() {
    nothing_is_like_an_empty_recording();
    states_are_shared_up_to_where_lists_part();
    what_has_arrived_and_is_not_done_is_pending();
    a_run_that_shares_states_replaces_what_comes_after();
    return check::finish();
}
