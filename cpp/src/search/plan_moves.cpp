#include "dynapipe/search/plan_moves.hpp"

#include <algorithm>

namespace dynapipe {
namespace {

constexpr std::size_t kNowhere = std::numeric_limits<std::size_t>::max();

}  // namespace

const std::array<PlanMoves::WeightedMove, 6> PlanMoves::kMoves = {{
    {4, &PlanMoves::relocate},
    {4, &PlanMoves::swap},
    {6, &PlanMoves::shift},
    {2, &PlanMoves::split},
    {2, &PlanMoves::join},
    {4, &PlanMoves::change_mode},
}};

PlanMoves::PlanMoves(const WindowCosts& windows, std::uint64_t seed)
    : windows_(windows), random_(seed) {}

void PlanMoves::begin(std::vector<Replica> replicas) {
    now_ = std::move(replicas);
    place_of_first_.assign(windows_.n_samples(), {kNowhere, 0});
    for (std::size_t r = 0; r < now_.size(); ++r) {
        index(r);
    }
}

bool PlanMoves::make_any() {
    const std::size_t n_kinds = windows_.n_modes > 1 ? kMoves.size() : kMovesOfOneMode;
    std::size_t n_tickets = 0;
    for (std::size_t i = 0; i < n_kinds; ++i) {
        n_tickets += kMoves[i].weight;
    }
    std::size_t ticket = random_.below(n_tickets);
    const WeightedMove* drawn = kMoves.data();
    for (; ticket >= drawn->weight; ++drawn) {
        ticket -= drawn->weight;
    }
    return make(drawn->move);
}

bool PlanMoves::make(Move move) {
    n_changed_ = 0;
    return (this->*move)();
}

void PlanMoves::accept() {
    for (std::size_t i = 0; i < n_changed_; ++i) {
        for (const Window& window : before_[i].windows) {
            place_of_first_[window.first].replica = kNowhere;
        }
    }
    for (const std::size_t r : changed()) {
        index(r);
    }
}

void PlanMoves::undo() {
    for (std::size_t i = 0; i < n_changed_; ++i) {
        std::swap(now_[changed_[i]], before_[i]);
    }
}

void PlanMoves::index(std::size_t replica) {
    const std::vector<Window>& windows = now_[replica].windows;
    for (std::size_t p = 0; p < windows.size(); ++p) {
        place_of_first_[windows[p].first] = {replica, p};
    }
}

Replica& PlanMoves::change(std::size_t replica) {
    const std::span<const std::size_t> known = changed();
    if (std::find(known.begin(), known.end(), replica) == known.end()) {
        before_[n_changed_] = now_[replica];
        changed_[n_changed_++] = replica;
    }
    return now_[replica];
}

bool PlanMoves::fits(const Window& window) const {
    return window.size >= 1 && windows_.cell(window.first, window.size, window.mode) >= 0;
}

/// Any; every other time the slowest.
std::size_t PlanMoves::any_replica() {
    const std::size_t drawn = random_.below(now_.size());
    if (now_.size() == 1 || random_.below(2) != 0) {
        return drawn;
    }
    const auto slowest = std::max_element(
        now_.begin(), now_.end(),
        [](const Replica& a, const Replica& b) { return a.makespan_ms < b.makespan_ms; });
    return static_cast<std::size_t>(slowest - now_.begin());
}

PlanMoves::Place PlanMoves::any_place() {
    const std::size_t replica = any_replica();
    return {replica, random_.below(now_[replica].windows.size())};
}

std::optional<PlanMoves::Place> PlanMoves::starting_at(std::size_t first) const {
    if (first == place_of_first_.size() || place_of_first_[first].replica == kNowhere) {
        return std::nullopt;
    }
    return place_of_first_[first];
}

/// Puts a micro-batch elsewhere.
bool PlanMoves::relocate() {
    const Place from = any_place();
    const std::size_t to = random_.below(now_.size());
    if (from.replica != to && now_[from.replica].windows.size() == 1) {
        return false;
    }
    const Window window = at(from);
    std::vector<Window>& source = change(from.replica).windows;
    source.erase(source.begin() + static_cast<std::ptrdiff_t>(from.position));
    insert_anywhere(to, window);
    return true;
}

void PlanMoves::insert_anywhere(std::size_t replica, const Window& window) {
    std::vector<Window>& target = change(replica).windows;
    const std::size_t position = random_.below(target.size() + 1);
    target.insert(target.begin() + static_cast<std::ptrdiff_t>(position), window);
}

/// Lets two micro-batches change places.
bool PlanMoves::swap() {
    const Place a = any_place();
    const std::size_t replica = random_.below(now_.size());
    const Place b{replica, random_.below(now_[replica].windows.size())};
    if (a.replica == b.replica && a.position == b.position) {
        return false;
    }
    Window& one = change(a.replica).windows[a.position];
    Window& other = change(b.replica).windows[b.position];
    std::swap(one, other);
    return true;
}

/// Moves some samples over the border between two neighbouring micro-batches.
bool PlanMoves::shift() {
    const Place a = any_place();
    Window left = at(a);
    const std::optional<Place> b = starting_at(left.first + left.size);
    if (!b) {
        return false;
    }
    Window right = at(*b);
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
    change(a.replica).windows[a.position] = left;
    change(b->replica).windows[b->position] = right;
    return true;
}

/// Cuts a micro-batch in two, and puts one of them anywhere.
bool PlanMoves::split() {
    const Place place = any_place();
    Window left = at(place);
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
    change(place.replica).windows[place.position] = left;
    insert_anywhere(random_.below(now_.size()), right);
    return true;
}

/// Makes one micro-batch of two neighbouring ones.
bool PlanMoves::join() {
    const Place a = any_place();
    Window both = at(a);
    const std::optional<Place> b = starting_at(both.first + both.size);
    if (!b || (b->replica != a.replica && now_[b->replica].windows.size() == 1)) {
        return false;
    }
    const Window& next = at(*b);
    both.size += next.size;
    both.mode = random_.below(2) == 0 ? both.mode : next.mode;
    if (!fits(both)) {
        return false;
    }
    change(a.replica).windows[a.position] = both;
    std::vector<Window>& other = change(b->replica).windows;
    other.erase(other.begin() + static_cast<std::ptrdiff_t>(b->position));
    return true;
}

bool PlanMoves::change_mode() {
    const Place place = any_place();
    Window window = at(place);
    window.mode = static_cast<std::uint32_t>(random_.below(windows_.n_modes));
    if (window == at(place) || !fits(window)) {
        return false;
    }
    change(place.replica).windows[place.position] = window;
    return true;
}

}  // namespace dynapipe
