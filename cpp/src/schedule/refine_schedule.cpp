#include "dynapipe/schedule/refine_schedule.hpp"

#include <algorithm>
#include <limits>

#include "dynapipe/schedule/simulate.hpp"
#include "dynapipe/search/random.hpp"

namespace dynapipe {
namespace {

/// The search goes so often from the best schedule seen, each time with a threshold that sinks to
/// zero: from kWidest, a share of the makespan per micro-batch, down to kWidest / kWidths and anew.
constexpr std::size_t kRounds = 8;
constexpr std::size_t kWidths = 4;
constexpr double kWidest = 0.4;
/// Of so many moves one exchanges micro-batches.
constexpr std::size_t kExchangeEvery = 4;
constexpr double kNever = std::numeric_limits<double>::infinity();

class Refinement {
  public:
    Refinement(std::span<const PassCode> start, const StageCosts& costs,
               std::span<const double> limit_bytes, const Link& link, std::uint64_t seed,
               std::span<const double> reduce_ms)
        : costs_(costs),
          limit_bytes_(limit_bytes),
          reduce_ms_(reduce_ms),
          nothing_(costs.n_stages, 0.0),
          simulator_(costs, nothing_, link),
          random_(seed),
          n_passes_(start.size() / costs.n_stages),
          now_(start.begin(), start.end()) {}

    std::vector<PassCode> run(std::size_t n_moves) {
        const Timeline& timeline = simulator_.run(now_);
        now_ms_ = end_ms(timeline);
        best_ = now_;
        best_ms_ = now_ms_;
        const double share_ms =
            kWidest * timeline.makespan_ms / static_cast<double>(costs_.n_microbatches());
        for (std::size_t round = 0; round < kRounds; ++round) {
            now_ = best_;
            now_ms_ = best_ms_;
            go(n_moves / kRounds, share_ms / static_cast<double>(1 + round % kWidths));
        }
        return best_;
    }

  private:
    void go(std::size_t n_moves, double first_threshold_ms) {
        for (std::size_t n = 0; n < n_moves; ++n) {
            const double left = static_cast<double>(n_moves - n) / static_cast<double>(n_moves);
            const double give_up_ms = now_ms_ + first_threshold_ms * left * left * random_.share();
            if (random_.below(kExchangeEvery) == 0) {
                try_exchange(give_up_ms);
            } else {
                try_shift(give_up_ms);
            }
            if (now_ms_ < best_ms_) {
                best_ = now_;
                best_ms_ = now_ms_;
            }
        }
    }

    /// Whether the changed schedule is kept.
    bool accepts(double give_up_ms) {
        const Timeline& timeline = simulator_.run(now_, give_up_ms);
        const double ms = end_ms(timeline);
        if (!(ms <= give_up_ms)) {
            return false;
        }
        for (std::size_t s = 0; s < limit_bytes_.size(); ++s) {
            if (timeline.peak_bytes[s] > limit_bytes_[s]) {
                return false;
            }
        }
        now_ms_ = ms;
        return true;
    }

    /// When all gradients are reduced; infinite if not all passes have run.
    [[nodiscard]] double end_ms(const Timeline& timeline) const {
        double end_ms = timeline.makespan_ms;
        for (std::size_t s = 0; s < reduce_ms_.size() && end_ms < kNever; ++s) {
            end_ms = std::max(end_ms, timeline.end_ms[(s + 1) * n_passes_ - 1] + reduce_ms_[s]);
        }
        return end_ms;
    }

    /// Moves one pass of a stage over some others.
    void try_shift(double give_up_ms) {
        const std::size_t stage = random_.below(costs_.n_stages);
        const std::size_t from = random_.below(n_passes_);
        const std::size_t farthest = random_.below(2) == 0 ? 1 : costs_.n_stages + 1;
        const std::size_t distance = 1 + random_.below(farthest);
        const bool later = random_.below(2) == 0;
        if (later ? from + distance >= n_passes_ : from < distance) {
            return;
        }
        const auto first = now_.begin() + static_cast<std::ptrdiff_t>(stage * n_passes_ + from);
        const auto step = static_cast<std::ptrdiff_t>(distance);
        const auto passed = later ? first + 1 : first - step;
        const auto is_same = [first](PassCode code) {
            return microbatch_of(code) == microbatch_of(*first);
        };
        if (std::any_of(passed, passed + step, is_same)) {
            return;  // a micro-batch keeps its own order
        }
        const auto begin = later ? first : first - step;
        const auto end = begin + step + 1;
        std::rotate(begin, later ? begin + 1 : end - 1, end);
        if (!accepts(give_up_ms)) {
            std::rotate(begin, later ? end - 1 : begin + 1, end);
        }
    }

    /// Lets two micro-batches change places, on all or some stages, in all or one kind of pass.
    void try_exchange(double give_up_ms) {
        Exchange exchange{.a = random_.below(costs_.n_microbatches()),
                          .b = random_.below(costs_.n_microbatches()),
                          .from_stage = 0,
                          .to_stage = costs_.n_stages,
                          .only = random_.below(2 * kKinds)};
        if (random_.below(2) == 0) {
            exchange.from_stage = random_.below(costs_.n_stages);
            exchange.to_stage =
                exchange.from_stage + 1 + random_.below(costs_.n_stages - exchange.from_stage);
        }
        if (exchange.a == exchange.b) {
            return;
        }
        apply(exchange);
        if (!accepts(give_up_ms)) {
            apply(exchange);  // once more is back
        }
    }

    struct Exchange {
        std::size_t a;
        std::size_t b;
        std::size_t from_stage;
        std::size_t to_stage;
        std::size_t only;  ///< kind of pass; all if there is none of that number
    };

    void apply(const Exchange& exchange) {
        for (std::size_t k = exchange.from_stage * n_passes_; k < exchange.to_stage * n_passes_;
             ++k) {
            const PassKind kind = kind_of(now_[k]);
            const std::size_t i = microbatch_of(now_[k]);
            const bool meant =
                exchange.only >= kKinds || exchange.only == static_cast<std::size_t>(kind);
            if (meant && (i == exchange.a || i == exchange.b)) {
                now_[k] = pass_code(i == exchange.a ? exchange.b : exchange.a, kind);
            }
        }
    }

    StageCosts costs_;
    std::span<const double> limit_bytes_;
    std::span<const double> reduce_ms_;
    std::vector<double> nothing_;
    Simulator simulator_;
    Random random_;
    std::size_t n_passes_;
    std::vector<PassCode> now_;
    double now_ms_ = 0.0;
    std::vector<PassCode> best_;
    double best_ms_ = 0.0;
};

}  // namespace

std::vector<PassCode> refine_schedule(std::span<const PassCode> start, const StageCosts& costs,
                                      std::span<const double> limit_bytes, const Link& link,
                                      std::size_t n_moves, std::uint64_t seed,
                                      std::span<const double> reduce_ms) {
    return Refinement(start, costs, limit_bytes, link, seed, reduce_ms).run(n_moves);
}

}  // namespace dynapipe
