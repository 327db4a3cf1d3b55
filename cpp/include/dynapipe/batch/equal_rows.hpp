#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

namespace dynapipe {

/// Size of a micro-batch as cost models look it up: equal rows, of packed ones not always whole.
struct MicroBatchShape {
    double n_rows;
    double row_tokens;
    double target_tokens;  ///< 0 in decoder-only models
    double input_rows;     ///< rows of the parts that only inputs pass through

    friend bool operator==(const MicroBatchShape&, const MicroBatchShape&) = default;
};

/// Sizes of many micro-batches, column by column.
struct Shapes {
    std::vector<double> n_rows, row_tokens, target_tokens, input_rows;

    [[nodiscard]] std::size_t size() const { return n_rows.size(); }
    [[nodiscard]] MicroBatchShape at(std::size_t i) const {
        return {n_rows[i], row_tokens[i], target_tokens[i], input_rows[i]};
    }
    void push_back(const MicroBatchShape& shape) {
        n_rows.push_back(shape.n_rows);
        row_tokens.push_back(shape.row_tokens);
        target_tokens.push_back(shape.target_tokens);
        input_rows.push_back(shape.input_rows);
    }
};

/// Rows whose costs a model knows in every layout and mode.
struct KnownRows {
    double most = std::numeric_limits<double>::infinity();  ///< largest number of rows
    double least_tokens = 1;    ///< length below which rows cost as much as at it
    double longest_tokens = 1;  ///< largest length; 1 if any is known
};

/// Sums over the samples of a packed micro-batch. A sample has a positions of input and b of
/// target; in a decoder-only model, a of both.
struct SampleSums {
    std::int64_t n_documents =
        0;                    ///< texts that attend to themselves only: two of a preference pair
    std::int64_t inputs = 0;  ///< sum of a
    std::int64_t input_pairs = 0;   ///< pairs of tokens of one text: sum of a^2, less those of a
                                    ///< preference pair that do not see each other
    std::int64_t targets = 0;       ///< sum of b
    std::int64_t target_pairs = 0;  ///< pairs of a target and what it attends to: sum of b (a + b)
};

/// Tokens of the texts that fill packed rows up.
inline constexpr std::int64_t kFillTokens = 128;

/// Equal rows by which a packed micro-batch is looked up.
///
/// Times and bytes depend on tokens T and on pairs P of tokens of one text; T^2 / P rows of P / T
/// tokens have the same T and P. There are never more rows than texts, or than are known, nor
/// shorter ones: rows are then fewer and longer; they have the same T but overestimate P.
/// Texts that fill rows up count where rows would otherwise be longer than is known.
///
/// In an encoder-decoder model that holds for the encoder's parts. Those of the decoder depend on
/// tokens T of targets, S of inputs, and pairs P of a target and what it attends to: T (T + S) / P
/// rows, another number, have the same T, S and P. Texts that fill up a row of targets attend to
/// themselves and to the same number of inputs.
///
/// @param row_tokens     length of the row, or of the row of inputs, fill included
/// @param target_tokens  length of the row of targets; 0 if there is none
MicroBatchShape equal_rows(std::int64_t row_tokens, std::int64_t target_tokens,
                           const SampleSums& sums, const KnownRows& known);

}  // namespace dynapipe
