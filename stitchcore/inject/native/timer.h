#ifndef STITCH_TIMER_H_
#define STITCH_TIMER_H_

namespace stitch {

// One pass of the timer of `step` in the instantiation `arm`.
void PassStep(int step, int arm);

}  // namespace stitch

#endif  // STITCH_TIMER_H_
