#ifndef STITCH_TIMER_H_
#define STITCH_TIMER_H_

#include <cstdint>
#include <functional>
#include <memory>

#include "moment.h"

namespace stitch {

// One pass of the timer of `step` in the instantiation `arm`. `call` tells the caller's calls
// apart: one that runs several steps passes several times. On a device `mark` says when.
void PassStep(int step, int arm, int64_t call, std::shared_ptr<DeviceMark> mark = nullptr);

// A call of `step` in the instantiation `arm` is about to do something that cannot be done twice.
// On a device `marker`, asked once, tells how calls that are timed from outside are marked there.
void BeginStep(int step, int arm, const std::function<Marker()>& marker);

// The call that runs now: its arm and block; arm -1 at a switch of arms, where a call may be the
// other arm's already: the first and the last call of a block.
struct Running {
  int32_t arm;
  int64_t block;
};
Running RunningCall(int step);

}  // namespace stitch

#endif  // STITCH_TIMER_H_
