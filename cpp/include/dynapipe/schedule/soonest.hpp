#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

namespace dynapipe {

/// Times of stages, of which the least is known: a tournament, in which every change is played
/// again up to the final. Of up to four stages, as most pipelines have, the least time is found
/// when it is asked for. Times are at least 0; they start as infinite.
class Soonest {
  public:
    explicit Soonest(std::size_t n_stages) {
        while (n_leaves_ < n_stages) {
            n_leaves_ *= 2;
        }
        players_.resize(2 * n_leaves_);
        for (std::size_t s = n_stages; s-- > 0;) {
            set(s, std::numeric_limits<double>::infinity());
        }
    }

    /// Time of a stage.
    [[nodiscard]] double operator[](std::size_t stage) const {
        return std::bit_cast<double>(players_[n_leaves_ + stage].time);
    }

    /// The stage with the least time; the first of equals.
    [[nodiscard]] std::size_t stage() const {
        return n_leaves_ == kFew ? first_of_few() : players_[1].stage;
    }

    void set(std::size_t stage, double ms) {
        std::size_t place = n_leaves_ + stage;
        Player winner{std::bit_cast<std::uint64_t>(ms), stage};
        players_[place] = winner;
        while (n_leaves_ > kFew && place > 1) {
            const Player other = players_[place ^ 1];
            // Bits in place of a branch, which would be mispredicted; the first stage wins a draw.
            const std::uint64_t loses = other.time < winner.time + (place & 1) ? kAllBits : 0;
            winner.time ^= (winner.time ^ other.time) & loses;
            winner.stage ^= (winner.stage ^ other.stage) & loses;
            place /= 2;
            players_[place] = winner;
        }
    }

  private:
    static constexpr std::size_t kFew = 4;
    static constexpr std::uint64_t kAllBits = std::numeric_limits<std::uint64_t>::max();

    /// Numbers of 64 bits compare like the times above 0 that they encode.
    struct Player {
        std::uint64_t time = kAllBits - 1;
        std::size_t stage = 0;
    };

    /// Two pairs, which need not wait for each other.
    [[nodiscard]] std::size_t first_of_few() const {
        const Player* stages = &players_[kFew];
        const std::size_t low = stages[1].time < stages[0].time ? 1 : 0;
        const std::size_t high = stages[3].time < stages[2].time ? 3 : 2;
        return stages[high].time < stages[low].time ? high : low;
    }

    std::size_t n_leaves_ = kFew;
    std::vector<Player> players_;  ///< winners, the last at 1, and the stages from n_leaves_ on
};

}  // namespace dynapipe
