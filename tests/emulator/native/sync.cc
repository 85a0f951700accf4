// Barriers, warp operations, fences and atomics: when threads meet, and what they then know.
#include <algorithm>

#include "machine.h"

namespace emulated {
namespace {

void ReleaseBarrier(Block& block) {
  ++machine.progress;
  block.waiting = 0;
  std::vector<Thread*> here;
  for (Thread& thread : block.threads) {
    if (thread.state == State::kAtBarrier) here.push_back(&thread);
  }
  // Code that the compiler copied has several addresses: the front end tells it from divergence.
  for (Thread* thread : here) {
    if (thread->place == here[0]->place) continue;
    Finding finding = Found(Kind::kDivergentBarrier, here[0]->place);
    finding.threads[0] = here[0]->number;
    finding.blocks[1] = block.number;
    finding.threads[1] = thread->number;
    finding.places[1] = static_cast<const char*>(thread->place) - machine.library;
    Report(finding);
    break;
  }
  Synchronise(here);
  for (Thread* thread : here) thread->state = State::kReady;
  bool reversed = machine.order == Order::kReverse;
  for (size_t i = 0; i < here.size(); ++i) {
    block.ready.push_back(here[reversed ? i : here.size() - 1 - i]->number);
  }
}

struct Warp {
  std::vector<Thread*> members;  // of the mask, that have not ended
  uint32_t present = 0;          // their lanes
};

Warp MembersOf(Block& block, const Thread& thread, uint32_t mask) {
  Warp warp;
  uint32_t first = thread.number - thread.lane();
  for (uint32_t lane = 0; lane < kWarp && first + lane < block.threads.size(); ++lane) {
    Thread& other = block.threads[first + lane];
    if ((mask >> lane & 1) == 0 || other.state == State::kDone) continue;
    warp.members.push_back(&other);
    warp.present |= uint32_t{1} << lane;
  }
  return warp;
}

Finding Meeting(Kind kind, const Thread& one, const Thread& other) {
  Finding finding = Found(kind, one.place);
  finding.threads[0] = one.number;
  finding.mask = one.mask;
  finding.blocks[1] = other.block->number;
  finding.threads[1] = other.number;
  finding.places[1] = static_cast<const char*>(other.place) - machine.library;
  return finding;
}

void Exchange(const Warp& warp) {
  uint32_t ballot = 0;
  std::vector<uint64_t> results;
  for (Thread* thread : warp.members) {
    if (thread->value != 0) ballot |= uint32_t{1} << thread->lane();
  }
  for (Thread* thread : warp.members) {
    results.push_back(ballot);
    if (thread->operation != WarpOperation::kShuffle) continue;
    if (thread->source < 0 || thread->source > 31 || (warp.present >> thread->source & 1) == 0) {
      Finding finding = Found(Kind::kAbsentLane, thread->place);
      finding.threads[0] = thread->number;
      finding.threads[1] = static_cast<int32_t>(thread->number - thread->lane()) + thread->source;
      finding.mask = thread->mask;
      Fatal(finding);
    }
    uint32_t before = warp.present & ((uint32_t{1} << thread->source) - 1);
    results.back() = warp.members[__builtin_popcount(before)]->value;
  }
  for (size_t i = 0; i < results.size(); ++i) warp.members[i]->value = results[i];
}

// Lets a warp operation happen if all lanes of `thread`'s mask have come to it.
void MeetWarp(Thread& thread) {
  Block& block = *thread.block;
  Warp warp = MembersOf(block, thread, thread.mask);
  for (Thread* other : warp.members) {
    if (other->state != State::kAtWarp) return;
    if (other->mask != thread.mask) Fatal(Meeting(Kind::kWrongMask, thread, *other));
  }
  for (Thread* other : warp.members) {
    Finding finding = Meeting(Kind::kDivergentWarp, thread, *other);
    if (other->operation != thread.operation) Fatal(finding);
    if (other->place != thread.place) Report(finding);
  }
  if (thread.operation == WarpOperation::kSync) {
    Synchronise(warp.members);
  } else {
    Exchange(warp);
  }
  ++machine.progress;
  if (machine.order != Order::kReverse) std::reverse(warp.members.begin(), warp.members.end());
  for (Thread* other : warp.members) {
    other->state = State::kReady;
    if (other != machine.current) block.ready.push_back(other->number);
  }
}

void AtWarp(WarpOperation operation, unsigned mask, void* place) {
  Thread& thread = *machine.current;
  thread.operation = operation;
  thread.mask = mask;
  thread.place = place;
  if ((mask >> thread.lane() & 1) == 0) {
    Finding finding = Found(Kind::kWrongMask, place);
    finding.mask = mask;
    Fatal(finding);
  }
  thread.state = State::kAtWarp;
  MeetWarp(thread);
  if (thread.state == State::kAtWarp) {
    Leave();
  } else if (machine.order == Order::kRandom && machine.Random() % 2 == 0) {
    Yield();
  }
}

uint64_t Location(const volatile void* pointer) {
  auto address = reinterpret_cast<uint64_t>(pointer);
  const char* at = static_cast<const char*>(const_cast<const void*>(pointer));
  bool shared = at >= machine.statics && at < machine.statics + machine.statics_bytes;
  return shared ? address ^ uint64_t{machine.current->block->number + 1} << 48 : address;
}

void Acquire(std::shared_ptr<Clock>& clock, const SharedClock& from) {
  if (from == nullptr) return;
  if (clock == nullptr) {
    clock = std::make_shared<Clock>(*from);
  } else {
    clock->Join(*from);
  }
}

SharedClock Joined(const SharedClock& one, const SharedClock& other) {
  if (one == nullptr || other == nullptr) return one == nullptr ? other : one;
  auto both = std::make_shared<Clock>(*one);
  both->Join(*other);
  return both;
}

// A fence orders what was read from locations before it with what comes after, and what came before
// it with what is left in locations after it.
void Fence(bool of_device) {
  Thread& thread = *machine.current;
  auto seen = std::make_shared<Clock>(*thread.seen);
  for (Scope scope : {kOfDevice, kOfBlock}) {
    if (thread.acquirable[scope] == nullptr || (scope == kOfDevice && !of_device)) continue;
    seen->Join(*thread.acquirable[scope]);
  }
  thread.seen = seen;
  SharedClock now = Snapshot(thread);
  thread.released[kOfBlock] = now;
  if (of_device) thread.released[kOfDevice] = now;
  Tick(thread);
}

}  // namespace

bool Ordered(const Access& before, const Thread& thread) {
  uint32_t block = before.thread / machine.threads_count;
  uint32_t number = before.thread % machine.threads_count;
  if (block == thread.block->number && number == thread.number) return true;
  return thread.seen->Of(block, number) >= before.now;
}

void Tick(Thread& thread) { ++thread.now; }

SharedClock Snapshot(Thread& thread) {
  auto made = std::make_shared<Clock>(*thread.seen);
  auto counts = made->Copied(thread.block->number, machine.threads_count);
  counts[thread.number] = thread.now;
  made->Set(thread.block->number, std::move(counts));
  return made;
}

void Synchronise(const std::vector<Thread*>& threads) {
  auto made = std::make_shared<Clock>(*threads[0]->seen);
  const Clock* last = threads[0]->seen.get();
  for (Thread* thread : threads) {
    if (thread->seen.get() == last) continue;
    last = thread->seen.get();
    made->Join(*last);
  }
  uint32_t block = threads[0]->block->number;
  auto counts = made->Copied(block, machine.threads_count);
  for (Thread* thread : threads) {
    counts[thread->number] = thread->now;
    Tick(*thread);
  }
  made->Set(block, std::move(counts));
  for (Thread* thread : threads) thread->seen = made;
}

// A write alone begins anew what a location passes on; an update adds to it.
void AtomicAccess(const volatile void* address, bool reads, bool writes) {
  Thread& thread = *machine.current;
  Passed& passed = machine.passed[Location(address)];
  uint32_t block = thread.block->number;
  if (reads) {
    Acquire(thread.acquirable[kOfDevice], passed.of_device);
    Acquire(thread.acquirable[kOfBlock], passed.of_block[block]);
  } else {
    passed = {};
  }
  if (!writes) return;
  passed.of_device = Joined(passed.of_device, thread.released[kOfDevice]);
  passed.of_block[block] = Joined(passed.of_block[block], thread.released[kOfBlock]);
}

void WhenDone(Thread& thread) {
  Block& block = *thread.block;
  if (block.waiting > 0) {
    auto waits = std::find_if(block.threads.begin(), block.threads.end(), [](const Thread& other) {
      return other.state == State::kAtBarrier;
    });
    Finding finding = Found(Kind::kExited, waits->place);
    finding.threads[0] = waits->number;
    finding.blocks[1] = block.number;
    finding.threads[1] = thread.number;
    Fatal(finding);
  }
  uint32_t first = thread.number - thread.lane();
  for (uint32_t lane = 0; lane < kWarp && first + lane < block.threads.size(); ++lane) {
    Thread& other = block.threads[first + lane];
    if (other.state == State::kAtWarp) MeetWarp(other);
  }
}

}  // namespace emulated

using emulated::machine;

extern "C" {

void emulated_syncthreads() {
  emulated::Thread& thread = *machine.current;
  emulated::Block& block = *thread.block;
  thread.place = __builtin_return_address(0);
  thread.state = emulated::State::kAtBarrier;
  if (block.done > 0) {
    auto ended = std::find_if(block.threads.begin(), block.threads.end(), [](const auto& other) {
      return other.state == emulated::State::kDone;
    });
    emulated::Finding finding = emulated::Found(emulated::Kind::kExited, thread.place);
    finding.blocks[1] = block.number;
    finding.threads[1] = ended->number;
    emulated::Fatal(finding);
  }
  if (++block.waiting == block.threads.size()) emulated::ReleaseBarrier(block);
  emulated::Leave();
}

void emulated_syncwarp(unsigned mask) {
  emulated::AtWarp(emulated::WarpOperation::kSync, mask, __builtin_return_address(0));
}

unsigned emulated_ballot(unsigned mask, int holds) {
  machine.current->value = holds != 0;
  emulated::AtWarp(emulated::WarpOperation::kBallot, mask, __builtin_return_address(0));
  return static_cast<unsigned>(machine.current->value);
}

uint64_t emulated_shuffle(unsigned mask, uint64_t bits, int source) {
  machine.current->value = bits;
  machine.current->source = source;
  emulated::AtWarp(emulated::WarpOperation::kShuffle, mask, __builtin_return_address(0));
  return machine.current->value;
}

void emulated_threadfence() { emulated::Fence(true); }
void emulated_threadfence_block() { emulated::Fence(false); }
void emulated_nanosleep(unsigned) { emulated::Sleep(); }

void emulated_trap() {
  emulated::Fatal(emulated::Found(emulated::Kind::kTrap, __builtin_return_address(0)));
}

uint3 emulated_thread_index() { return machine.current->index; }
uint3 emulated_block_index() { return machine.current->block->index; }
uint3 emulated_block_size() { return machine.block_size; }
uint3 emulated_grid_size() { return machine.grid; }
}
