// Gives the pages back that TensorFlow's allocator keeps but nobody uses.
#ifndef STITCH_IDLE_H_
#define STITCH_IDLE_H_

namespace stitch {

// XLA holds a step's temporary tensors in one block, TensorFlow in many small ones. What the one
// leaves free seldom fits the other (a batch that was fetched meanwhile lies in the middle), so a
// job that runs both in turn would hold both in memory. Called between them: takes free blocks from
// the allocator, as anybody may, has the system take their pages, and hands them back.
void ReleaseIdlePages();

}  // namespace stitch

#endif  // STITCH_IDLE_H_
