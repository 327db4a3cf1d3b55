#include "dynapipe/improve_plan.hpp"

#include <algorithm>
#include <cmath>
#include <optional>

namespace dynapipe {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();
/// The threshold of acceptance at the start, as a share of the makespan per micro-batch: what a
/// move changes is of the order of one micro-batch, however many there are.
constexpr double kFirstThreshold = 0.04;

/// SplitMix64: integers only, alike on every machine.
class Random {
  public:
    explicit Random(std::uint64_t seed) : state_(seed) {}

    /// A number in [0, n).
    std::size_t below(std::size_t n) { return static_cast<std::size_t>(next() % n); }

    /// A number in [0, 1), of 2^53 equally likely ones.
    double share() { return static_cast<double>(next() >> 11U) * 0x1.0p-53; }

  private:
    std::uint64_t next() {
        state_ += 0x9e3779b97f4a7c15ULL;
        std::uint64_t z = state_;
        z = (z ^ (z >> 30U)) * 0xbf58476d1ce4e5b9ULL;
        z = (z ^ (z >> 27U)) * 0x94d049bb133111ebULL;
        return z ^ (z >> 31U);
    }

    std::uint64_t state_;
};

/// Where a window is: its replica and its place in the order.
struct Place {
    std::size_t replica;
    std::size_t position;
};

class Search {
  public:
    Search(const WindowCosts& windows, const Assignment& start, std::span<const double> limit_bytes,
           const Link& link, std::uint64_t seed)
        : windows_(windows),
          scheduler_(windows.costs, limit_bytes, link, windows.row_of_sample.size()),
          random_(seed),
          now_(start),
          now_ms_(start.size()) {
        for (std::size_t r = 0; r < now_.size(); ++r) {
            now_ms_[r] = makespan_ms(now_[r], kNever);
        }
    }

    Improvement run(std::size_t n_moves) {
        Improvement best{now_, slowest_ms()};
        const double first_threshold_ms =
            kFirstThreshold * best.makespan_ms / static_cast<double>(longest_replica());
        for (std::size_t n = 0; n < n_moves; ++n) {
            const double left = static_cast<double>(n_moves - n) / static_cast<double>(n_moves);
            accept_or_undo(first_threshold_ms * left * left * random_.share());
            if (slowest_ms() < best.makespan_ms) {
                best = {now_, slowest_ms()};
            }
        }
        return best;
    }

  private:
    [[nodiscard]] std::int32_t cell(const Window& window) const {
        return windows_.cell(window.first, window.size, window.mode);
    }

    [[nodiscard]] bool fits(const Window& window) const {
        return window.size >= 1 && window.size <= windows_.max_samples && cell(window) >= 0;
    }

    double makespan_ms(const std::vector<Window>& replica, double give_up_ms) {
        list_.clear();
        for (const Window& window : replica) {
            list_.push_back(static_cast<std::uint32_t>(cell(window)));
        }
        return scheduler_.run(list_, give_up_ms);
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

    /// Makes one random move; takes it back unless no replica ends later than the slowest now,
    /// give or take a threshold.
    void accept_or_undo(double threshold_ms) {
        changed_.clear();
        if (!move()) {
            restore();
            return;
        }
        const double give_up_ms = slowest_ms() + threshold_ms;
        for (Saved& saved : changed_) {
            const std::vector<Window>& replica = now_[saved.replica];
            const double ms = replica.empty() ? kNever : makespan_ms(replica, give_up_ms);
            if (ms > give_up_ms) {
                restore();
                return;
            }
            now_ms_[saved.replica] = ms;
        }
    }

    /// A replica as it was before the move.
    struct Saved {
        std::size_t replica;
        std::vector<Window> windows;
        double ms;
    };

    std::vector<Window>& change(std::size_t replica) {
        for (const Saved& saved : changed_) {
            if (saved.replica == replica) {
                return now_[replica];
            }
        }
        changed_.push_back({replica, now_[replica], now_ms_[replica]});
        return now_[replica];
    }

    void restore() {
        for (Saved& saved : changed_) {
            now_[saved.replica] = std::move(saved.windows);
            now_ms_[saved.replica] = saved.ms;
        }
        changed_.clear();
    }

    /// Changes the plan at random; false if the change is not possible.
    bool move() {
        const std::size_t kind = random_.below(windows_.n_modes > 1 ? 10 : 8);
        switch (kind) {
            case 0:
            case 1:
                return relocate();
            case 2:
                return swap();
            case 3:
            case 4:
            case 5:
                return shift();
            case 6:
                return split();
            case 7:
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
        std::swap(change(a.replica)[a.position], change(b.replica)[b.position]);
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
        both.size += now_[b->replica][b->position].size;
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
    std::vector<double> now_ms_;  ///< per replica
    std::vector<Saved> changed_;
    std::vector<std::uint32_t> list_;
};

}  // namespace

Improvement improve_plan(const WindowCosts& windows, const Assignment& start,
                         std::span<const double> limit_bytes, const Link& link, std::size_t n_moves,
                         std::uint64_t seed) {
    return Search(windows, start, limit_bytes, link, seed).run(n_moves);
}

}  // namespace dynapipe
