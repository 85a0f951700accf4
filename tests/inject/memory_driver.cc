// Drives huge.cc and idle.cc over an allocator like TensorFlow's (best fit, free neighbours joined,
// nothing given back). Commands on stdin, one answer each: "alloc NAME BYTES" and "free NAME";
// "fill NAME" writes a pattern, "check NAME" reads it; "note NAME OFFSET BYTES" is a kernel's use;
// "release" is a switch between arms. The answer: "KiB resident, KiB in huge pages, KiB asked for,
// KiB that the allocator manages".
#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iostream>
#include <list>
#include <map>
#include <sstream>
#include <string>

#include "huge.h"
#include "idle.h"
#include "shim.h"

namespace {

constexpr size_t kArena = size_t{1} << 30, kHuge = size_t{2} << 20;

struct Chunk {
  char* data;
  size_t size;
  bool used;
};

char* arena = nullptr;
size_t managed = 0;
std::list<Chunk> chunks;
StitchMemory memory{0, 0, 0};

void* Allocate(size_t bytes) {
  auto best = chunks.end();
  for (auto chunk = chunks.begin(); chunk != chunks.end(); ++chunk) {
    if (chunk->used || chunk->size < bytes) continue;
    if (best == chunks.end() || chunk->size < best->size) best = chunk;
  }
  if (best == chunks.end()) {
    if (managed + bytes > kArena) return nullptr;
    best = chunks.insert(chunks.end(), {arena + managed, bytes, false});
    managed += bytes;
  }
  if (best->size > bytes) {
    chunks.insert(std::next(best), {best->data + bytes, best->size - bytes, false});
    best->size = bytes;
  }
  best->used = true;
  memory.largest = std::max<int64_t>(memory.largest, bytes);
  memory.in_use += bytes;
  memory.peak = std::max(memory.peak, memory.in_use);
  return best->data;
}

void Deallocate(void* data) {
  auto chunk = std::find_if(chunks.begin(), chunks.end(),
                            [&](const Chunk& each) { return each.data == data; });
  chunk->used = false;
  memory.in_use -= chunk->size;
  auto next = std::next(chunk);
  if (next != chunks.end() && !next->used) {
    chunk->size += next->size;
    chunks.erase(next);
  }
  if (chunk == chunks.begin() || std::prev(chunk)->used) return;
  std::prev(chunk)->size += chunk->size;
  chunks.erase(chunk);
}

int Memory(StitchMemory* out) {
  *out = memory;
  return 1;
}

// A figure of /proc/self/smaps over the arena, in KiB.
long Total(const std::string& name) {
  std::ifstream maps("/proc/self/smaps");
  long total = 0;
  bool inside = false;
  for (std::string line; std::getline(maps, line);) {
    unsigned long begin = 0, end = 0;
    if (sscanf(line.c_str(), "%lx-%lx ", &begin, &end) == 2) {
      inside = begin >= reinterpret_cast<unsigned long>(arena) &&
               end <= reinterpret_cast<unsigned long>(arena) + kArena;
    } else if (inside && line.rfind(name, 0) == 0) {
      total += std::stol(line.substr(name.size()));
    }
  }
  return total;
}

}  // namespace

namespace stitch {
const StitchShim* Shim() {
  static StitchShim shim{};
  shim.memory = Memory;
  shim.allocate = Allocate;
  shim.deallocate = Deallocate;
  return &shim;
}
}  // namespace stitch

int main() {
  void* mapped = mmap(nullptr, kArena + kHuge, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  arena = reinterpret_cast<char*>((reinterpret_cast<size_t>(mapped) + kHuge - 1) / kHuge * kHuge);
  // The arena in mappings of its own, so that smaps tells it apart.
  mprotect(arena - 4096, 4096, PROT_NONE);
  mprotect(arena + kArena, 4096, PROT_NONE);
  std::map<std::string, std::pair<char*, size_t>> held;
  for (std::string line; std::getline(std::cin, line);) {
    std::istringstream text(line);
    std::string verb, name;
    size_t first = 0, second = 0;
    text >> verb >> name >> first >> second;
    if (verb == "alloc") {
      held[name] = {static_cast<char*>(Allocate(first)), first};
    } else if (verb == "free") {
      Deallocate(held[name].first);
    } else if (verb == "fill") {
      memset(held[name].first, name[0], held[name].second);
    } else if (verb == "check") {
      auto [data, size] = held[name];
      if (std::any_of(data, data + size, [&](char byte) { return byte != name[0]; })) {
        std::cout << name << " was changed" << std::endl;
        return 1;
      }
    } else if (verb == "note") {
      stitch::NoteForHugePages(held[name].first + first, second);
    } else if (verb == "release") {
      stitch::ReleaseIdlePages();
    }
    std::cout << Total("Rss:") << " " << Total("AnonHugePages:") << " "
              << stitch::HugeBytesAsked() / 1024 << " " << managed / 1024 << std::endl;
  }
}
