#pragma once

#include <cstddef>
#include <cstdint>

namespace dynapipe {

/// SplitMix64 generator: integer arithmetic only, so results are the same on every machine.
class Random {
  public:
    explicit Random(std::uint64_t seed) : state_(seed) {}

    /// A random integer in [0, n).
    std::size_t below(std::size_t n) { return static_cast<std::size_t>(next() % n); }

    /// One of 2^53 equally likely numbers in [0, 1).
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

}  // namespace dynapipe
