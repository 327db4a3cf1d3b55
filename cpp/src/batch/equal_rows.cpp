#include "dynapipe/batch/equal_rows.hpp"

#include <algorithm>

namespace dynapipe {
namespace {

/// The wanted number of rows, limited to what is known.
double limited(double wanted, double tokens, double n_texts, const KnownRows& known) {
    const double most = std::min({n_texts, known.most, tokens / known.least_tokens});
    return std::max(std::min(wanted, most), 1.0);
}

}  // namespace

MicroBatchShape equal_rows(std::int64_t row_tokens, std::int64_t target_tokens,
                           const SampleSums& sums, const KnownRows& known) {
    const std::int64_t n_filling = (row_tokens - sums.inputs) / kFillTokens;
    const auto tokens = static_cast<double>(row_tokens);
    const auto n_documents = static_cast<double>(sums.n_documents);
    const auto pairs =
        static_cast<double>(sums.input_pairs + n_filling * kFillTokens * kFillTokens);
    const double n_needed =
        std::min(static_cast<double>(sums.n_documents + n_filling), tokens / known.longest_tokens);
    const double n_rows =
        limited(tokens * (tokens / pairs), tokens, std::max(n_documents, n_needed), known);
    if (target_tokens == 0) {
        return {n_rows, tokens / n_rows, 0.0, n_rows};
    }
    const std::int64_t n_target_filling = (target_tokens - sums.targets) / kFillTokens;
    const auto inputs = static_cast<double>(sums.inputs + n_filling * kFillTokens);
    const auto targets = static_cast<double>(sums.targets + n_target_filling * kFillTokens);
    const auto target_pairs =
        static_cast<double>(sums.target_pairs + n_target_filling * 2 * kFillTokens * kFillTokens);
    const auto all_targets = static_cast<double>(target_tokens);
    const double target_rows = limited(targets * ((targets + inputs) / target_pairs), all_targets,
                                       std::numeric_limits<double>::infinity(), known);
    return {target_rows, tokens / target_rows, all_targets / target_rows, n_rows};
}

}  // namespace dynapipe
