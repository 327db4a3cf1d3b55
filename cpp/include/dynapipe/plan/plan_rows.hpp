#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace dynapipe {

/// Kind of an instruction. The numbers are those of stored plans (docs/formats.md).
enum class Kind : std::uint32_t {
    load = 0,
    forward = 1,
    backward = 2,
    start_send = 3,
    wait_send = 4,
    start_receive = 5,
    wait_receive = 6,
    reduce_gradients = 7,
    step_optimizer = 8,
    backward_input = 9,
    backward_weight = 10,
};

/// Kind of tensor that a transfer carries.
enum class Payload : std::uint32_t { activation = 0, gradient = 1 };

/// One instruction. Columns that its kind does not use are 0.
struct Row {
    Kind kind{};
    std::uint32_t microbatch = 0;
    Payload payload{};
    std::uint32_t peer = 0;
    std::uint32_t slot = 0;

    bool operator==(const Row&) const = default;
};

constexpr std::size_t kRowColumns = 5;
static_assert(sizeof(Row) == kRowColumns * sizeof(std::uint32_t));

/// The instructions of one stage in order, kept as integers, row-major (size, kRowColumns).
class Rows {
  public:
    explicit Rows(std::span<const std::uint32_t> entries) : entries_(entries) {}

    [[nodiscard]] std::size_t size() const { return entries_.size() / kRowColumns; }
    [[nodiscard]] Row operator[](std::size_t position) const {
        const std::uint32_t* row = &entries_[position * kRowColumns];
        return {static_cast<Kind>(row[0]), row[1], static_cast<Payload>(row[2]), row[3], row[4]};
    }

  private:
    std::span<const std::uint32_t> entries_;
};

}  // namespace dynapipe
