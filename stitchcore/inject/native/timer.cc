// Step timers. A StitchTimer node sits in each instantiation ("arm": 0 original, 1 stitched) of a
// training step. A call's steps are the interval between its first pass and the next call's; it
// belongs to the call's arm. Whole calls are compared, as what a job does between two calls (Keras
// with `steps_per_execution`) would else be in some of its steps only; blocks are of calls.
// On a GPU both ends of an interval are events in the step's stream, and it is recorded once the
// device has passed them: nothing waits, so intervals come after their calls.
// The schedule of arms is kept here too, so that no Python runs in a step: the caller of the next
// step reads stitch_step_arm. Replicas that swap together (group.py) agree on a count of passes, N:
// the step that follows the N-th pass runs what was decided, and is held while nothing is.
#include "timer.h"

#include <time.h>

#include <algorithm>
#include <atomic>
#include <deque>
#include <map>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "exports.h"
#include "pool.h"

namespace stitch {
namespace {

constexpr int64_t kKept = 1 << 16;  // intervals kept for the reader
constexpr int32_t kHeld = 2;        // an arm that no step may run: its caller waits
constexpr int32_t kInTurns = 2;     // a place: by block the pool (0) and the caller's thread (1)

// What is to happen at an agreed pass. `most` > 0: stitched blocks grow with the stitched calls,
// so that replicas which have called as often have equal blocks.
struct Decision {
  int32_t arm;
  int64_t original, stitched, most;
  uint64_t seed;
};

// An interval of which the device has yet to tell how long it was.
struct Pending {
  Moment begin, end;
  StitchInterval interval;
};

struct Step {
  std::mutex mutex;
  int32_t arm = 0;          // what the next call should run; read without the lock
  std::atomic<int32_t> place{0};  // where stitched calls run
  int64_t lengths[2] = {INT64_MAX, 0};  // calls in a block of each arm
  int64_t taken = 0;        // calls of the present block
  uint64_t random = 0;      // state of the generator of stitched blocks' lengths; 0: all are equal
  int last_arm = -1;
  int64_t last_call = 0;
  Moment last_time = {};    // when that call began
  int64_t within = 0;       // its passes so far
  int64_t block = 0;
  int32_t position = 0;
  int64_t stretched = 0;    // mean calls in the stitched blocks to come
  int64_t most = 0;         // 0, or up to where the mean grows: a tenth of the stitched calls
  int64_t agreed = 0;       // passes before the step that a decision is about; 0: none is due
  int32_t before = 0;       // the arm that a held step would have run
  bool decided = false;
  Decision decision = {};
  int64_t passes[2] = {0, 0}, calls[2] = {0, 0};
  int64_t begun[2] = {0, 0};  // gates passed; read without the lock
  std::deque<Pending> pending;  // oldest first
  std::atomic<bool> marked{false};  // `marker` is there
  Marker marker;
  // Where each thread's call begins on the device. A call that fails leaves its mark: it may not be
  // its thread's, which ends with the process, when the driver is not to be called any more.
  std::map<std::thread::id, std::shared_ptr<DeviceMark>> begins;
  int64_t written = 0;
  std::vector<StitchInterval> ring;
};

// Steps are few and live as long as the process.
struct Steps {
  std::mutex mutex;
  std::deque<Step> all;
};

Steps& Instance() {
  static Steps* steps = new Steps;
  return *steps;
}

Step* Find(int number) {
  Steps& steps = Instance();
  std::lock_guard<std::mutex> lock(steps.mutex);
  bool known = number >= 0 && number < static_cast<int>(steps.all.size());
  return known ? &steps.all[number] : nullptr;
}

int64_t Now() {
  timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return time.tv_sec * int64_t{1'000'000'000} + time.tv_nsec;
}

void Write(Step* step, const StitchInterval& interval) {
  if (step->ring.empty()) step->ring.resize(kKept);
  step->ring[step->written++ % kKept] = interval;
}

// Whether it is known how long an interval was, or will never be.
DeviceMark::Known Length(const Moment& begin, const Moment& end, int64_t* nanoseconds) {
  *nanoseconds = end.host - begin.host;
  if (begin.device == nullptr && end.device == nullptr) return DeviceMark::Known::kYes;
  if (begin.device == nullptr || end.device == nullptr) return DeviceMark::Known::kNever;
  return end.device->Since(*begin.device, nanoseconds);
}

// Records, in their order, the intervals that have become known.
void Settle(Step* step) {
  while (!step->pending.empty()) {
    Pending& oldest = step->pending.front();
    auto known = Length(oldest.begin, oldest.end, &oldest.interval.nanoseconds);
    if (known == DeviceMark::Known::kNotYet) return;
    if (known == DeviceMark::Known::kYes) Write(step, oldest.interval);
    step->pending.pop_front();
  }
}

void Await(Step* step, Pending pending) {
  step->pending.push_back(std::move(pending));
  if (step->pending.size() > static_cast<size_t>(kKept)) step->pending.pop_front();
  Settle(step);
}

// Length of the next stitched block: half to one and a half times the mean, evenly, at least 3 (of
// which the first and the last tell nothing: timer.py), so that original blocks do not fall in step
// with anything the job does at regular intervals.
int64_t Draw(Step* step) {
  int64_t mean = step->stretched;
  if (step->most > 0) mean = std::max(mean, std::min(step->most, step->calls[1] / 10));
  if (step->random == 0 || mean < 3 || mean > INT64_MAX / 4) return mean;
  step->random ^= step->random << 13;  // xorshift64 (Marsaglia 2003)
  step->random ^= step->random >> 7;
  step->random ^= step->random << 17;
  int64_t low = std::max<int64_t>(3, mean - mean / 2), high = mean + mean / 2;
  return low + static_cast<int64_t>(step->random % static_cast<uint64_t>(high - low + 1));
}

void SetArm(Step* step, int32_t arm) { __atomic_store_n(&step->arm, arm, __ATOMIC_RELAXED); }

// What a step runs by its schedule, also while it is held: a call may run several steps, and those
// after the agreed pass count as they do where nobody is held.
int32_t Scheduled(const Step* step) { return step->arm == kHeld ? step->before : step->arm; }

void Advance(Step* step, int arm) {
  if (arm != Scheduled(step)) return;  // a call that was under way when the schedule changed
  if (++step->taken < step->lengths[arm] || step->lengths[1 - arm] == 0) return;
  step->taken = 0;
  if (arm == 0) step->lengths[1] = Draw(step);
  if (arm == 1) PoolTrim();
  if (step->arm == kHeld) {
    step->before = 1 - arm;
  } else {
    SetArm(step, 1 - arm);
  }
}

void Schedule(Step* step, int32_t arm, int64_t original, int64_t stitched, int64_t most) {
  step->lengths[0] = original;
  step->lengths[1] = step->stretched = stitched;
  step->most = most;
  step->taken = 0;
  SetArm(step, arm);
}

// The agreed pass has come: the decision holds from here on. Without one the next step is held.
void Agree(Step* step) {
  if (!step->decided) {
    step->before = step->arm;
    SetArm(step, kHeld);
    return;
  }
  const Decision& one = step->decision;
  step->agreed = 0;
  if (one.arm < 0) {
    if (step->arm == kHeld) SetArm(step, step->before);
    return;
  }
  step->random = one.seed;
  Schedule(step, one.arm, one.original, one.stitched, one.most);
}

// A call of `arm`: a new block's where the last one was the other's.
void CountCall(Step* step, int arm) {
  // Original steps do not use the pool: what it keeps would stand beside all they allocate.
  // Trimmed when they are due and, as the last stitched step may still run, when they have begun.
  if (arm == 0 && step->last_arm == 1) PoolTrim();
  if (arm == 1 && step->last_arm == 0) HeapTrim();
  if (arm == step->last_arm) {
    step->position++;
  } else {
    step->position = 0;
    step->block++;
  }
  step->last_arm = arm;
  step->calls[arm]++;
}

void BeginCall(Step* step, int arm, int64_t call, Moment now) {
  if (step->last_arm >= 0) {
    StitchInterval interval{0, step->last_arm, step->position, step->block, step->within};
    Await(step, {std::move(step->last_time), now, interval});
  }
  CountCall(step, arm);
  step->last_call = call;
  step->last_time = std::move(now);
  step->within = 0;
  Advance(step, arm);
}

}  // namespace

void PassStep(int number, int arm, int64_t call, std::shared_ptr<DeviceMark> mark) {
  Step* step = Find(number);
  if (step == nullptr || arm < 0 || arm > 1) return;
  std::lock_guard<std::mutex> lock(step->mutex);
  if (arm != step->last_arm || call != step->last_call) {
    BeginCall(step, arm, call, {Now(), std::move(mark)});
  }
  step->within++;
  step->passes[arm]++;
  if (step->agreed > 0 && step->passes[0] + step->passes[1] == step->agreed) Agree(step);
}

void BeginStep(int number, int arm, const std::function<Marker()>& marker) {
  Step* step = Find(number);
  if (step == nullptr || arm < 0 || arm > 1) return;
  __atomic_fetch_add(&step->begun[arm], 1, __ATOMIC_RELAXED);
  if (!marker || step->marked.load(std::memory_order_acquire)) return;
  Marker made = marker();
  std::lock_guard<std::mutex> lock(step->mutex);
  if (!made || step->marked) return;
  step->marker = std::move(made);
  step->marked.store(true, std::memory_order_release);
}

Running RunningCall(int number) {
  Step* step = Find(number);
  if (step == nullptr) return {-1, 0};
  std::lock_guard<std::mutex> lock(step->mutex);
  bool inner = step->position > 0 && Scheduled(step) == step->last_arm;
  return {inner ? step->last_arm : -1, step->block};
}

}  // namespace stitch

int stitch_new_step() {
  stitch::Steps& steps = stitch::Instance();
  std::lock_guard<std::mutex> lock(steps.mutex);
  steps.all.emplace_back();
  return static_cast<int>(steps.all.size()) - 1;
}

const int32_t* stitch_step_arm(int step) { return &stitch::Find(step)->arm; }
const int64_t* stitch_step_begun(int step) { return stitch::Find(step)->begun; }

void stitch_place_step(int step, int place) { stitch::Find(step)->place = place; }

// Asked when a stitched call begins, before its gate is passed. Arms take turns too, so that the
// numbers of stitched blocks are two apart.
int stitch_runs_in_caller_thread(int number) {
  stitch::Step* step = stitch::Find(number);
  if (step == nullptr || step->place != stitch::kInTurns) return step != nullptr && step->place;
  std::lock_guard<std::mutex> lock(step->mutex);
  int64_t block = step->block + (step->last_arm != 1);
  return block >> 1 & 1;
}

void stitch_pass_step(int step, int arm) {
  static std::atomic<int64_t> calls{0};  // each a call of its own
  stitch::PassStep(step, arm, ++calls);
}

namespace {

std::shared_ptr<stitch::DeviceMark> MarkNow(stitch::Step* step) {
  return step->marked.load(std::memory_order_acquire) ? step->marker() : nullptr;
}

}  // namespace

// What is called for its results (inference) may be called at any time: what passes between two
// calls is nobody's, so whoever calls tells how long a call took, when it has ended. On a GPU the
// call ends when its work has been put into the stream: whoever calls tells, too, when it begins,
// and it is as long as that work. Calls before a gate has told the stream tell nothing.
void stitch_begin_call(int number) {
  stitch::Step* step = stitch::Find(number);
  if (step == nullptr) return;
  auto mark = MarkNow(step);
  std::lock_guard<std::mutex> lock(step->mutex);
  step->begins[std::this_thread::get_id()].swap(mark);
}

void stitch_record_call(int number, int arm, int64_t nanoseconds, int on_gpu) {
  stitch::Step* step = stitch::Find(number);
  if (step == nullptr || arm < 0 || arm > 1) return;
  auto end = on_gpu ? MarkNow(step) : nullptr;
  std::lock_guard<std::mutex> lock(step->mutex);
  auto begin = on_gpu ? std::move(step->begins[std::this_thread::get_id()]) : nullptr;
  stitch::CountCall(step, arm);
  step->within = 1;
  step->passes[arm]++;
  StitchInterval interval{nanoseconds, arm, step->position, step->block, 1};
  if (!on_gpu) stitch::Write(step, interval);
  if (begin != nullptr && end != nullptr) {
    stitch::Await(step, {{0, std::move(begin)}, {nanoseconds, std::move(end)}, interval});
  }
  stitch::Advance(step, arm);
}

// Starts with a block of `arm`; then blocks of `original` and `stitched` calls in turn. A length
// of 0 for the other arm keeps `arm` for good.
void stitch_schedule_step(int number, int arm, int64_t original, int64_t stitched) {
  stitch::Step* step = stitch::Find(number);
  std::lock_guard<std::mutex> lock(step->mutex);
  stitch::Schedule(step, arm, original, stitched, 0);
}

// Holds the step that follows the `agreed`-th pass until stitch_decide_step; 0 when it has begun.
int stitch_hold_step(int number, int64_t agreed) {
  stitch::Step* step = stitch::Find(number);
  std::lock_guard<std::mutex> lock(step->mutex);
  if (step->agreed > 0 || step->passes[0] + step->passes[1] >= agreed) return 0;
  step->agreed = agreed;
  step->decided = false;
  return 1;
}

// What happens at the agreed pass: a schedule as above with `seed`, its stitched blocks growing up
// to `most`; or, `arm` being -1, nothing. 0 when no step is held or to be held.
int stitch_decide_step(int number, int arm, int64_t original, int64_t stitched, int64_t most,
                       uint64_t seed) {
  stitch::Step* step = stitch::Find(number);
  std::lock_guard<std::mutex> lock(step->mutex);
  if (step->agreed == 0 || step->decided) return 0;
  step->decided = true;
  step->decision = {arm, original, stitched, most, seed};
  if (step->arm == stitch::kHeld) stitch::Agree(step);
  if (arm < 0) step->agreed = 0;  // nothing is due: another pass may be agreed on
  return 1;
}

// Makes the stitched blocks to come `stitched` calls long, on average if `seed` is not 0. The block
// that runs is left alone, and so is a step that keeps one arm.
void stitch_stretch_step(int number, int64_t stitched, uint64_t seed) {
  stitch::Step* step = stitch::Find(number);
  std::lock_guard<std::mutex> lock(step->mutex);
  step->stretched = stitched;
  if (step->random == 0) step->random = seed;
}

// Copies the intervals from `*cursor` on, moves it, returns how many. Overwritten ones are skipped.
int64_t stitch_read_step(int number, int64_t* cursor, StitchInterval* out, int64_t capacity) {
  stitch::Step* step = stitch::Find(number);
  std::lock_guard<std::mutex> lock(step->mutex);
  stitch::Settle(step);
  *cursor = std::max(*cursor, step->written - stitch::kKept);
  int64_t count = std::min(capacity, step->written - *cursor);
  for (int64_t i = 0; i < count; i++) out[i] = step->ring[(*cursor)++ % stitch::kKept];
  return count;
}

int64_t stitch_passes(int number, int arm) {
  stitch::Step* step = stitch::Find(number);
  std::lock_guard<std::mutex> lock(step->mutex);
  return step->passes[arm];
}

int64_t stitch_calls(int number, int arm) {
  stitch::Step* step = stitch::Find(number);
  std::lock_guard<std::mutex> lock(step->mutex);
  return step->calls[arm];
}
