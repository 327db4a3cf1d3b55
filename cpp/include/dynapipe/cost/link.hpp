#pragma once

namespace dynapipe {

/// A connection between neighbouring stages: n bytes take latency_ms + n / bytes_per_ms.
struct Link {
    double latency_ms;
    double bytes_per_ms;
    bool full_duplex;  ///< whether both directions can be used at the same time
};

}  // namespace dynapipe
