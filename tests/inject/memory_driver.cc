// Drives huge.cc over one large buffer. Commands on stdin, one answer each: "fill OFFSET BYTES"
// writes to it, "note OFFSET BYTES" is a kernel's use. The answer: "KiB resident, KiB in huge
// pages, KiB asked for".
#include <sys/mman.h>

#include <cstdio>
#include <cstring>
#include <fstream>
#include <iostream>
#include <sstream>
#include <string>

#include "huge.h"

namespace {

constexpr size_t kArena = size_t{1} << 30, kHuge = size_t{2} << 20;

char* arena = nullptr;

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

int main() {
  void* mapped = mmap(nullptr, kArena + 2 * kHuge, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  arena = reinterpret_cast<char*>((reinterpret_cast<size_t>(mapped) / kHuge + 1) * kHuge);
  // The arena in mappings of its own, so that smaps tells it apart.
  mprotect(arena - 4096, 4096, PROT_NONE);
  mprotect(arena + kArena, 4096, PROT_NONE);
  for (std::string line; std::getline(std::cin, line);) {
    std::istringstream text(line);
    std::string verb;
    size_t offset = 0, bytes = 0;
    text >> verb >> offset >> bytes;
    if (verb == "fill") memset(arena + offset, 1, bytes);
    if (verb == "note") stitch::NoteForHugePages(arena + offset, bytes);
    std::cout << Total("Rss:") << " " << Total("AnonHugePages:") << " "
              << stitch::HugeBytesAsked() / 1024 << std::endl;
  }
}
