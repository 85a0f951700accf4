// The emulated grid: threads as fibers of one system thread, blocks, and what was found.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <set>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "clock.h"
#include "shadow.h"

struct uint3 {
  unsigned x, y, z;
};

namespace emulated {

constexpr uint32_t kWarp = 32;
constexpr size_t kStack = size_t{64} << 10;

// Numbers that the front end shares (findings.py).
enum class Kind : int32_t {
  kRace,
  kUninitialised,
  kOutOfBounds,
  kMisaligned,
  kReadOnly,
  kNotCoherent,
  kDivergentBarrier,
  kExited,
  kWrongMask,
  kDivergentWarp,
  kAbsentLane,
  kDeadlock,
  kTrap,
};
enum class Order : int32_t { kForward, kReverse, kRandom };
enum class State { kReady, kAtBarrier, kAtWarp, kAsleep, kDone };
enum class WarpOperation { kShuffle, kBallot, kSync };

// Mirrored by the front end. Of two threads the first is the one that was running.
struct Finding {
  Kind kind;
  int32_t memory;  // a region's number
  int64_t offset, bytes;
  int32_t blocks[2], threads[2];  // -1: none
  int64_t places[2];              // return addresses, from the kernel library's base; 0: none
  int32_t accesses[2];            // Access as numbers; -1: none
  uint32_t mask;
  int32_t count;  // threads that wait there (kDeadlock)
};

struct Block;

struct Thread {
  void* stack_pointer;
  char* stack;
  Block* block;
  uint3 index;
  uint32_t number;  // in its block
  State state = State::kReady;
  void* place = nullptr;  // where it waits
  // the warp operation it waits in
  WarpOperation operation;
  uint32_t mask;
  uint64_t value;
  int source;
  // vector clock: `now` is its own count, `seen` what it knows of the others
  uint32_t now = 1;
  SharedClock seen;
  SharedClock released[2];              // by its last fence, for Scope
  std::shared_ptr<Clock> acquirable[2];  // what its next fence lets it see, for Scope

  uint32_t lane() const { return number % kWarp; }
};

enum Scope { kOfDevice, kOfBlock };

// Shared memory of a block that does not run lies in `kept`; all blocks see it at the same address.
struct SharedPiece {
  char* at;
  std::vector<char> kept;
};

struct Block {
  uint32_t number;
  uint3 index;
  std::deque<Thread> threads;
  std::vector<uint32_t> ready;  // the last one runs next
  std::vector<uint32_t> asleep;
  uint32_t waiting = 0, done = 0;
  std::vector<SharedPiece> shared;
  Region static_memory[2], dynamic_memory;  // static: before and after the dynamic array
};

// What an atomic or volatile location passes on to who reads it and then fences.
struct Passed {
  SharedClock of_device;
  std::unordered_map<uint32_t, SharedClock> of_block;
};

struct Machine {
  uint3 grid, block_size;
  uint32_t blocks_count, threads_count;
  Order order;
  bool preempt;
  uint64_t random;
  void (*entry)(void* const*);
  void* const* arguments;
  const char* library;  // base address of the kernel's library

  std::deque<Block> blocks;
  Thread* current = nullptr;
  void* scheduler = nullptr;  // its stack pointer
  uint64_t progress = 0;
  bool stopped = false;  // a finding after which nothing may run on

  std::vector<Region> buffers;
  std::unordered_map<uint64_t, Passed> passed;  // by address, and by block where it is shared
  std::vector<std::pair<const char*, const char*>> image;  // the library's own constants

  char *statics = nullptr, *dynamics = nullptr;  // the library's thread-local memory
  size_t statics_bytes = 0;                      // with the dynamic array, which lies within
  size_t dynamics_bytes = 0, dynamics_most = 0;  // of this launch, and of the array

  std::vector<Finding> findings;
  std::set<std::tuple<Kind, int64_t, int64_t, int32_t>> known;

  uint64_t Random();
  uint32_t GlobalNumber(const Thread& thread) const {
    return thread.block->number * threads_count + thread.number;
  }
};

extern Machine machine;

// ---- fibers
void Prepare(Thread& thread);     // its stack, to begin at the kernel's entry
void Recycle(Thread& thread);     // its stack, for another thread
void Resume(Thread& thread);      // from the scheduler; returns when no thread of the block can run
uint32_t TakeReady(Block& block);  // the thread that runs next
void Leave();                     // from a thread that cannot go on now
void Yield();                     // from a thread that can
void Sleep();                     // until all blocks have had their turn
[[noreturn]] void Stop();         // from a thread: ends the launch

// ---- findings
Finding Found(Kind kind, void* place);  // by the current thread
void Report(const Finding& finding);
[[noreturn]] void Fatal(const Finding& finding);

// ---- synchronisation
void WhenDone(Thread& thread);
bool Ordered(const Access& before, const Thread& thread);
void Tick(Thread& thread);
SharedClock Snapshot(Thread& thread);
void Synchronise(const std::vector<Thread*>& threads);
void AtomicAccess(const volatile void* address, bool reads, bool writes);

// ---- memory
void Touch(const volatile void* address, size_t bytes, Use use, void* place);
void SharedIn(Block& block);
void SharedOut(Block& block);

}  // namespace emulated
