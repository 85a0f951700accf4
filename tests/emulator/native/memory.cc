// Every access of a kernel: bounds, alignment, initialisation, races. g++ inserts the calls.
#include <cstring>

#include "machine.h"

namespace emulated {
namespace {

Region* Find(char* address) {
  static size_t last = 0;
  Block& block = *machine.current->block;
  if (address >= machine.dynamics && address < machine.dynamics + machine.dynamics_most) {
    return block.dynamic_memory.Holds(address) ? &block.dynamic_memory : nullptr;
  }
  for (Region& region : block.static_memory) {
    if (region.Holds(address)) return &region;
  }
  if (last < machine.buffers.size() && machine.buffers[last].Holds(address)) {
    return &machine.buffers[last];
  }
  for (size_t number = 0; number < machine.buffers.size(); ++number) {
    if (machine.buffers[number].Holds(address)) {
      last = number;
      return &machine.buffers[number];
    }
  }
  return nullptr;
}

Finding At(Kind kind, const Region* region, const char* address, size_t bytes, Use use,
           void* place) {
  Finding finding = Found(kind, place);
  finding.bytes = bytes;
  finding.accesses[0] = static_cast<int32_t>(use);
  if (region != nullptr) {
    finding.memory = region->number;
    finding.offset = address - region->begin;
  }
  return finding;
}

// The buffer that ends nearest before an address which none holds.
Finding Outside(const char* address, size_t bytes, Use use, void* place) {
  const Region* nearest = nullptr;
  for (const Region& region : machine.buffers) {
    if (region.begin <= address && (nearest == nullptr || region.begin > nearest->begin)) {
      nearest = &region;
    }
  }
  Block& block = *machine.current->block;
  bool dynamic =
      address >= machine.dynamics && address < machine.dynamics + machine.dynamics_most;
  if (dynamic) nearest = &block.dynamic_memory;
  return At(Kind::kOutOfBounds, nearest, address, bytes, use, place);
}

bool OwnStack(const char* address) {
  const char* stack = machine.current->stack;
  return address >= stack && address < stack + kStack;
}

bool Constant(const char* address) {
  for (const auto& [begin, end] : machine.image) {
    if (address >= begin && address < end) return true;
  }
  return false;
}

void Check(Region& region, char* address, size_t bytes, Use use, void* place) {
  Thread& thread = *machine.current;
  if (region.cells.empty()) {
    region.cells.resize((region.bytes + region.granule - 1) / region.granule);
    if (region.initialised) {
      for (Cell& cell : region.cells) cell.initialised = true;
    }
  }
  size_t offset = address - region.begin;
  while (region.granule > 1 && (offset % region.granule != 0 || bytes % region.granule != 0)) {
    region.Refine(region.granule / 2);
  }
  Access access{machine.GlobalNumber(thread), thread.now,
                reinterpret_cast<const char*>(place) - machine.library};
  for (size_t i = offset / region.granule; i <= (offset + bytes - 1) / region.granule; ++i) {
    Cell& cell = region.cells[i];
    Conflict with;
    if (!cell.initialised && use != Use::kWrite && use != Use::kPost) {
      Report(At(Kind::kUninitialised, &region, address, bytes, use, place));
      cell.initialised = true;
    }
    if (Races(cell, use, thread, &with)) {
      Finding finding = At(Kind::kRace, &region, address, bytes, use, place);
      finding.blocks[1] = with.access.thread / machine.threads_count;
      finding.threads[1] = with.access.thread % machine.threads_count;
      finding.places[1] = with.access.place;
      finding.accesses[1] = static_cast<int32_t>(with.use);
      Report(finding);
    }
    Remember(cell, use, access, thread);
  }
}

}  // namespace

void Touch(const volatile void* pointer, size_t bytes, Use use, void* place) {
  if (machine.current == nullptr || bytes == 0) return;
  char* address = static_cast<char*>(const_cast<void*>(pointer));
  if (OwnStack(address)) return;
  Region* region = Find(address);
  bool writes = use == Use::kWrite || use == Use::kAtomic || use == Use::kPost;
  if (region == nullptr) {
    if (!writes && Constant(address)) return;
    Fatal(Outside(address, bytes, use, place));
  }
  if (address + bytes > region->begin + region->bytes) {
    Fatal(At(Kind::kOutOfBounds, region, address, bytes, use, place));
  }
  if (region->read_only) {
    if (writes) Fatal(At(Kind::kReadOnly, region, address, bytes, use, place));
    return;
  }
  Check(*region, address, bytes, use, place);
  bool plain = use == Use::kRead || use == Use::kWrite;  // else what was acquired would be too old
  if (machine.preempt && plain && machine.Random() % 16 == 0) Yield();
}

void SharedIn(Block& block) {
  for (SharedPiece& piece : block.shared) memcpy(piece.at, piece.kept.data(), piece.kept.size());
}

void SharedOut(Block& block) {
  for (SharedPiece& piece : block.shared) memcpy(piece.kept.data(), piece.at, piece.kept.size());
}

}  // namespace emulated

using emulated::machine;
using emulated::Use;

extern "C" {
#define PLACE __builtin_return_address(0)
#define HOOKS(bytes)                                                                              \
  void __tsan_read##bytes(void* a) { emulated::Touch(a, bytes, Use::kRead, PLACE); }              \
  void __tsan_write##bytes(void* a) { emulated::Touch(a, bytes, Use::kWrite, PLACE); }            \
  void __tsan_unaligned_read##bytes(void* a) { emulated::Touch(a, bytes, Use::kRead, PLACE); }    \
  void __tsan_unaligned_write##bytes(void* a) { emulated::Touch(a, bytes, Use::kWrite, PLACE); }  \
  void __tsan_volatile_read##bytes(void* a) { Poll(a, bytes, PLACE); }                            \
  void __tsan_volatile_write##bytes(void* a) { VolatileWrite(a, bytes, PLACE); }

// A volatile read may be one of a loop that waits: others run first, so that it can end.
static void Poll(void* address, size_t bytes, void* place) {
  if (machine.current == nullptr) return;
  emulated::Sleep();
  emulated::AtomicAccess(address, true, false);
  emulated::Touch(address, bytes, Use::kPoll, place);
}

static void VolatileWrite(void* address, size_t bytes, void* place) {
  if (machine.current == nullptr) return;
  emulated::AtomicAccess(address, false, true);
  emulated::Touch(address, bytes, Use::kPost, place);
  ++machine.progress;
}

HOOKS(1)
HOOKS(2)
HOOKS(4)
HOOKS(8)
HOOKS(16)
void __tsan_init() {}
void __tsan_read_range(void* a, size_t bytes) { emulated::Touch(a, bytes, Use::kRead, PLACE); }
void __tsan_write_range(void* a, size_t bytes) { emulated::Touch(a, bytes, Use::kWrite, PLACE); }

void emulated_range(const void* address, size_t bytes, bool writes) {
  emulated::Touch(address, bytes, writes ? Use::kWrite : Use::kRead, PLACE);
}

void emulated_atomic(const volatile void* address, size_t bytes, void* place) {
  emulated::AtomicAccess(address, true, true);
  emulated::Touch(address, bytes, Use::kAtomic, place);
}

// What changed nothing may be one of a loop that waits.
void emulated_atomic_done(bool changed) {
  if (changed) {
    ++machine.progress;
  } else {
    emulated::Sleep();
  }
}

// ld.global.nc: what this launch writes need not be seen.
void emulated_not_coherent(const void* pointer, size_t bytes) {
  char* address = static_cast<char*>(const_cast<void*>(pointer));
  emulated::Region* region = emulated::Find(address);
  if (region == nullptr || region->read_only || region->cells.empty()) return;
  size_t offset = address - region->begin;
  for (size_t at = offset; at < offset + bytes && at < region->bytes; ++at) {
    const emulated::Cell& cell = region->cells[at / region->granule];
    if (cell.write.now == 0) continue;
    emulated::Report(emulated::At(emulated::Kind::kNotCoherent, region, address, bytes, Use::kRead,
                                  PLACE));
    return;
  }
}

// g++ -fsanitize=alignment,bounds. `data` names the line of the source, which PLACE gives too.
void __ubsan_handle_type_mismatch_v1(void* data, void* address) {
  (void)data;
  if (machine.current == nullptr) return;
  const emulated::Region* region = emulated::Find(static_cast<char*>(address));
  emulated::Fatal(emulated::At(emulated::Kind::kMisaligned, region,
                               static_cast<char*>(address), 0, Use::kRead, PLACE));
}

void __ubsan_handle_out_of_bounds(void* data, void* index) {
  (void)data;
  (void)index;
  if (machine.current == nullptr) return;
  emulated::Finding finding = emulated::Found(emulated::Kind::kOutOfBounds, PLACE);
  emulated::Fatal(finding);
}
}
