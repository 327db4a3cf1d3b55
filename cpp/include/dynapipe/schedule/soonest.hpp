#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

namespace dynapipe {

/// Times of stages, of which the least is known. Times are at least 0; they start as infinite.
class Soonest {
  public:
    explicit Soonest(std::size_t n_stages)
        : times_((n_stages + kFour - 1) / kFour * kFour, kNever) {}

    /// Time of a stage.
    [[nodiscard]] double operator[](std::size_t stage) const {
        return std::bit_cast<double>(times_[stage]);
    }

    /// The stage with the least time; the first of equals. Four are compared in pairs that need not
    /// wait for each other.
    [[nodiscard]] std::size_t stage() const {
        std::size_t soonest = 0;
        for (std::size_t s = 0; s < times_.size(); s += kFour) {
            const std::uint64_t* four = &times_[s];
            const std::size_t low = four[1] < four[0] ? 1 : 0;
            const std::size_t high = four[3] < four[2] ? 3 : 2;
            const std::size_t first = s + (four[high] < four[low] ? high : low);
            soonest = times_[first] < times_[soonest] ? first : soonest;
        }
        return soonest;
    }

    void set(std::size_t stage, double ms) { times_[stage] = std::bit_cast<std::uint64_t>(ms); }

  private:
    static constexpr std::size_t kFour = 4;
    static constexpr auto kNever =
        std::bit_cast<std::uint64_t>(std::numeric_limits<double>::infinity());

    std::vector<std::uint64_t> times_;  ///< as integers, which compare like the times above 0
};

}  // namespace dynapipe
