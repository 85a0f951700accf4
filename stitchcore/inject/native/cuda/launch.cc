// The C interface: objects made and unmade, failures turned into values.
#include <stdio.h>
#include <string.h>

#include <exception>
#include <memory>
#include <new>

#include "program.h"

using stitch::cuda::Error;

namespace {

int Report(const Error& error, StitchError* out) {
  if (out != nullptr) {
    out->reason = error.reason;
    snprintf(out->text, sizeof out->text, "%s", error.text.c_str());
  }
  return error.reason;
}

// Runs `body`, an Error(), with every exception turned into a value.
template <typename Body>
int Guarded(StitchError* out, Body body) noexcept {
  try {
    return Report(body(), out);
  } catch (const std::bad_alloc&) {
    if (out != nullptr) {
      out->reason = STITCH_OUT_OF_MEMORY;
      strcpy(out->text, "no host memory");
    }
    return STITCH_OUT_OF_MEMORY;
  } catch (const std::exception& exception) {
    if (out != nullptr) {
      out->reason = STITCH_INTERNAL;
      snprintf(out->text, sizeof out->text, "%s", exception.what());
    }
    return STITCH_INTERNAL;
  }
}

Error CheckSymbols(const StitchProgram* program, int32_t count) {
  if (static_cast<size_t>(count) == program->table.symbols) return {};
  return {STITCH_BAD_CALL, std::to_string(program->table.symbols) + " symbols, " +
                               std::to_string(count) + " given"};
}

}  // namespace

#define STITCH_EXPORT extern "C" __attribute__((visibility("default")))

STITCH_EXPORT int stitch_cuda_open(const char* library, StitchCuda** cuda, StitchError* error) {
  return Guarded(error, [&]() -> Error {
    auto made = std::make_unique<StitchCuda>();
    Error opened = stitch::cuda::OpenDriver(library, &made->driver);
    if (!opened.failed()) *cuda = made.release();
    return opened;
  });
}

STITCH_EXPORT int stitch_cuda_close(StitchCuda* cuda, StitchError* error) {
  return Guarded(error, [&]() -> Error {
    int users = cuda->users;
    if (users != 0) {
      return {STITCH_BAD_CALL, std::to_string(users) + " programs or runs are still there"};
    }
    Error cleared = cuda->Clear();
    if (!cleared.failed()) delete cuda;
    return cleared;
  });
}

STITCH_EXPORT int stitch_program_load(StitchCuda* cuda, const void* data, size_t size,
                                      StitchProgram** program, StitchError* error) {
  return Guarded(error, [&]() -> Error {
    auto made = std::make_unique<StitchProgram>(cuda);
    Error read;
    if (!Decode(static_cast<const char*>(data), size, &made->table, &read.text)) {
      return {STITCH_BAD_TABLE, std::move(read.text)};
    }
    if (made->table.driver > cuda->driver.version) {
      return {STITCH_OLD_DRIVER, "the cubins need a driver for CUDA version number " +
                                     std::to_string(made->table.driver) + ", there is one for " +
                                     std::to_string(cuda->driver.version)};
    }
    cuda->users++;
    *program = made.release();
    return {};
  });
}

STITCH_EXPORT int stitch_program_unload(StitchProgram* program, StitchError* error) {
  return Guarded(error, [&]() -> Error {
    Error unloaded = program->Unload();
    if (unloaded.failed()) return unloaded;
    program->cuda->users--;
    delete program;
    return {};
  });
}

STITCH_EXPORT int stitch_program_prepare(StitchProgram* program, int32_t device,
                                         StitchError* error) {
  return Guarded(error, [&] { return program->Prepare(device); });
}

STITCH_EXPORT int stitch_kernel_info(StitchProgram* program, int32_t device, int32_t kernel,
                                     StitchKernelInfo* info, StitchError* error) {
  return Guarded(error, [&] { return program->Info(device, kernel, info); });
}

STITCH_EXPORT int stitch_arena_bytes(const StitchProgram* program, const int64_t* symbols,
                                     int32_t symbol_count, uint64_t* bytes, StitchError* error) {
  return Guarded(error, [&] {
    Error fits = CheckSymbols(program, symbol_count);
    return fits.failed() ? fits : ArenaBytes(program->table, symbols, bytes);
  });
}

STITCH_EXPORT int stitch_region(const StitchProgram* program, int32_t region,
                                const int64_t* symbols, int32_t symbol_count, uint64_t* offset,
                                uint64_t* bytes, StitchError* error) {
  return Guarded(error, [&]() -> Error {
    Error fits = CheckSymbols(program, symbol_count);
    if (fits.failed()) return fits;
    if (region < 0 || static_cast<size_t>(region) >= program->table.regions.size()) {
      return {STITCH_BAD_CALL, "there is no region " + std::to_string(region)};
    }
    uint64_t arena = 0;
    fits = ArenaBytes(program->table, symbols, &arena);
    if (fits.failed()) return fits;
    return FindRegion(program->table, region, symbols, arena, offset, bytes);
  });
}

STITCH_EXPORT int stitch_run(StitchProgram* program, const StitchCall* call, StitchError* error) {
  return Guarded(error, [&] { return stitch::cuda::Run(program, *call); });
}

STITCH_EXPORT int stitch_checks_wait(StitchChecks* checks, StitchCheck* found,
                                     StitchError* error) {
  return Guarded(error, [&] {
    Error waited = checks->Wait(found);
    checks->cuda->users--;
    delete checks;
    return waited;
  });
}
