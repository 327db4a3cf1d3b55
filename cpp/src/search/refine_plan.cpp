#include "dynapipe/search/refine_plan.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "dynapipe/search/arrange_windows.hpp"

namespace dynapipe {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();
/// Shapes of orders that are tried, see `arrange`.
constexpr std::array kRises = {0.3, 0.5, 0.7};
/// Number of windows at the beginning that may be split.
constexpr std::size_t kMaxFirstWindows = 4;
/// The share of samples that then come first: work grows by about half from one window to the next,
/// so that each arrives when the slowest stage has worked off those before it.
constexpr double kFirstShare = 0.35;

class Refiner {
  public:
    Refiner(const PricedCutter& cutter, ReplicaSimulator& simulator)
        : windows_(simulator.windows()), cutter_(cutter), simulator_(simulator) {}

    double refine(std::vector<Window>& replica);

  private:
    bool try_rise(double rise, std::vector<Window>& windows, std::vector<Window>& best,
                  double& best_ms);
    bool split_first(std::vector<Window>& replica, double& best_ms);
    double best_makespan_ms(const std::vector<Window>& replica, double give_up_ms) {
        return simulator_.best_makespan_ms(replica, give_up_ms);
    }

    const WindowCosts& windows_;
    const PricedCutter& cutter_;
    ReplicaSimulator& simulator_;
};

/// Finds the best order and modes of a replica: those of a price, but for the longest window, whose
/// way through the pipeline may be what the others wait for. They are tried one after the other, as
/// every shape at every price would take several times what the search takes. Returns its makespan.
double Refiner::refine(std::vector<Window>& replica) {
    double best_ms = best_makespan_ms(replica, kNever);
    const std::vector<Window> given = replica;
    double rise = kEvenRise;
    for (const double each : kRises) {
        std::vector<Window> shaped = given;
        rise = try_rise(each, shaped, replica, best_ms) ? each : rise;
    }
    for (const double price : kMemoryPrices) {
        std::vector<Window> repriced = given;
        for (Window& window : repriced) {
            cutter_.choose_mode(window, price);
        }
        if (repriced != given) {
            try_rise(rise, repriced, replica, best_ms);
        }
    }
    for (std::uint32_t mode = 0; mode < windows_.n_modes; ++mode) {
        std::vector<Window> changed = replica;
        Window& longest = *std::max_element(changed.begin(), changed.end(),
                                            [&](const Window& a, const Window& b) {
                                                return cutter_.work_ms(a) < cutter_.work_ms(b);
                                            });
        longest.mode = mode;
        if (changed != replica && windows_.cell(longest.first, longest.size, mode) >= 0) {
            try_rise(rise, changed, replica, best_ms);
        }
    }
    while (split_first(replica, best_ms)) {
    }
    return best_ms;
}

/// Arranges some windows, and keeps them if they are better than the best so far. Returns whether
/// they are the best now.
bool Refiner::try_rise(double rise, std::vector<Window>& windows, std::vector<Window>& best,
                       double& best_ms) {
    arrange(windows, cutter_, rise);
    if (windows == best) {
        return true;
    }
    const double ms = best_makespan_ms(windows, best_ms);
    const bool is_better = ms < best_ms;
    if (is_better) {
        best_ms = ms;
        best = windows;
    }
    return is_better;
}

/// Splits one of the first windows, where that helps most; its last samples, the shortest, come
/// first. Until a first window has passed the stages before it, the slowest stage waits, and for
/// longer the larger it is. Returns false, with nothing changed, if no split helps.
bool Refiner::split_first(std::vector<Window>& replica, double& best_ms) {
    const std::vector<Window> given = replica;
    for (std::size_t i = 0; i < std::min(kMaxFirstWindows, given.size()); ++i) {
        Window rest = given[i];
        Window first = rest;
        first.size = static_cast<std::uint32_t>(std::ceil(kFirstShare * rest.size));
        rest.size -= first.size;
        first.first += rest.size;
        const bool fits = rest.size > 0 && windows_.cell(rest.first, rest.size, rest.mode) >= 0 &&
                          windows_.cell(first.first, first.size, first.mode) >= 0;
        if (!fits) {
            continue;
        }
        std::vector<Window> changed = given;
        changed[i] = rest;
        changed.insert(changed.begin() + static_cast<std::ptrdiff_t>(i), first);
        const double ms = best_makespan_ms(changed, best_ms);
        if (ms < best_ms) {
            best_ms = ms;
            replica = std::move(changed);
        }
    }
    return replica != given;
}

}  // namespace

double refine_replica(const PricedCutter& cutter, ReplicaSimulator& simulator,
                      std::vector<Window>& replica) {
    return Refiner(cutter, simulator).refine(replica);
}

}  // namespace dynapipe
