#include "dynapipe/improve_plan.hpp"

#include <algorithm>
#include <array>
#include <numeric>
#include <optional>
#include <stdexcept>

#include "dynapipe/list_scheduler.hpp"
#include "dynapipe/random.hpp"

namespace dynapipe {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();
/// The threshold of acceptance at the start, as a share of the makespan per micro-batch: what a
/// move changes is of the order of one micro-batch, however many there are.
constexpr double kFirstThreshold = 0.02;
/// How much of what is minimised is the mean of the replicas' ends; the rest is the latest.
constexpr double kMeanShare = 0.2;
/// What a move costs that is not simulated, in passes.
constexpr std::size_t kMoveEffort = 4;

/// Where a window is: its replica and its place in the order.
struct Place {
    std::size_t replica;
    std::size_t position;
};

class Search {
  public:
    Search(const WindowCosts& windows, std::span<const double> limit_bytes, const Link& link,
           bool split_backward, std::uint64_t seed)
        : windows_(windows),
          scheduler_(windows.costs, limit_bytes, link, windows.n_samples(), split_backward),
          random_(seed) {}

    Improvement run(const Assignment& start, std::size_t effort) {
        begin(start);
        Improvement best{now_, slowest_ms(), 0};
        const double first_threshold_ms =
            kFirstThreshold * best.makespan_ms / static_cast<double>(longest_replica());
        const std::size_t begun = scheduler_.effort();
        for (;; ++best.n_moves) {
            const std::size_t used = scheduler_.effort() - begun + kMoveEffort * best.n_moves;
            if (used >= effort) {
                return best;
            }
            const double left = 1.0 - static_cast<double>(used) / static_cast<double>(effort);
            accept_or_undo(first_threshold_ms * left * left * random_.share());
            if (slowest_ms() < best.makespan_ms) {
                best.replicas = now_;
                best.makespan_ms = slowest_ms();
            }
        }
    }

  private:
    void begin(const Assignment& start) {
        now_ = start;
        now_ms_.clear();
        recordings_.resize(now_.size());
        for (std::size_t r = 0; r < now_.size(); ++r) {
            now_ms_.push_back(makespan_ms(r, kNever));
        }
    }

    [[nodiscard]] std::int32_t cell(const Window& window) const {
        return windows_.cell(window.first, window.size, window.mode);
    }

    [[nodiscard]] bool fits(const Window& window) const {
        return window.size >= 1 && window.size <= windows_.max_samples && cell(window) >= 0;
    }

    double makespan_ms(std::size_t replica, double give_up_ms) {
        list_.clear();
        for (const Window& window : now_[replica]) {
            list_.push_back(static_cast<std::uint32_t>(cell(window)));
        }
        return scheduler_.run(list_, give_up_ms, recordings_[replica]);
    }

    /// The most micro-batches of a replica.
    [[nodiscard]] std::size_t longest_replica() const {
        std::size_t n = 0;
        for (const std::vector<Window>& replica : now_) {
            n = std::max(n, replica.size());
        }
        return n;
    }

    [[nodiscard]] double slowest_ms() const {
        return *std::max_element(now_ms_.begin(), now_ms_.end());
    }

    /// What is minimised.
    [[nodiscard]] double badness() const {
        return (1 - kMeanShare) * slowest_ms() +
               mean_weight() * std::accumulate(now_ms_.begin(), now_ms_.end(), 0.0);
    }

    [[nodiscard]] double mean_weight() const {
        return kMeanShare / static_cast<double>(now_ms_.size());
    }

    /// Makes one random move; takes it back if the plan becomes worse by more than a threshold.
    void accept_or_undo(double threshold_ms) {
        n_changed_ = 0;
        const double limit = badness() + threshold_ms;
        if (!move() || !simulate_changed(limit)) {
            restore();
        }
    }

    /// False as soon as the plan is certain to be worse than a limit.
    bool simulate_changed(double limit) {
        for (std::size_t i = 0; i < n_changed_; ++i) {
            now_ms_[changed_[i].replica] = 0.0;
        }
        for (std::size_t i = 0; i < n_changed_; ++i) {
            const std::size_t r = changed_[i].replica;
            const double give_up_ms = latest_end_ms(limit);
            now_ms_[r] = now_[r].empty() ? kNever : makespan_ms(r, give_up_ms);
            if (now_ms_[r] > give_up_ms) {
                return false;
            }
        }
        return true;
    }

    /// When a replica may end at the latest for the plan to keep within a limit, if replicas that
    /// are not simulated yet, this one among them, count as 0.
    [[nodiscard]] double latest_end_ms(double limit) const {
        const double others = mean_weight() * std::accumulate(now_ms_.begin(), now_ms_.end(), 0.0);
        const double as_slowest_ms = (limit - others) / (1 - kMeanShare + mean_weight());
        if (as_slowest_ms >= slowest_ms()) {
            return as_slowest_ms;
        }
        return (limit - others - (1 - kMeanShare) * slowest_ms()) / mean_weight();
    }

    /// A replica as it was before the move.
    struct Saved {
        std::size_t replica;
        std::vector<Window> windows;
        double ms;
    };

    std::vector<Window>& change(std::size_t replica) {
        const auto end = changed_.begin() + static_cast<std::ptrdiff_t>(n_changed_);
        const bool is_saved = std::any_of(
            changed_.begin(), end, [&](const Saved& saved) { return saved.replica == replica; });
        if (!is_saved) {
            Saved& saved = changed_[n_changed_++];
            saved.replica = replica;
            saved.windows = now_[replica];
            saved.ms = now_ms_[replica];
        }
        return now_[replica];
    }

    void restore() {
        for (std::size_t i = 0; i < n_changed_; ++i) {
            Saved& saved = changed_[i];
            std::swap(now_[saved.replica], saved.windows);
            now_ms_[saved.replica] = saved.ms;
        }
    }

    /// Changes the plan at random; false if the change is not possible.
    bool move() {
        const std::size_t kind = random_.below(windows_.n_modes > 1 ? 11 : 9);
        switch (kind) {
            case 0:
            case 1:
                return relocate();
            case 2:
            case 3:
                return swap();
            case 4:
            case 5:
            case 6:
                return shift();
            case 7:
                return split();
            case 8:
                return join();
            default:
                return change_mode();
        }
    }

    /// Any micro-batch; of the slowest replica every other time.
    Place any() {
        std::size_t replica = random_.below(now_.size());
        if (now_.size() > 1 && random_.below(2) == 0) {
            replica = static_cast<std::size_t>(std::max_element(now_ms_.begin(), now_ms_.end()) -
                                               now_ms_.begin());
        }
        return {replica, random_.below(now_[replica].size())};
    }

    bool relocate() {
        const Place from = any();
        const std::size_t to = random_.below(now_.size());
        if (from.replica != to && now_[from.replica].size() == 1) {
            return false;
        }
        std::vector<Window>& source = change(from.replica);
        const Window window = source[from.position];
        source.erase(source.begin() + static_cast<std::ptrdiff_t>(from.position));
        insert_anywhere(to, window);
        return true;
    }

    void insert_anywhere(std::size_t replica, const Window& window) {
        std::vector<Window>& target = change(replica);
        const std::size_t position = random_.below(target.size() + 1);
        target.insert(target.begin() + static_cast<std::ptrdiff_t>(position), window);
    }

    bool swap() {
        const Place a = any();
        const std::size_t replica = random_.below(now_.size());
        const Place b{replica, random_.below(now_[replica].size())};
        if (a.replica == b.replica && a.position == b.position) {
            return false;
        }
        Window& one = change(a.replica)[a.position];
        Window& other = change(b.replica)[b.position];
        std::swap(one, other);
        return true;
    }

    /// The micro-batch that starts with a sample.
    [[nodiscard]] std::optional<Place> starting_at(std::size_t first) const {
        for (std::size_t r = 0; r < now_.size(); ++r) {
            for (std::size_t p = 0; p < now_[r].size(); ++p) {
                if (now_[r][p].first == first) {
                    return Place{r, p};
                }
            }
        }
        return std::nullopt;
    }

    /// Moves some samples over the border between two neighbouring micro-batches.
    bool shift() {
        const Place a = any();
        Window left = now_[a.replica][a.position];
        const std::optional<Place> b = starting_at(left.first + left.size);
        if (!b) {
            return false;
        }
        Window right = now_[b->replica][b->position];
        const std::size_t both = left.size + right.size;
        if (both == 2) {
            return false;
        }
        const std::size_t step = 1 + random_.below(random_.below(2) == 0 ? 2 : both - 1);
        const bool grow = random_.below(2) == 0;
        const std::size_t size = grow ? left.size + step : left.size - step;
        if (size - 1 >= both - 1) {  // also when left.size < step
            return false;
        }
        left.size = static_cast<std::uint32_t>(size);
        right.first = left.first + left.size;
        right.size = static_cast<std::uint32_t>(both - size);
        if (!fits(left) || !fits(right)) {
            return false;
        }
        change(a.replica)[a.position] = left;
        change(b->replica)[b->position] = right;
        return true;
    }

    bool split() {
        const Place place = any();
        Window left = now_[place.replica][place.position];
        if (left.size == 1) {
            return false;
        }
        Window right = left;
        left.size = static_cast<std::uint32_t>(1 + random_.below(left.size - 1));
        right.first += left.size;
        right.size -= left.size;
        if (!fits(left) || !fits(right)) {
            return false;
        }
        if (random_.below(2) == 0) {
            std::swap(left, right);
        }
        change(place.replica)[place.position] = left;
        insert_anywhere(random_.below(now_.size()), right);
        return true;
    }

    bool join() {
        const Place a = any();
        Window both = now_[a.replica][a.position];
        const std::optional<Place> b = starting_at(both.first + both.size);
        if (!b || (b->replica != a.replica && now_[b->replica].size() == 1)) {
            return false;
        }
        const Window& behind = now_[b->replica][b->position];
        both.size += behind.size;
        both.mode = random_.below(2) == 0 ? both.mode : behind.mode;
        if (!fits(both)) {
            return false;
        }
        change(a.replica)[a.position] = both;
        std::vector<Window>& other = change(b->replica);
        other.erase(other.begin() + static_cast<std::ptrdiff_t>(b->position));
        return true;
    }

    bool change_mode() {
        const Place place = any();
        Window window = now_[place.replica][place.position];
        window.mode = static_cast<std::uint32_t>(random_.below(windows_.n_modes));
        if (!fits(window)) {
            return false;
        }
        change(place.replica)[place.position] = window;
        return true;
    }

    WindowCosts windows_;
    ListScheduler scheduler_;
    Random random_;
    Assignment now_;
    std::vector<double> now_ms_;    ///< per replica
    std::array<Saved, 2> changed_;  ///< no move changes more; kept, so that nothing is allocated
    std::size_t n_changed_ = 0;
    std::vector<ListScheduler::Recording> recordings_;  ///< per replica
    std::vector<std::uint32_t> list_;
};

}  // namespace

Improvement improve_plan(const WindowCosts& windows, std::span<const Assignment> starts,
                         std::span<const double> limit_bytes, const Link& link, bool split_backward,
                         std::size_t effort, std::uint64_t seed) {
    Search search(windows, limit_bytes, link, split_backward, seed);
    Improvement best{{}, kNever, 0};
    std::size_t n_moves = 0;
    const auto improve = [&](const Assignment& start, std::size_t share) {
        Improvement found = search.run(start, share);
        n_moves += found.n_moves;
        if (found.makespan_ms < best.makespan_ms) {
            best = std::move(found);
        }
    };
    for (const Assignment& start : starts) {
        improve(start, effort / 2 / starts.size());
    }
    if (best.replicas.empty()) {
        throw std::invalid_argument("no start keeps within the limits of the stages");
    }
    const Assignment first = best.replicas;
    improve(first, effort - effort / 2);
    best.n_moves = n_moves;
    return best;
}

}  // namespace dynapipe
