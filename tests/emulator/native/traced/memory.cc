// In place of ../memory.cc: what the warps of one block ask of memory, request by request. A
// request is the n-th time that lanes of a warp come to one place of the text; lanes that have not
// come so often take no part. Accesses are not judged. A grid barrier does not wait for blocks that
// do not run.
#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <set>
#include <unordered_map>
#include <unordered_set>

#include "../machine.h"

// Mirrored by the front end: all requests of one place to one region.
struct Requested {
  int64_t place;
  int32_t memory, bytes, writes, unused;
  int64_t requests, lanes;  // lanes: of all requests
  int64_t units, least;     // sectors of memory, or turns of shared memory: taken, without waste
  int64_t lines;            // of 128 bytes, that memory's requests touch
};

namespace emulated {
namespace {

constexpr uint64_t kSector = 32, kLine = 128, kBanks = 32, kWord = 4;

struct Slots {
  int64_t place;
  int32_t memory, bytes;
  bool writes;
  std::array<uint32_t, kWarp> next{};
  std::vector<uint64_t> addresses;  // kWarp of each request; 0: the lane takes no part
};

// By warp, place, memory, bytes.
std::map<std::tuple<uint32_t, int64_t, int32_t, int32_t>, size_t> numbers;
std::vector<Slots> slots;
std::unordered_map<int32_t, std::unordered_set<uint64_t>> sectors;  // by memory
int64_t accesses = 0, limit = 0;

int32_t RegionOf(const char* address) {
  static size_t last = 0;
  if (address >= machine.statics && address < machine.statics + machine.statics_bytes) {
    bool dynamic =
        address >= machine.dynamics && address < machine.dynamics + machine.dynamics_most;
    return dynamic ? kDynamic : kStatic;
  }
  if (last < machine.buffers.size() && machine.buffers[last].Holds(address)) return last;
  for (size_t number = 0; number < machine.buffers.size(); ++number) {
    if (machine.buffers[number].Holds(address)) return last = number;
  }
  return kNowhere;
}

// Turns that 32 banks take for one request: lanes of 8 and 16 bytes come by halves and quarters of
// the warp; lanes that read one word share it.
int64_t Turns(const uint64_t* addresses, uint64_t bytes) {
  uint64_t words = std::max<uint64_t>(bytes / kWord, 1);
  uint64_t together = kWarp / words;
  int64_t turns = 0;
  for (uint64_t first = 0; first < kWarp; first += together) {
    std::array<std::set<uint64_t>, kBanks> banks;
    for (uint64_t lane = first; lane < first + together; ++lane) {
      for (uint64_t n = 0; addresses[lane] != 0 && n < words; ++n) {
        uint64_t word = addresses[lane] / kWord + n;
        banks[word % kBanks].insert(word);
      }
    }
    size_t most = 0;
    for (const auto& bank : banks) most = std::max(most, bank.size());
    turns += most;
  }
  return turns;
}

void Add(const Slots& from, Requested& to) {
  bool shared = from.memory < 0;
  for (size_t at = 0; at < from.addresses.size(); at += kWarp) {
    const uint64_t* addresses = &from.addresses[at];
    std::set<uint64_t> units, lines, elements;
    int64_t lanes = 0;
    for (uint32_t lane = 0; lane < kWarp; ++lane) {
      if (addresses[lane] == 0) continue;
      ++lanes;
      elements.insert(addresses[lane]);
      for (uint64_t byte = 0; byte < uint64_t(from.bytes); byte += kSector / 2) {
        units.insert((addresses[lane] + byte) / kSector);
        lines.insert((addresses[lane] + byte) / kLine);
      }
      units.insert((addresses[lane] + from.bytes - 1) / kSector);
    }
    ++to.requests;
    to.lanes += lanes;
    int64_t asked = elements.size() * from.bytes;
    if (shared) {
      to.units += Turns(addresses, from.bytes);
      to.least += (asked + kBanks * kWord - 1) / (kBanks * kWord);
      continue;
    }
    to.units += units.size();
    to.least += (asked + kSector - 1) / kSector;
    to.lines += lines.size();
    sectors[from.memory].insert(units.begin(), units.end());
  }
}

}  // namespace

void Touch(const volatile void* pointer, size_t bytes, Use use, void* place) {
  if (machine.current == nullptr || bytes == 0) return;
  const char* address = static_cast<const char*>(const_cast<const void*>(pointer));
  const char* stack = machine.current->stack;
  if (address >= stack && address < stack + kStack) return;
  int32_t memory = RegionOf(address);
  if (memory == kNowhere) return;  // constants
  Thread& thread = *machine.current;
  int64_t at = static_cast<const char*>(place) - machine.library;
  auto key = std::make_tuple(thread.number / kWarp, at, memory, static_cast<int32_t>(bytes));
  auto [found, fresh] = numbers.try_emplace(key, slots.size());
  if (fresh) {
    bool writes = use != Use::kRead && use != Use::kPoll;
    slots.push_back({at, memory, static_cast<int32_t>(bytes), writes, {}, {}});
  }
  Slots& own = slots[found->second];
  size_t request = own.next[thread.lane()]++;
  if (own.addresses.size() <= request * kWarp) own.addresses.resize((request + 1) * kWarp);
  own.addresses[request * kWarp + thread.lane()] = reinterpret_cast<uint64_t>(address);
  if (++accesses > limit) Stop();
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

void emulated_trace_begin(int64_t limit) {
  emulated::numbers.clear();
  emulated::slots.clear();
  emulated::sectors.clear();
  emulated::accesses = 0;
  emulated::limit = limit;
}

int emulated_trace_cut() { return emulated::accesses > emulated::limit; }

// What was asked, and of each of `buffers` how many sectors. Returns how many places there are.
int emulated_trace_end(Requested* found, int most, int64_t* sectors, int buffers) {
  std::map<std::tuple<int64_t, int32_t, int32_t>, Requested> places;
  for (const emulated::Slots& one : emulated::slots) {
    Requested& to = places[{one.place, one.memory, one.bytes}];
    to.place = one.place;
    to.memory = one.memory;
    to.bytes = one.bytes;
    to.writes = one.writes;
    emulated::Add(one, to);
  }
  int count = 0;
  for (const auto& [key, one] : places) {
    if (count < most) found[count] = one;
    ++count;
  }
  for (int number = 0; number < buffers; ++number) {
    sectors[number] = emulated::sectors[number].size();
  }
  return count;
}

#define PLACE __builtin_return_address(0)
#define HOOKS(bytes)                                                                              \
  void __tsan_read##bytes(void* a) { emulated::Touch(a, bytes, Use::kRead, PLACE); }              \
  void __tsan_write##bytes(void* a) { emulated::Touch(a, bytes, Use::kWrite, PLACE); }            \
  void __tsan_unaligned_read##bytes(void* a) { emulated::Touch(a, bytes, Use::kRead, PLACE); }    \
  void __tsan_unaligned_write##bytes(void* a) { emulated::Touch(a, bytes, Use::kWrite, PLACE); }  \
  void __tsan_volatile_read##bytes(void* a) { Poll(a); }                                          \
  void __tsan_volatile_write##bytes(void* a) { emulated::Touch(a, bytes, Use::kPost, PLACE); }

// A grid barrier's word, whose top bit turns over when all blocks have come: the others do not run.
static void Poll(void* address) {
  if (machine.current == nullptr) return;
  *static_cast<uint32_t*>(address) ^= 0x80000000u;
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
  emulated::Touch(address, bytes, Use::kAtomic, place);
}
void emulated_atomic_done(bool) { ++machine.progress; }
void emulated_not_coherent(const void*, size_t) {}

}  // extern "C"
