#ifndef STITCH_TIMER_H_
#define STITCH_TIMER_H_

#include <cstdint>

namespace stitch {

// One pass of the timer of `step` in the instantiation `arm`. `call` tells the caller's calls
// apart: one that runs several steps passes several times.
void PassStep(int step, int arm, int64_t call);

// A call of `step` in the instantiation `arm` is about to do something that cannot be done twice.
void BeginStep(int step, int arm);

}  // namespace stitch

#endif  // STITCH_TIMER_H_
