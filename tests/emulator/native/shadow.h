// Shadow memory: who touched each granule last, exactly, in FastTrack's manner.
#pragma once

#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

namespace emulated {

struct Thread;

// A poll and a post are a volatile read and write; an atomic is an update.
enum class Use : int32_t { kRead, kWrite, kPoll, kAtomic, kPost };

// `now` is the thread's count at the time; 0 stands for no access.
struct Access {
  uint32_t thread, now;
  int64_t place;
};

// Accesses of which none was seen by all that came after it; at most one a thread.
class AccessSet {
 public:
  void Add(const Access& access);
  const Access* Unordered(const Thread& thread) const;

 private:
  static constexpr size_t kFew = 16;
  std::vector<Access> few_;
  std::unordered_map<uint32_t, Access> many_;
};

struct Cell {
  Access write{}, read{};  // `read` stands alone while reads are ordered
  struct Sets {
    AccessSet reads, polls, atomics;
  };
  std::unique_ptr<Sets> sets;
  bool initialised = false;

  Sets& more() {
    if (sets == nullptr) sets = std::make_unique<Sets>();
    return *sets;
  }
  Cell Copied() const;
};

struct Conflict {
  Access access;
  Use use;
};

constexpr int32_t kNowhere = -1, kDynamic = -2, kStatic = -3;  // else the number of a buffer

// A stretch of memory that threads may touch. Cells are of 4 bytes until something narrower is
// touched.
struct Region {
  char* begin = nullptr;
  size_t bytes = 0;
  int32_t number = kNowhere;
  bool read_only = false, initialised = false;
  size_t granule = 4;
  std::vector<Cell> cells;

  bool Holds(const char* address) const { return address >= begin && address < begin + bytes; }
  void Refine(size_t finer);
};

// Whether `use` by `thread` races with an access that `cell` remembers.
bool Races(const Cell& cell, Use use, const Thread& thread, Conflict* with);
void Remember(Cell& cell, Use use, const Access& access, const Thread& thread);

}  // namespace emulated
