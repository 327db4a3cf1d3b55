#include "dynapipe/search/find_plan.hpp"

#include <algorithm>
#include <deque>
#include <stdexcept>

#include "dynapipe/search/construct_plans.hpp"
#include "dynapipe/search/plan_moves.hpp"

namespace dynapipe {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();
/// The threshold of acceptance at the start, as a share of the makespan per micro-batch: what a
/// move changes is of the order of one micro-batch, however many there are.
constexpr double kThreshold = 0.02;
/// Effort of a move that is not simulated, in passes.
constexpr std::size_t kMoveEffort = 4;
/// The effort of the first round.
constexpr std::size_t kFirstRound = 6'250;
/// The effort after which tables are compared, and how much longer the best plan of one may be.
constexpr std::size_t kCompared = 2 * kFirstRound;
constexpr double kNear = 1.003;

class Search {
  public:
    Search(ReplicaSimulator& simulator, std::span<const Assignment> starts,
           std::span<const double> slowness, std::uint64_t seed)
        : simulator_(simulator),
          slowness_(slowness.begin(), slowness.end()),
          moves_(simulator.windows(), seed) {
        for (const Assignment& start : starts) {
            if (begin(start, best_ms_)) {
                keep_if_best();
            }
        }
        if (best_.empty()) {
            throw std::invalid_argument("no start keeps within the limits of the stages");
        }
        found_ = {best()};
    }

    /// Goes on until all rounds together have taken some effort.
    void improve(std::size_t effort) {
        for (std::size_t length = next_round(); used_ + length <= effort; length = next_round()) {
            moves_.begin(best_);
            go(length);
            used_ += length;
            if (best_ms_ < found_.back().makespan_ms) {
                found_.push_back(best());
            }
        }
    }

    [[nodiscard]] double best_ms() const { return best_ms_; }
    [[nodiscard]] const std::vector<FoundPlan>& found() const { return found_; }

  private:
    /// Takes over a plan, every replica in the way to schedule it that suits it best. False if it
    /// is certain to take longer than a limit.
    bool begin(const Assignment& start, double give_up_ms) {
        std::vector<Replica> replicas;
        for (const std::vector<Window>& windows : start) {
            Replica replica{windows};
            const double slowness = slowness_[replicas.size()];
            const double best_ms = simulator_.best_makespan_ms(windows, give_up_ms / slowness);
            if (best_ms == kNever) {
                return false;
            }
            replica.alternates = simulator_.makespan_ms(windows, best_ms) > best_ms;
            replica.makespan_ms = best_ms * slowness;
            replicas.push_back(std::move(replica));
        }
        recordings_.resize(replicas.size());
        moves_.begin(std::move(replicas));
        return true;
    }

    /// As long as all rounds before it.
    [[nodiscard]] std::size_t next_round() const { return used_ == 0 ? kFirstRound : used_; }

    /// The best plan so far, that a round has found.
    [[nodiscard]] FoundPlan best() const {
        FoundPlan plan{{}, best_ms_, used_, n_moves_};
        for (const Replica& replica : best_) {
            plan.replicas.push_back(replica.windows);
        }
        return plan;
    }

    /// A round: moves as long as there is effort, with a threshold that sinks to zero by its end.
    void go(std::size_t length) {
        const double first_threshold_ms =
            kThreshold * slowest_ms() / static_cast<double>(longest_replica());
        const std::size_t begun = simulator_.effort();
        for (std::size_t n = 0;; ++n, ++n_moves_) {
            const std::size_t used = simulator_.effort() - begun + kMoveEffort * n;
            if (used >= length) {
                return;
            }
            const double left = 1.0 - static_cast<double>(used) / static_cast<double>(length);
            move(first_threshold_ms * left * left * moves_.random_share());
            keep_if_best();
        }
    }

    void keep_if_best() {
        if (slowest_ms() < best_ms_) {
            best_ms_ = slowest_ms();
            best_ = moves_.replicas();
        }
    }

    /// End of the slowest replica.
    [[nodiscard]] double slowest_ms() const {
        double ms = 0.0;
        for (const Replica& replica : moves_.replicas()) {
            ms = std::max(ms, replica.makespan_ms);
        }
        return ms;
    }

    std::span<const std::uint32_t> list_of(const Replica& replica) {
        list_.clear();
        for (const Window& window : replica.windows) {
            list_.push_back(moves_.microbatch(window));
        }
        return list_;
    }

    /// The most micro-batches of a replica.
    [[nodiscard]] std::size_t longest_replica() const {
        std::size_t n = 0;
        for (const Replica& replica : moves_.replicas()) {
            n = std::max(n, replica.windows.size());
        }
        return n;
    }

    /// Makes one random move; takes it back if the plan becomes worse by more than a threshold.
    void move(double threshold_ms) {
        const double limit_ms = slowest_ms() + threshold_ms;
        if (!moves_.make_any()) {
            return;
        }
        if (simulate_changed(limit_ms)) {
            moves_.accept();
        } else {
            moves_.undo();
        }
    }

    /// False as soon as the plan is certain to be worse than a limit.
    bool simulate_changed(double limit_ms) {
        for (const std::size_t r : moves_.changed()) {
            const Replica& replica = moves_.replicas()[r];
            const double ms = simulator_.run(list_of(replica), limit_ms / slowness_[r],
                                             replica.alternates, recordings_[r]) *
                              slowness_[r];
            moves_.makespan_ms(r) = ms;
            if (ms > limit_ms) {
                return false;
            }
        }
        return true;
    }

    ReplicaSimulator& simulator_;
    std::vector<double> slowness_;  ///< per replica
    PlanMoves moves_;
    std::vector<ListRecording> recordings_;  ///< per replica
    std::vector<Replica> best_;
    double best_ms_ = kNever;
    std::size_t n_moves_ = 0;
    std::size_t used_ = 0;  ///< effort of all rounds
    std::vector<FoundPlan> found_;
    std::vector<std::uint32_t> list_;
};

/// The least time from the first pass to the last of a window that holds the first sample, if none
/// has slices: no plan is shorter.
double least_trip_ms(const ReplicaSimulator& simulator) {
    const WindowCosts& windows = simulator.windows();
    const Link& link = simulator.link();
    double least_ms = windows.first_slice.empty() ? kNever : 0.0;
    for (std::size_t mode = 0; mode < windows.n_modes; ++mode) {
        for (const std::int32_t cell : windows.row(0, mode)) {
            double trip_ms = 0.0;
            for (std::size_t s = 0; cell >= 0 && s < windows.costs.n_stages; ++s) {
                const PassCosts& cost = windows.costs.at(static_cast<std::size_t>(cell), s);
                trip_ms += cost.forward_ms + cost.backward_ms - cost.weight_ms;
                if (s + 1 < windows.costs.n_stages) {
                    trip_ms += 2 * (link.latency_ms + cost.boundary_bytes / link.bytes_per_ms);
                }
            }
            least_ms = cell >= 0 ? std::min(least_ms, trip_ms) : least_ms;
        }
    }
    return least_ms < kNever ? least_ms : 0.0;
}

}  // namespace

std::vector<std::vector<FoundPlan>> find_plans(std::span<ReplicaSimulator* const> simulators,
                                               std::span<const double> slowness, std::size_t effort,
                                               std::uint64_t seed) {
    std::deque<Search> searches;
    std::vector<Search*> of_tables;
    double best_ms = kNever, best_start_ms = kNever;
    for (ReplicaSimulator* simulator : simulators) {
        if (least_trip_ms(*simulator) > best_start_ms) {
            of_tables.push_back(nullptr);
            continue;
        }
        std::vector<Assignment> starts;
        for (ConstructedPlan& plan : construct_plans(*simulator, slowness)) {
            starts.push_back(std::move(plan.replicas));
        }
        Search& search = searches.emplace_back(*simulator, starts, slowness, seed);
        of_tables.push_back(&search);
        best_start_ms = std::min(best_start_ms, search.best_ms());
        search.improve(std::min(effort, kCompared));
        best_ms = std::min(best_ms, search.best_ms());
    }
    std::vector<std::vector<FoundPlan>> found;
    for (Search* search : of_tables) {
        if (search != nullptr && search->best_ms() <= kNear * best_ms) {
            search->improve(effort);
        }
        found.push_back(search == nullptr ? std::vector<FoundPlan>{} : search->found());
    }
    return found;
}

}  // namespace dynapipe
