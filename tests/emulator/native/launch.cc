// A launch: blocks take turns until all have ended, none can go on, or one must not go on.
#include <link.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <numeric>

#include "machine.h"

extern "C" int64_t emulated_only_block = -1;  // of the next launches, if not negative

namespace emulated {

Machine machine;

uint64_t Machine::Random() {  // xorshift64 (Marsaglia 2003)
  random ^= random << 13;
  random ^= random >> 7;
  random ^= random << 17;
  return random;
}

Finding Found(Kind kind, void* place) {
  Finding finding{};
  finding.kind = kind;
  finding.memory = kNowhere;
  finding.places[0] = static_cast<const char*>(place) - machine.library;
  finding.blocks[1] = finding.threads[1] = finding.accesses[0] = finding.accesses[1] = -1;
  finding.blocks[0] = static_cast<int32_t>(machine.current->block->number);
  finding.threads[0] = static_cast<int32_t>(machine.current->number);
  return finding;
}

void Report(const Finding& finding) {
  constexpr size_t kMost = 64;
  auto key = std::make_tuple(finding.kind, finding.places[0], finding.places[1], finding.memory);
  if (machine.findings.size() < kMost && machine.known.insert(key).second) {
    machine.findings.push_back(finding);
  }
}

void Fatal(const Finding& finding) {
  Report(finding);
  Stop();
}

namespace {

constexpr int kIdleRounds = 1000;  // turns of all blocks without progress: nobody will make any

int FindLibrary(dl_phdr_info* info, size_t, void* given) {
  const char* inside = static_cast<const char*>(given);
  auto begin = [&](const ElfW(Phdr) & header) {
    return reinterpret_cast<const char*>(info->dlpi_addr + header.p_vaddr);
  };
  bool here = false;
  for (int i = 0; i < info->dlpi_phnum; ++i) {
    const ElfW(Phdr)& header = info->dlpi_phdr[i];
    bool loaded = header.p_type == PT_LOAD;
    here |= loaded && inside >= begin(header) && inside < begin(header) + header.p_memsz;
  }
  if (!here) return 0;
  machine.library = reinterpret_cast<const char*>(info->dlpi_addr);
  for (int i = 0; i < info->dlpi_phnum; ++i) {
    const ElfW(Phdr)& header = info->dlpi_phdr[i];
    if (header.p_type == PT_LOAD) {
      machine.image.emplace_back(begin(header), begin(header) + header.p_memsz);
    } else if (header.p_type == PT_TLS && info->dlpi_tls_data != nullptr) {
      machine.statics = static_cast<char*>(info->dlpi_tls_data);
      machine.statics_bytes = header.p_memsz;
    }
  }
  return 1;
}

uint3 Index(uint32_t number, uint3 size) {
  return {number % size.x, number / size.x % size.y, number / size.x / size.y};
}

Region Shared(char* begin, char* end, int32_t number) {
  Region region;
  region.begin = begin;
  region.bytes = end > begin ? end - begin : 0;
  region.number = number;
  return region;
}

std::array<Region*, 3> RegionsOf(Block& block) {
  return {&block.static_memory[0], &block.static_memory[1], &block.dynamic_memory};
}

void Start(Block& block) {
  auto nothing = std::make_shared<const Clock>(machine.blocks_count);
  for (uint32_t number = 0; number < machine.threads_count; ++number) {
    Thread& thread = block.threads.emplace_back();
    thread.block = &block;
    thread.number = number;
    thread.index = Index(number, machine.block_size);
    thread.seen = nothing;
    Prepare(thread);
  }
  block.ready.resize(machine.threads_count);
  std::iota(block.ready.begin(), block.ready.end(), 0);
  if (machine.order != Order::kReverse) std::reverse(block.ready.begin(), block.ready.end());
  char *begin = machine.statics, *end = begin + machine.statics_bytes;
  char *middle = machine.dynamics == nullptr ? end : machine.dynamics;
  char* after = machine.dynamics == nullptr ? end : middle + machine.dynamics_most;
  block.static_memory[0] = Shared(begin, middle, kStatic);
  block.static_memory[1] = Shared(after, end, kStatic);
  block.dynamic_memory = Shared(middle, middle + machine.dynamics_bytes, kDynamic);
  for (const Region* region : RegionsOf(block)) {
    block.shared.push_back({region->begin, std::vector<char>(region->bytes, '\xff')});
  }
  ++machine.progress;
}

void Finish(Block& block) {
  for (Thread& thread : block.threads) Recycle(thread);
  block.threads.clear();
  block.shared.clear();
  for (Region* region : RegionsOf(block)) *region = Region();
}

void ReportWaiting(const Block& block) {
  std::map<std::pair<State, void*>, std::vector<const Thread*>> waiting;
  for (const Thread& thread : block.threads) {
    if (thread.state != State::kDone) waiting[{thread.state, thread.place}].push_back(&thread);
  }
  for (const auto& [at, threads] : waiting) {
    Finding finding{};
    finding.kind = Kind::kDeadlock;
    finding.memory = kNowhere;
    finding.blocks[0] = static_cast<int32_t>(block.number);
    finding.threads[0] = static_cast<int32_t>(threads[0]->number);
    finding.blocks[1] = finding.threads[1] = finding.accesses[0] = finding.accesses[1] = -1;
    finding.mask = at.first == State::kAtWarp ? threads[0]->mask : 0;
    bool known = at.first == State::kAtWarp || at.first == State::kAtBarrier;
    if (known) finding.places[0] = static_cast<const char*>(at.second) - machine.library;
    finding.count = static_cast<int32_t>(threads.size());
    Report(finding);
  }
}

// One turn of a block: until none of its threads can go on.
void Turn(Block& block) {
  for (uint32_t number : block.asleep) {
    block.threads[number].state = State::kReady;
    block.ready.push_back(number);
  }
  block.asleep.clear();
  if (block.ready.empty()) return;
  SharedIn(block);
  while (!block.ready.empty() && !machine.stopped) {
    Resume(block.threads[TakeReady(block)]);
  }
  SharedOut(block);
}

// Blocks that are resident together.
void RunTogether(std::vector<Block*> blocks) {
  for (Block* block : blocks) Start(*block);
  int idle = 0;
  while (!blocks.empty() && !machine.stopped) {
    uint64_t before = machine.progress;
    if (machine.order == Order::kRandom) {
      for (size_t i = blocks.size(); i > 1; --i) {
        std::swap(blocks[i - 1], blocks[machine.Random() % i]);
      }
    }
    for (Block* block : blocks) {
      if (!machine.stopped) Turn(*block);
    }
    auto ended = [](Block* block) { return block->done == machine.threads_count; };
    idle = machine.progress == before ? idle + 1 : 0;
    if (idle > kIdleRounds) {
      for (Block* block : blocks) ReportWaiting(*block);
      machine.stopped = true;
    }
    for (Block* block : blocks) {
      if (ended(block)) Finish(*block);
    }
    blocks.erase(std::remove_if(blocks.begin(), blocks.end(), ended), blocks.end());
  }
}

void RunGrid(bool cooperative) {
  std::vector<Block*> blocks;
  bool all = emulated_only_block < 0;
  uint32_t first = all ? 0 : static_cast<uint32_t>(emulated_only_block);
  for (uint32_t number = first; number < (all ? machine.blocks_count : first + 1); ++number) {
    Block& block = machine.blocks.emplace_back();
    block.number = number;
    block.index = Index(number, machine.grid);
    blocks.push_back(&block);
  }
  if (machine.order == Order::kReverse) std::reverse(blocks.begin(), blocks.end());
  if (machine.order == Order::kRandom) {
    for (size_t i = blocks.size(); i > 1; --i) {
      std::swap(blocks[i - 1], blocks[machine.Random() % i]);
    }
  }
  if (cooperative) {
    RunTogether(blocks);
  } else {
    for (Block* block : blocks) {
      if (!machine.stopped) RunTogether({block});
    }
  }
}

}  // namespace

// What a launch that was stopped has left.
void FinishAll() {
  for (Block& block : machine.blocks) Finish(block);
}

}  // namespace emulated

using emulated::machine;

// Mirrored by the front end.
struct GivenBuffer {
  char* begin;
  uint64_t bytes;
  int32_t read_only, initialised;
};

struct GivenLaunch {
  uint3 grid, block;
  uint64_t dynamic_bytes, dynamic_most;
  uint64_t seed;
  int32_t order, cooperative, preempt, buffers;
};

extern "C" int emulated_launch(void (*entry)(void* const*), char* (*dynamics)(),
                               void* const* arguments, const GivenLaunch* given,
                               const GivenBuffer* buffers, emulated::Finding* findings) {
  machine.~Machine();
  new (&machine) emulated::Machine();
  machine.grid = given->grid;
  machine.block_size = given->block;
  machine.blocks_count = given->grid.x * given->grid.y * given->grid.z;
  machine.threads_count = given->block.x * given->block.y * given->block.z;
  machine.order = static_cast<emulated::Order>(given->order);
  machine.preempt = given->preempt != 0;
  machine.random = given->seed * 0x9E3779B97F4A7C15u + 0x1234567;
  machine.entry = entry;
  machine.arguments = arguments;
  machine.dynamics = dynamics();
  dl_iterate_phdr(emulated::FindLibrary, reinterpret_cast<void*>(entry));
  machine.dynamics_bytes = machine.dynamics == nullptr ? 0 : given->dynamic_bytes;
  machine.dynamics_most = machine.dynamics == nullptr ? 0 : given->dynamic_most;
  for (int32_t number = 0; number < given->buffers; ++number) {
    emulated::Region& region = machine.buffers.emplace_back();
    region.begin = buffers[number].begin;
    region.bytes = buffers[number].bytes;
    region.number = number;
    region.read_only = buffers[number].read_only != 0;
    region.initialised = buffers[number].initialised != 0;
  }
  emulated::RunGrid(given->cooperative != 0);
  emulated::FinishAll();
  std::copy(machine.findings.begin(), machine.findings.end(), findings);
  return static_cast<int>(machine.findings.size());
}
