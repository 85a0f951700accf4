// One run: everything is evaluated, checked and loaded first, then put into the stream.
#include <string.h>

#include <algorithm>
#include <string>
#include <vector>

#include "../small.h"
#include "program.h"

namespace stitch::cuda {
namespace {

constexpr int64_t kRangeBytes = 16;  // of a check: the least and the greatest value reported
constexpr int64_t kMostBlocks = INT32_MAX;

Error BadCall(std::string text) { return {STITCH_BAD_CALL, std::move(text)}; }

struct Prepared {
  const LaunchEntry* launch = nullptr;
  const KernelEntry* entry = nullptr;
  LoadedKernel kernel;
  unsigned grid = 0;
  size_t first_word = 0;
};

class RunOnce {
 public:
  RunOnce(StitchProgram* program, const StitchCall& call)
      : program_(*program),
        table_(program->table),
        driver_(program->cuda->driver),
        call_(call),
        stream_(static_cast<Stream>(call.stream)),
        scope_(driver_) {}

  // What was taken is given back, whatever happened. The scope is left last.
  ~RunOnce() {
    if (block_ != nullptr && capturing_ && used_) {
      loaded_->KeepCaptured(std::move(block_));
    } else if (block_ != nullptr) {
      context_->pinned.GiveBack(driver_, std::move(block_), stream_, used_);
    }
    if (allocated_) call_.allocator->release(call_.allocator->user, arena_.address);
  }

  Error Run() {
    using Step = Error (RunOnce::*)();
    for (Step step : {&RunOnce::Bind, &RunOnce::Enter, &RunOnce::PrepareLaunches,
                      &RunOnce::TakeMemory, &RunOnce::FillWords, &RunOnce::EnqueueAll,
                      &RunOnce::FinishChecks}) {
      Error error = (this->*step)();
      if (error.failed()) return error;
    }
    return {};
  }

 private:
  Error CheckBuffers(const std::vector<Program>& needed, const StitchBuffer* given, int count,
                     const char* what) {
    if (static_cast<size_t>(count) != needed.size()) {
      return BadCall(std::to_string(needed.size()) + " " + what + "s, " + std::to_string(count) +
                     " given");
    }
    for (size_t i = 0; i < needed.size(); i++) {
      auto name = [&] { return std::string(what) + " " + std::to_string(i); };
      int64_t bytes = 0;
      if (!Evaluate(needed[i], call_.symbols, &bytes) || bytes < 0) {
        return BadCall("the size of " + name() + " has no value");
      }
      if (given[i].bytes < static_cast<uint64_t>(bytes) ||
          (given[i].address == 0 && bytes > 0)) {
        return BadCall(name() + " must have " + std::to_string(bytes) + " bytes, has " +
                       std::to_string(given[i].address == 0 ? 0 : given[i].bytes));
      }
      if (given[i].address % kBufferAlignment != 0) return BadCall(name() + " is not aligned");
    }
    return {};
  }

  Error Bind() {
    if (static_cast<size_t>(call_.symbol_count) != table_.symbols) {
      return BadCall(std::to_string(table_.symbols) + " symbols, " +
                     std::to_string(call_.symbol_count) + " given");
    }
    Error error = CheckBuffers(table_.inputs, call_.inputs, call_.input_count, "input");
    if (!error.failed()) {
      error = CheckBuffers(table_.outputs, call_.outputs, call_.output_count, "output");
    }
    if (error.failed()) return error;
    auto all = static_cast<int64_t>(table_.launches.size());
    int64_t count = call_.launches == -1 ? all - call_.first_launch : call_.launches;
    if (call_.first_launch < 0 || count < 0 || call_.first_launch + count > all) {
      return BadCall("there are " + std::to_string(all) + " launches");
    }
    first_ = call_.first_launch;
    count_ = static_cast<int>(count);
    return ArenaBytes(table_, call_.symbols, &arena_.bytes);
  }

  Error Enter() {
    Error error = program_.cuda->Enter(call_.device, &scope_, &context_);
    if (error.failed()) return error;
    loaded_ = program_.In(context_);
    int status = kCaptureNone;
    error = Judge(driver_, driver_.StreamIsCapturing(stream_, &status), "cuStreamIsCapturing");
    if (error.failed()) return error;
    capturing_ = status != kCaptureNone;
    return {};
  }

  Error PrepareLaunches() {
    size_t words = 0;
    prepared_.Renew(static_cast<size_t>(count_));
    for (int i = first_; i < first_ + count_; i++) {
      const LaunchEntry& launch = table_.launches[i];
      const KernelEntry& entry = table_.kernels[launch.kernel];
      Prepared& made = prepared_[static_cast<size_t>(i - first_)];
      made = {&launch, &entry, {}, 0, words};
      Error error = loaded_->Get(launch.kernel, &made.kernel);
      if (!error.failed()) error = ChooseGrid(&made);
      if (error.failed()) return error;
      words += launch.words.size();
      if (entry.checks > 0) check_launches_.push_back({i, launch.first_check, entry.checks});
      if (launch.words_region >= 0) pinned_bytes_ += 8 * launch.words.size();
      barriers_ = barriers_ || launch.has_barrier;
    }
    if (check_launches_.empty()) {
      if (call_.checks != nullptr) *call_.checks = nullptr;
    } else {
      if (call_.checks == nullptr) return BadCall("a kernel has checks: they need a place");
      if (capturing_) return {STITCH_CAPTURE, "a kernel with checks is for no CUDA graph"};
      pinned_bytes_ += 2 * static_cast<size_t>(table_.checks * kRangeBytes);
    }
    // The driver may read a whole parameter from where the words begin.
    words_.Renew(words + kParameterWords);
    return {};
  }

  Error ChooseGrid(Prepared* made) {
    const std::string& name = made->entry->name;
    int64_t grid = 0;
    if (!Evaluate(made->launch->grid, call_.symbols, &grid) || grid < 0) {
      return BadCall("the grid of " + name + " has no value");
    }
    if (made->entry->capped) grid = std::min(grid, made->kernel.wave);
    if (made->entry->cooperative && grid > made->kernel.wave) {
      return {STITCH_COOPERATIVE, name + " needs " + std::to_string(grid) +
                                      " blocks at once, the device holds " +
                                      std::to_string(made->kernel.wave)};
    }
    if (grid > kMostBlocks) return BadCall("the grid of " + name + " is too large");
    made->grid = static_cast<unsigned>(grid);
    return {};
  }

  Error TakeMemory() {
    Error error = TakeArena();
    if (!error.failed() && pinned_bytes_ > 0) {
      error = context_->pinned.Take(driver_, pinned_bytes_, &block_);
    }
    if (error.failed() || !barriers_) return error;
    if (!capturing_) return context_->barriers.Find(driver_, stream_, &barrier_);
    // Launches of the graph may meet those of its stream: it gets a word of its own, zeroed by it.
    uint64_t bytes = 0;
    error = At(table_.barrier_region, 8, &barrier_, &bytes);
    if (error.failed()) return error;
    return Judge(driver_, driver_.MemsetD32Async(barrier_, 0, 2, stream_), "cuMemsetD32Async");
  }

  Error TakeArena() {
    uint64_t bytes = arena_.bytes;
    arena_ = call_.arena;
    if (bytes == 0) return arena_.bytes = 0, Error{};
    if (arena_.address == 0) {
      if (call_.allocator == nullptr) return BadCall("an arena or an allocator is needed");
      arena_.bytes = bytes;
      arena_.address = call_.allocator->allocate(call_.allocator->user, bytes);
      if (arena_.address == 0) {
        return {STITCH_OUT_OF_MEMORY, "no arena of " + std::to_string(bytes) + " bytes"};
      }
      allocated_ = true;
    }
    if (arena_.bytes < bytes) {
      return BadCall("the arena must have " + std::to_string(bytes) + " bytes, has " +
                     std::to_string(arena_.bytes));
    }
    if (arena_.address % kArenaAlignment != 0) return BadCall("the arena is not aligned");
    return {};
  }

  // The address of a region that must have at least `least` bytes.
  Error At(int64_t region, uint64_t least, Address* address, uint64_t* bytes) {
    uint64_t offset = 0;
    Error error = FindRegion(table_, region, call_.symbols, arena_.bytes, &offset, bytes);
    if (error.failed()) return error;
    if (*bytes < least) {
      return BadCall("region " + std::to_string(region) + " must have " + std::to_string(least) +
                     " bytes, has " + std::to_string(*bytes));
    }
    *address = arena_.address + offset;
    return {};
  }

  Error FillWords() {
    uint64_t bytes = 0;
    Address checks = 0;
    if (!check_launches_.empty()) {
      Error error = At(table_.checks_region, table_.checks * kRangeBytes, &checks, &bytes);
      if (error.failed()) return error;
      checks_ = checks;
    }
    for (Prepared& one : prepared_) {
      uint64_t* words = words_.data() + one.first_word;
      for (const Word& word : one.launch->words) {
        int64_t value = 0;
        Address address = 0;
        switch (word.kind) {
          case WordKind::kInput: address = call_.inputs[word.position].address; break;
          case WordKind::kOutput: address = call_.outputs[word.position].address; break;
          case WordKind::kBarrier: address = barrier_; break;
          case WordKind::kChecks:
            address = checks + one.launch->first_check * kRangeBytes;
            break;
          case WordKind::kRegion: {
            Error error = At(word.position, 0, &address, &bytes);
            if (error.failed()) return error;
            break;
          }
          case WordKind::kValue:
            if (!Evaluate(word.value, call_.symbols, &value)) {
              return BadCall("a word of " + one.entry->name + " has no value");
            }
            address = static_cast<uint64_t>(value);
        }
        *words++ = address;
      }
    }
    return {};
  }

  Error EnqueueAll() {
    if (!check_launches_.empty()) {
      auto* ranges = reinterpret_cast<int64_t*>(block_->data);
      for (int64_t i = 0; i < table_.checks; i++) {
        ranges[2 * i] = INT64_MAX, ranges[2 * i + 1] = INT64_MIN;
      }
      size_t bytes = static_cast<size_t>(table_.checks * kRangeBytes);
      Error error = CopyToDevice(checks_, block_->data, bytes);
      if (error.failed()) return error;
      pinned_used_ = 2 * bytes;
    }
    for (const Prepared& one : prepared_) {
      Error error = one.grid == 0 ? Error{} : Enqueue(one);
      if (error.failed()) return error;
    }
    return {};
  }

  Error CopyToDevice(Address to, const char* from, size_t bytes) {
    used_ = true;
    return Judge(driver_, driver_.MemcpyHtoDAsync(to, from, bytes, stream_),
                 "cuMemcpyHtoDAsync");
  }

  Error Enqueue(const Prepared& one) {
    uint64_t* words = words_.data() + one.first_word;
    Address far_words = 0;
    void* parameter = words;
    if (one.launch->words_region >= 0) {
      uint64_t bytes = 8 * one.launch->words.size(), found = 0;
      Error error = At(one.launch->words_region, bytes, &far_words, &found);
      if (error.failed()) return error;
      memcpy(block_->data + pinned_used_, words, bytes);
      error = CopyToDevice(far_words, block_->data + pinned_used_, bytes);
      if (error.failed()) return error;
      pinned_used_ += bytes;
      parameter = &far_words;
    }
    const KernelEntry& entry = *one.entry;
    unsigned threads = static_cast<unsigned>(entry.threads);
    unsigned shared = static_cast<unsigned>(entry.shared_bytes);
    void* parameters[] = {parameter};
    Function function = one.kernel.function;
    Result result =
        entry.cooperative
            ? driver_.LaunchCooperativeKernel(function, one.grid, 1, 1, threads, 1, 1, shared,
                                              stream_, parameters)
            : driver_.LaunchKernel(function, one.grid, 1, 1, threads, 1, 1, shared, stream_,
                                   parameters, nullptr);
    if (result == kSuccess) return {};
    StitchReason reason = STITCH_LAUNCH_FAILED;
    if (result == kCooperativeTooLarge) reason = STITCH_COOPERATIVE;
    if (result == kTooManyResources) reason = STITCH_RESOURCES;
    return Failure(driver_, result, "launch of " + entry.name, reason);
  }

  Error FinishChecks() {
    if (check_launches_.empty()) return {};
    size_t bytes = static_cast<size_t>(table_.checks * kRangeBytes);
    auto made = std::make_unique<StitchChecks>();
    Error error = Judge(driver_,
                        driver_.MemcpyDtoHAsync(block_->data + bytes, checks_, bytes, stream_),
                        "cuMemcpyDtoHAsync");
    if (!error.failed()) {
      error = Judge(driver_, driver_.EventRecord(block_->event, stream_), "cuEventRecord");
    }
    if (error.failed()) return error;
    *made = {program_.cuda, context_, std::move(block_), bytes, std::move(check_launches_)};
    program_.cuda->users++;
    *call_.checks = made.release();
    return {};
  }

  StitchProgram& program_;
  const Table& table_;
  const Driver& driver_;
  const StitchCall& call_;
  Stream stream_;
  ContextScope scope_;
  std::shared_ptr<ContextState> context_;
  std::shared_ptr<Loaded> loaded_;
  bool capturing_ = false, barriers_ = false, allocated_ = false;
  bool used_ = false;  // a copy of the stream uses the block
  int first_ = 0, count_ = 0;
  Small<Prepared, 4> prepared_;  // a job's program has one launch
  Small<uint64_t, 2 * kParameterWords> words_;
  std::vector<StitchChecks::Of> check_launches_;
  size_t pinned_bytes_ = 0, pinned_used_ = 0;
  std::unique_ptr<PinnedBlock> block_;
  StitchBuffer arena_{0, 0};
  Address barrier_ = 0, checks_ = 0;
};

}  // namespace

Error ArenaBytes(const Table& table, const int64_t* symbols, uint64_t* bytes) {
  int64_t value = 0;
  if (!Evaluate(table.arena, symbols, &value) || value < 0) {
    return BadCall("the size of the arena has no value");
  }
  *bytes = static_cast<uint64_t>(value);
  return {};
}

Error FindRegion(const Table& table, int64_t region, const int64_t* symbols, uint64_t arena,
                 uint64_t* offset, uint64_t* bytes) {
  const Region& entry = table.regions[region];
  int64_t begin = 0, size = 0;
  if (!Evaluate(entry.offset, symbols, &begin) || !Evaluate(entry.bytes, symbols, &size)) {
    return BadCall("region " + std::to_string(region) + " has no value");
  }
  auto limit = static_cast<int64_t>(std::min<uint64_t>(arena, INT64_MAX));
  if (begin < 0 || size < 0 || begin > limit || size > limit - begin) {
    return BadCall("region " + std::to_string(region) + " lies outside the arena");
  }
  if (begin % static_cast<int64_t>(kArenaAlignment) != 0) {
    return BadCall("region " + std::to_string(region) + " is not aligned");
  }
  *offset = static_cast<uint64_t>(begin);
  *bytes = static_cast<uint64_t>(size);
  return {};
}

Error Run(StitchProgram* program, const StitchCall& call) { return RunOnce(program, call).Run(); }

}  // namespace stitch::cuda
