#include "clock.h"

#include <algorithm>

namespace emulated {

void Clock::Join(const Clock& other) {
  for (size_t block = 0; block < blocks_.size(); ++block) {
    const Counts& theirs = other.blocks_[block];
    Counts& ours = blocks_[block];
    if (theirs == nullptr || theirs == ours) continue;
    if (ours == nullptr) {
      ours = theirs;
      continue;
    }
    auto less = [](uint32_t left, uint32_t right) { return left <= right; };
    if (std::equal(theirs->begin(), theirs->end(), ours->begin(), less)) continue;
    std::vector<uint32_t> both(*ours);
    for (size_t i = 0; i < both.size(); ++i) both[i] = std::max(both[i], (*theirs)[i]);
    ours = std::make_shared<const std::vector<uint32_t>>(std::move(both));
  }
}

}  // namespace emulated
