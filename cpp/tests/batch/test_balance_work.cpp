/// Every item is on one replica, no replica is empty, and equal items are dealt in order.
#include <algorithm>
#include <cstdint>
#include <vector>

#include "check.hpp"
#include "dynapipe/batch/balance_work.hpp"
#include "dynapipe/search/random.hpp"

namespace {

using Replicas = std::vector<std::vector<std::uint32_t>>;

/// The differences go 8-7, 6-5, 4-1, 3-1: loads of 14 and 16.
void the_textbook_example() {
    const std::vector<double> work_ms{8, 7, 6, 5, 4};
    CHECK((dynapipe::balance_work(work_ms, 2) == Replicas{{0, 2}, {1, 3, 4}}));
}

void a_replica_may_do_all() {
    CHECK((dynapipe::balance_work(std::vector<double>{2, 1, 3}, 1) == Replicas{{0, 1, 2}}));
}

void loads_are_even_where_items_are_many() {
    dynapipe::Random random(1);
    for (int i = 0; i < 50; ++i) {
        const std::size_t n_replicas = 1 + random.below(40);
        std::vector<double> work_ms(n_replicas * (1 + random.below(20)));
        for (double& ms : work_ms) {
            ms = 1 + static_cast<double>(random.below(30));
        }
        const Replicas replicas = dynapipe::balance_work(work_ms, n_replicas);
        std::vector<int> times(work_ms.size(), 0);
        std::vector<double> loads_ms;
        for (const auto& replica : replicas) {
            loads_ms.push_back(0);
            for (const std::uint32_t item : replica) {
                ++times[item];
                loads_ms.back() += work_ms[item];
            }
            CHECK(!replica.empty() && std::is_sorted(replica.begin(), replica.end()));
        }
        CHECK(replicas.size() == n_replicas && std::is_sorted(replicas.begin(), replicas.end()));
        CHECK(std::all_of(times.begin(), times.end(), [](int n) { return n == 1; }));
        const auto [least, most] = std::minmax_element(loads_ms.begin(), loads_ms.end());
        CHECK(*most - *least <= *std::max_element(work_ms.begin(), work_ms.end()));
    }
}

}  // namespace

int main() {
    the_textbook_example();
    a_replica_may_do_all();
    loads_are_even_where_items_are_many();
    return check::finish();
}
