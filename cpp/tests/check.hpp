/// A test is a program: CHECK prints what failed, and `finish` returns the exit status.
#pragma once

#include <iostream>
#include <limits>

/// The time of what cannot run, and a limit that is none.
inline constexpr double kNever = std::numeric_limits<double>::infinity();

namespace check {

inline int failures = 0;

inline void that(bool holds, const char* what, const char* file, int line) {
    if (!holds) {
        ++failures;
        std::cerr << file << ':' << line << ": failed: " << what << '\n';
    }
}

[[nodiscard]] inline int finish() {
    std::cerr << (failures == 0 ? "passed\n" : "FAILED\n");
    return failures == 0 ? 0 : 1;
}

}  // namespace check

#define CHECK(condition) check::that((condition), #condition, __FILE__, __LINE__)
