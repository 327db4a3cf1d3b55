#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <vector>

#include "dynapipe/batch/window_costs.hpp"
#include "dynapipe/search/random.hpp"

namespace dynapipe {

/// A replica of a plan that is being improved.
struct Replica {
    std::vector<Window> windows;  ///< in the order in which they enter the pipeline
    bool alternates = false;      ///< see ListScheduler
    double makespan_ms = std::numeric_limits<double>::infinity();
};

/// Random moves of a plan; the last move can be undone.
///
/// A move changes one or two replicas. After it, every sample is still in exactly one window that
/// may be used, and no replica is empty. An index from first samples to windows is kept up to date,
/// so the time of a move does not grow with the number of micro-batches.
class PlanMoves {
  public:
    using Move = bool (PlanMoves::*)();
    struct WeightedMove {
        std::size_t weight;
        Move move;
    };
    /// All moves and their relative frequencies; those after kMovesOfOneMode need several modes.
    static const std::array<WeightedMove, 6> kMoves;
    static constexpr std::size_t kMovesOfOneMode = 5;

    PlanMoves(const WindowCosts& windows, std::uint64_t seed);

    /// Starts from a plan whose windows hold every sample once; no replica is empty.
    void begin(std::vector<Replica> replicas);

    /// Makes a random move. Returns false, with nothing changed, if the drawn move is impossible.
    bool make_any();
    bool make(Move move);

    /// Keeps the last move.
    void accept();
    /// Reverts the last move.
    void undo();

    [[nodiscard]] const std::vector<Replica>& replicas() const { return now_; }
    [[nodiscard]] double& makespan_ms(std::size_t replica) { return now_[replica].makespan_ms; }
    /// The replicas that the last move changed.
    [[nodiscard]] std::span<const std::size_t> changed() const {
        return {changed_.data(), n_changed_};
    }
    [[nodiscard]] double random_share() { return random_.share(); }
    [[nodiscard]] std::uint32_t microbatch(const Window& window) const {
        return windows_.microbatch(window);
    }

    bool relocate();
    bool swap();
    bool shift();
    bool split();
    bool join();
    bool change_mode();

  private:
    struct Place {
        std::size_t replica;
        std::size_t position;
    };

    [[nodiscard]] bool fits(const Window& window) const;
    Place any_place();
    std::size_t any_replica();
    [[nodiscard]] const Window& at(const Place& place) const {
        return now_[place.replica].windows[place.position];
    }
    [[nodiscard]] std::optional<Place> starting_at(std::size_t first) const;
    Replica& change(std::size_t replica);
    void insert_anywhere(std::size_t replica, const Window& window);
    void index(std::size_t replica);

    WindowCosts windows_;
    Random random_;
    std::vector<Replica> now_;
    std::vector<Place> place_of_first_;     ///< per sample, place of the window that begins with it
    std::array<Replica, 2> before_;         ///< copies for undo(); kept to avoid allocation
    std::array<std::size_t, 2> changed_{};  ///< a move changes at most two
    std::size_t n_changed_ = 0;
};

}  // namespace dynapipe
