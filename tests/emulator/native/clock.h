// Vector clocks of a grid, by block: a barrier copies its own block's counts and shares the rest.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

namespace emulated {

using Counts = std::shared_ptr<const std::vector<uint32_t>>;  // by thread of a block

// What a thread knows: of every thread of the grid, up to which of its counts it has seen.
class Clock {
 public:
  explicit Clock(size_t blocks) : blocks_(blocks) {}

  uint32_t Of(uint32_t block, uint32_t thread) const {
    const Counts& counts = blocks_[block];
    return counts == nullptr ? 0 : (*counts)[thread];
  }

  void Join(const Clock& other);

  // The counts of `block`, to be set.
  std::vector<uint32_t> Copied(uint32_t block, size_t threads) const {
    const Counts& counts = blocks_[block];
    return counts == nullptr ? std::vector<uint32_t>(threads) : *counts;
  }
  void Set(uint32_t block, std::vector<uint32_t> counts) {
    blocks_[block] = std::make_shared<const std::vector<uint32_t>>(std::move(counts));
  }

 private:
  std::vector<Counts> blocks_;  // null: nothing was seen
};

using SharedClock = std::shared_ptr<const Clock>;

}  // namespace emulated
