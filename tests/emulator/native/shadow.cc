#include "shadow.h"

#include <algorithm>

#include "machine.h"

namespace emulated {

void AccessSet::Add(const Access& access) {
  if (!many_.empty()) {
    many_[access.thread] = access;
    return;
  }
  for (Access& other : few_) {
    if (other.thread == access.thread) {
      other = access;
      return;
    }
  }
  few_.push_back(access);
  if (few_.size() <= kFew) return;
  for (const Access& one : few_) many_[one.thread] = one;
  few_.clear();
}

const Access* AccessSet::Unordered(const Thread& thread) const {
  for (const Access& one : few_) {
    if (!Ordered(one, thread)) return &one;
  }
  for (const auto& [number, one] : many_) {
    if (!Ordered(one, thread)) return &one;
  }
  return nullptr;
}

Cell Cell::Copied() const {
  Cell made;
  made.write = write;
  made.read = read;
  made.initialised = initialised;
  if (sets != nullptr) made.sets = std::make_unique<Sets>(*sets);
  return made;
}

void Region::Refine(size_t finer) {
  std::vector<Cell> made;
  made.reserve(cells.size() * (granule / finer));
  for (const Cell& cell : cells) {
    for (size_t part = 0; part < granule / finer; ++part) made.push_back(cell.Copied());
  }
  cells = std::move(made);
  granule = finer;
}

bool Races(const Cell& cell, Use use, const Thread& thread, Conflict* with) {
  auto against = [&](const Access* access, Use other) {
    if (access == nullptr || access->now == 0 || Ordered(*access, thread)) return false;
    *with = {*access, other};
    return true;
  };
  const Cell::Sets* sets = cell.sets.get();
  if (against(&cell.write, Use::kWrite)) return true;
  if (use == Use::kWrite || use == Use::kAtomic || use == Use::kPost) {
    if (against(&cell.read, Use::kRead)) return true;
    if (sets != nullptr && against(sets->reads.Unordered(thread), Use::kRead)) return true;
  }
  if (sets == nullptr) return false;
  if (use == Use::kWrite && against(sets->polls.Unordered(thread), Use::kPoll)) return true;
  bool plain = use == Use::kRead || use == Use::kWrite;
  return plain && against(sets->atomics.Unordered(thread), Use::kAtomic);
}

void Remember(Cell& cell, Use use, const Access& access, const Thread& thread) {
  switch (use) {
    case Use::kRead:
      if (cell.read.now == 0 || Ordered(cell.read, thread)) {
        cell.read = access;
      } else {
        cell.more().reads.Add(access);
      }
      return;
    case Use::kWrite:
      cell.write = access;
      cell.read = {};
      cell.sets.reset();
      break;
    case Use::kPoll:
      cell.more().polls.Add(access);
      return;
    case Use::kAtomic:
    case Use::kPost:
      cell.more().atomics.Add(access);
      break;
  }
  cell.initialised = true;
}

}  // namespace emulated
