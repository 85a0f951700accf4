// In place of ../memory.cc: threads, barriers and warp operations are the emulator's, accesses are
// not looked at. For rehearsals of whole jobs, in which a step has to end in milliseconds.
#include <cstring>

#include "../machine.h"

namespace emulated {

void Touch(const volatile void*, size_t, Use, void*) {}

void SharedIn(Block& block) {
  for (SharedPiece& piece : block.shared) memcpy(piece.at, piece.kept.data(), piece.kept.size());
}

void SharedOut(Block& block) {
  for (SharedPiece& piece : block.shared) memcpy(piece.kept.data(), piece.at, piece.kept.size());
}

}  // namespace emulated

extern "C" {

void emulated_range(const void*, size_t, bool) {}
void emulated_atomic(const volatile void*, size_t, void*) {}
void emulated_not_coherent(const void*, size_t) {}

// What changed nothing may be one of a loop that waits.
void emulated_atomic_done(bool changed) {
  if (changed) {
    ++emulated::machine.progress;
  } else {
    emulated::Sleep();
  }
}

}  // extern "C"
